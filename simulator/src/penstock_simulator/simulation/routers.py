"""The routers of a fleet: which replica a request is sent to first, and which next.

A request stays with one router. Routers read the same snapshots and count their own turns. Each knows its own
placements, and if placements are shared, those of the others after a delay. With prefix caches routers look
up what each replica has cached of a prompt now, as with an index that follows the replicas' cache events
without delay.
"""

from collections.abc import Callable, Mapping, Sequence
from math import inf

from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Request
from penstock_core.domain.verdict import Rejected, Verdict
from penstock_core.forecast.prompt_length import BYTES_PER_TOKEN
from penstock_core.routing.attempts import Attempts, Backup, NextAction, Try, after_rejection, next_action
from penstock_core.routing.replica_load import NOTHING_CACHED, ReplicaLoad, RoutingRequest

from penstock_simulator.prefix_cache.block_keys import BlockKey
from penstock_simulator.routing_rules import ROUTING_RULES
from penstock_simulator.simulation.fleet import Fleet
from penstock_simulator.simulation.simulated_request import SimulatedRequest
from penstock_simulator.simulation.snapshots import ReplicaSnapshots

LOAD_INDEPENDENT_ORDER = "round-robin"
"""The order that does not depend on load, so no snapshot is read for it."""

CachedTokens = Callable[[Sequence[BlockKey], int], int]
"""Returns the tokens that a replica has cached of a prompt with these keys and this length."""


class Routers:
    """All routers of a fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self._order = fleet, ROUTING_RULES[fleet.order]
        self._snapshots: dict[str, ReplicaSnapshots] = {}
        self._cached: dict[str, CachedTokens] = {}
        self._names: list[ReplicaLoad] = []
        self._received = 0

    def receive(
        self, request: Request, best_effort: bool, keys: Sequence[BlockKey] = ()
    ) -> tuple[int, Attempts]:
        """Assign a new request to a router. Returns the router's index and the order of replicas.

        keys: keys of its prompt's blocks, as far as they are known.
        """
        number, router = divmod(self._received, self._fleet.routers)
        self._received += 1
        targets, now_s = request.targets, request.arrival_s
        routed = RoutingRequest(
            tier=request.tier,
            body_bytes=round(request.prompt_tokens * BYTES_PER_TOKEN),
            number=number,
            ttft_s=inf if targets.ttft_s is None else targets.ttft_s,
            tpot_s=inf if targets.tpot_s is None else targets.tpot_s,
            now_s=now_s,
        )
        if self._fleet.order == LOAD_INDEPENDENT_ORDER:
            loads = self._names
        else:
            loads = self._loads(router, now_s)
            routed = routed._replace(cached_tokens=self._expected_cached_tokens(request, keys))
        backup = Backup.REJECT if best_effort else self._fleet.backup
        return router, Attempts(self._order(loads, routed), self._fleet.max_hops, backup, request=routed)

    def send(self, simulated: SimulatedRequest, now_s: float) -> NextAction:
        """Send a request to its next replica, if there is one."""
        attempts = simulated.attempts
        has_next = attempts.left and len(attempts.rejections) < attempts.max_hops
        action = next_action(attempts, self._names if has_next else self._loads(simulated.router, now_s))
        if isinstance(action, Try):
            simulated.tried = action
            request = simulated.request
            cached = self._cached[action.replica](simulated.keys, request.prompt_tokens)
            uncached = request.prompt_tokens - cached
            self._snapshots[action.replica].sent(request.id, simulated.router, uncached, now_s)
        return action

    def answered(self, simulated: SimulatedRequest, tried: Try, verdict: Verdict, now_s: float) -> None:
        """Record a replica's verdict."""
        rejected = isinstance(verdict, Rejected)
        if tried.replica in self._snapshots:
            self._snapshots[tried.replica].answered(simulated.request.id, not rejected, now_s)
        if isinstance(verdict, Rejected):
            simulated.attempts = after_rejection(simulated.attempts, tried, verdict)

    def publish(self, name: str, read_view: Callable[[], ReplicaView], now_s: float) -> None:
        """Publish a replica's snapshot, which routers see after a delay."""
        self._snapshots[name].publish(read_view, now_s)

    def add_replica(self, name: str, view: ReplicaView, cached_tokens: CachedTokens) -> None:
        """Add a replica that takes requests. Its first snapshot is visible immediately."""
        fleet = self._fleet
        self._cached[name] = cached_tokens
        self._snapshots[name] = ReplicaSnapshots(name, view, fleet.snapshot_age_s, fleet.placement_delay_s)
        self._names.append(ReplicaLoad(name))

    def remove_replica(self, name: str) -> None:
        """Remove a replica that takes no more requests."""
        del self._snapshots[name], self._cached[name]
        self._names = [load for load in self._names if load.name != name]

    def _expected_cached_tokens(self, request: Request, keys: Sequence[BlockKey]) -> Mapping[str, int]:
        if not keys:
            return NOTHING_CACHED
        return {name: cached(keys, request.prompt_tokens) for name, cached in self._cached.items()}

    def _loads(self, router: int, now_s: float) -> list[ReplicaLoad]:
        return [snapshots.load(router, now_s) for snapshots in self._snapshots.values()]
