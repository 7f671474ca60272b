"""The routers of a fleet: where a request is tried first, and where next.

A request is one router's from its arrival to its end. Routers read the same snapshots, count their own turns
and know what they sent themselves, and where they share it, a little later what the others sent.
"""

from collections.abc import Callable
from math import inf

from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Request
from penstock_core.domain.verdict import Rejected, Verdict
from penstock_core.forecast.prompt_length import BYTES_PER_TOKEN
from penstock_core.routing.orders import ORDERS
from penstock_core.routing.replica_load import Asked, ReplicaLoad
from penstock_core.routing.walk import Backup, Move, Try, Walk, next_move, refused

from penstock_simulator.simulation.fleet import Fleet
from penstock_simulator.simulation.journey import Journey
from penstock_simulator.simulation.snapshots import Snapshots

LOOKS_AT_NOBODY = "round-robin"
"""The order that is the same whatever replicas say, so none needs to be read for it."""


class Routers:
    """All of them."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self._order = fleet, ORDERS[fleet.order]
        self._snapshots: dict[str, Snapshots] = {}
        self._names: list[ReplicaLoad] = []
        self._dealt = 0

    def receive(self, request: Request, best_effort: bool) -> tuple[int, Walk]:
        """A new request: the router whose it is, and the walk that lies before it."""
        turn, router = divmod(self._dealt, self._fleet.routers)
        self._dealt += 1
        targets, now_s = request.targets, request.arrival_s
        asked = Asked(
            tier=request.tier,
            body_bytes=round(request.prompt_tokens * BYTES_PER_TOKEN),
            turn=turn,
            ttft_s=inf if targets.ttft_s is None else targets.ttft_s,
            tpot_s=inf if targets.tpot_s is None else targets.tpot_s,
        )
        loads = self._names if self._fleet.order == LOOKS_AT_NOBODY else self._loads(router, now_s)
        backup = Backup.REJECT if best_effort else self._fleet.backup
        return router, Walk(self._order(loads, asked), self._fleet.max_hops, backup)

    def send(self, journey: Journey, now_s: float) -> Move:
        """Send it to its next replica, if there is one."""
        walk = journey.walk
        on_the_way = walk.left and len(walk.refusals) < walk.max_hops
        move = next_move(walk, self._names if on_the_way else self._loads(journey.router, now_s))
        if isinstance(move, Try):
            journey.tried = move
            request = journey.request
            self._snapshots[move.replica].sent(request.id, journey.router, request.prompt_tokens, now_s)
        return move

    def answered(self, journey: Journey, tried: Try, verdict: Verdict, now_s: float) -> None:
        """The replica tried has decided."""
        rejected = isinstance(verdict, Rejected)
        if tried.replica in self._snapshots:
            self._snapshots[tried.replica].answered(journey.request.id, not rejected, now_s)
        if isinstance(verdict, Rejected):
            journey.walk = refused(journey.walk, tried, verdict)

    def publish(self, name: str, look: Callable[[], ReplicaView], now_s: float) -> None:
        """A replica's snapshot is on its way."""
        self._snapshots[name].publish(look, now_s)

    def joined(self, name: str, view: ReplicaView) -> None:
        """A replica takes work from now on, and says at once how it stands."""
        fleet = self._fleet
        self._snapshots[name] = Snapshots(name, view, fleet.snapshot_age_s, fleet.placements_heard_s)
        self._names.append(ReplicaLoad(name))

    def left(self, name: str) -> None:
        """It takes none any more."""
        del self._snapshots[name]
        self._names = [load for load in self._names if load.name != name]

    def _loads(self, router: int, now_s: float) -> list[ReplicaLoad]:
        return [snapshots.load(router, now_s) for snapshots in self._snapshots.values()]
