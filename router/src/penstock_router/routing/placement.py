"""Finds the replica that serves a request: attempts, hops after rejections, failover after losses.

Core decides which replica is tried next; this module sends the request there. Nothing is written to the
client before placement ends, so a failure leads to the next replica or to an error status. A request that was
lost with a replica is sent to one other replica, within the retry budget, and waits for one while none is in
service, as new requests do for a while after the last replica was lost. If the other one is lost too, the
client gets an error.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import structlog
from penstock_core.domain.verdict import Admitted, BestEffort, Rejected
from penstock_core.routing.attempts import (
    REPLAYS,
    Attempts,
    Backup,
    NoReplicas,
    ReplicaLost,
    Try,
    Unattainable,
    after_loss,
    after_rejection,
    after_skip,
    next_action,
    spread_retry_s,
    with_joined,
)
from penstock_core.timing.time_model import TimeModel
from penstock_proto import replica_pb2 as wire
from penstock_routing.demand import ADMITTED, BEST_EFFORT, Demand
from penstock_routing.order_inputs import routing_request
from penstock_routing.replicas.replica_link import ReplicaLink
from penstock_routing.replicas.replica_set import ReplicaSet
from penstock_routing.replicas.session_writer import Attempt
from penstock_routing.replicas.upstream_request import Lost, UpstreamRequest
from penstock_routing.request.byte_budget import ByteBudget
from penstock_routing.request.generation_request import GenerationRequest
from penstock_routing.request.outcome import Ending, Outcome
from penstock_routing.response.no_replicas import no_replicas
from penstock_routing.response.upstream_error import upstream_error
from penstock_routing.settings import Settings
from penstock_runtime.clock import monotonic
from penstock_runtime.openai_errors import ApiError

from penstock_router.direct.direct_answers import DirectAnswers
from penstock_router.routing.waiting_room import WaitingRoom

log = structlog.get_logger()


class Placed(NamedTuple):
    """The replica that serves a request, and the attempt there, which has output or has ended."""

    link: ReplicaLink
    upstream: UpstreamRequest


class NotPlaced(NamedTuple):
    """No replica serves the rest of a request.

    lost: another replica that was lost with it; "" if none. in_service: whether any was in service.
    """

    lost: str
    in_service: bool


class Placement:
    """Places the requests of one router on replicas.

    demand: counts verdicts.
    room: new requests that wait in a pool that may scale to zero.
    lost_requests: requests and streams that wait, because replicas were lost and no other is in service.
    time_model: returns the model for slowdown targets; None before any replica has sent one.
    budget: bound on the bytes held over all requests.
    direct: reads answers from engines; None if sidecars forward them.
    """

    def __init__(
        self,
        settings: Settings,
        replica_set: ReplicaSet,
        *,
        demand: Demand,
        room: WaitingRoom,
        lost_requests: WaitingRoom,
        time_model: Callable[[], TimeModel | None],
        budget: ByteBudget,
        direct: DirectAnswers | None,
    ) -> None:
        self._direct = direct
        self._settings, self._replica_set = settings, replica_set
        self._demand, self._room, self._lost_requests = demand, room, lost_requests
        self._time_model, self._budget = time_model, budget

    async def place(
        self, request: GenerationRequest, outcome: Outcome, on_overflow: Callable[[], None]
    ) -> Placed:
        """Try replicas until one serves the request.

        Raises ApiError if none does, and UpstreamError if the replica or its engine answers with an error.
        on_overflow: called when the client reads its stream too slowly.
        """
        self._replica_set.arrived()
        found = await self._round(request, outcome, on_overflow, self._settings.backup)
        if isinstance(found, NoReplicas):
            room, since_s = self._room_of(request, outcome)
            while isinstance(found, NoReplicas) and await room.wait(since_s):
                found = await self._round(request, outcome, on_overflow, Backup.BEST_EFFORT)
        if isinstance(found, Placed):
            return found
        self._count_not_placed(found, outcome)
        raise _placement_error(found, request.tier.name, self._replica_set.random.random())

    async def replica_to_avoid(self, lost: str, lost_s: float) -> str:
        """Wait until any replica takes requests, and return the one to avoid.

        That is the replica that a stream lost at this time, if others take requests. If none did, it is "",
        because the lost one may have come back.
        """
        if any([load.name != lost for load in self._replica_set.loads()]):
            return lost
        await self._lost_requests.wait(lost_s)
        return ""

    async def place_again(
        self, request: GenerationRequest, on_overflow: Callable[[], None], lost: str, lost_s: float
    ) -> "Placed | NotPlaced":
        """Try replicas until one serves the rest of a request whose stream has begun.

        lost: the lost replica, which is not tried while others take requests; "" for none. lost_s: when the
        stream's replica was lost. The loss of another replica ends the placement. Raises UpstreamError if a
        replica or its engine answers with an error.
        """
        outcome = Outcome(
            request.tier, request.targets, request.arrival_s, stream=True, decided=True, failovers=REPLAYS
        )
        found = await self._round(request, outcome, on_overflow, Backup.BEST_EFFORT, frozenset({lost}))
        while isinstance(found, NoReplicas) and await self._lost_requests.wait(lost_s):
            found = await self._round(request, outcome, on_overflow, Backup.BEST_EFFORT)
        if isinstance(found, Placed):
            return found
        lost = found.replica if isinstance(found, ReplicaLost) else ""
        return NotPlaced(lost, in_service=not isinstance(found, NoReplicas))

    async def detokenize(self, tokens: Sequence[int], lost: str) -> str | None:
        """Return the text of tokens; None if no engine returns it. lost: the replica that is excluded."""
        for load in self._replica_set.loads():
            if load.name != lost:
                text = await self._replica_set[load.name].detokenize(tokens)
                if text is not None:
                    return text
        return None

    def _room_of(self, request: GenerationRequest, outcome: Outcome) -> tuple[WaitingRoom, float]:
        """Return the room where a request waits for a replica, and the time from which its wait counts.

        A new request waits as if it had been lost with the last replica, unless the pool may scale to zero.
        """
        if not self._replica_set.loads():
            if outcome.failovers:
                return self._lost_requests, monotonic()
            if not self._room.open:
                return self._lost_requests, self._replica_set.lost_s
        return self._room, request.arrival_s

    async def _round(
        self,
        request: GenerationRequest,
        outcome: Outcome,
        on_overflow: Callable[[], None],
        backup: Backup,
        gone: frozenset[str] = frozenset(),
    ) -> Placed | Unattainable | NoReplicas | ReplicaLost:
        """Try the replicas that take requests now. gone: replicas that are excluded."""
        loads = self._replica_set.loads()
        routed = routing_request(request, self._time_model, self._settings, self._replica_set.prefixes)
        order = tuple(name for name in self._settings.order(loads, routed) if name not in gone)
        backup = Backup.REJECT if request.tier.best_effort else backup
        hops, losses = self._settings.max_hops, outcome.failovers
        attempts = Attempts(order, hops, backup, gone=gone, losses=losses, request=routed)
        while isinstance(action := next_action(attempts, loads), Try):
            outcome.hops = action.hop
            link = self._replica_set[action.replica]
            direct = self._direct is not None and self._direct.reaches(link)
            attempt = Attempt(request, action.hop, action.backup, routed.cached_at(link.name), direct)
            found = await self._attempt(attempt, outcome, on_overflow, link)
            if isinstance(found, Placed):
                return found
            attempts = self._after(attempts, action, found, request, outcome)
            before, loads = loads, self._replica_set.loads()
            attempts = with_joined(attempts, before, loads)
        return action

    async def _attempt(
        self, attempt: Attempt, outcome: Outcome, on_overflow: Callable[[], None], link: ReplicaLink
    ) -> Placed | Rejected | Lost:
        """Send the request to one replica, and wait for a stream's first bytes or the whole answer."""
        request = attempt.request
        bound_bytes = self._settings.stream_buffer_bytes if request.stream else None
        upstream = link.submit(attempt, bound_bytes, on_overflow, self._settings.verdict_timeout_s)
        upstream.use_budget(self._budget)
        serves = False
        try:
            while upstream.verdict is None and upstream.end is None:
                await upstream.changed()
            if upstream.verdict is not None:
                self._count_verdict(upstream.verdict, outcome)
            if self._direct is not None and upstream.engine_fields and upstream.end is None:
                self._direct.start(link, upstream, request)
            while upstream.end is None and not (request.stream and upstream.has_output):
                await upstream.changed()
            end = upstream.end
            if isinstance(end, wire.Failed):
                end = _loss(end, link.name)
            if isinstance(end, Rejected | Lost):
                return end
            serves = True
            return Placed(link, upstream)
        finally:
            if not serves:
                link.abandon(upstream)
                upstream.release()

    def _after(
        self,
        attempts: Attempts,
        tried: Try,
        found: Rejected | Lost,
        request: GenerationRequest,
        outcome: Outcome,
    ) -> Attempts:
        """Return the attempts after a replica did not serve the request."""
        if isinstance(found, Rejected):
            outcome.reason = found.reason.value
            return after_rejection(attempts, tried, found)
        log.info("request lost", request=request.id, replica=found.replica, why=found.why)
        if not found.reached:
            return after_skip(attempts, tried)
        outcome.failovers += 1
        affordable = attempts.losses < REPLAYS and self._replica_set.take_replay()
        return after_loss(attempts, tried, affordable)

    def _count_verdict(self, verdict: Admitted | BestEffort, outcome: Outcome) -> None:
        outcome.verdict = ADMITTED if isinstance(verdict, Admitted) else BEST_EFFORT
        outcome.reason = ""
        self._demand.decided(outcome)

    def _count_not_placed(self, found: Unattainable | NoReplicas | ReplicaLost, outcome: Outcome) -> None:
        if isinstance(found, ReplicaLost):
            outcome.ending, outcome.reason = Ending.FAILED, "replica_lost"
            return
        outcome.verdict, outcome.ending = "rejected", Ending.REJECTED
        if isinstance(found, NoReplicas):
            outcome.reason = "no_replicas"
        never = isinstance(found, Unattainable) and found.retry_after_s is None
        self._demand.decided(outcome, never)


def _loss(end: wire.Failed, replica: str) -> Lost:
    """Convert a failure to a loss. Raises UpstreamError if the failure is an answer to the client."""
    if end.failure == wire.FAILURE_ENGINE_LOST:
        return Lost(replica, "its engine was lost")
    if end.failure == wire.FAILURE_RETURNED:
        return Lost(replica, "it returned the request", reached=False)
    raise upstream_error(end)


def _placement_error(action: Unattainable | NoReplicas | ReplicaLost, tier: str, draw: float) -> ApiError:
    if isinstance(action, ReplicaLost):
        return _loss_error(action.losses, spread_retry_s(1, draw))
    if isinstance(action, NoReplicas):
        return no_replicas(draw)
    where = (
        f"on any of {action.replicas} replicas" if action.replicas > 1 else "on the replica that was tried"
    )
    if action.retry_after_s is None:
        return ApiError(
            429,
            f"the targets of tier '{tier}' cannot be met for this request {where}, not even when idle",
            type="slo_unattainable",
            code="slo_unattainable",
            headers=(("x-should-retry", "false"),),
        )
    retry_s = spread_retry_s(action.retry_after_s, draw)
    return ApiError(
        429,
        f"tier '{tier}' cannot start this request in time {where}; try again in {retry_s} s",
        type="slo_unattainable",
        code="slo_unattainable",
        headers=(("retry-after", str(retry_s)),),
    )


def _loss_error(losses: int, retry_s: int) -> ApiError:
    """Return the error of a request that was lost with its replica.

    After the loss of two replicas the client must not retry, because the request may have caused it.
    """
    if losses > REPLAYS:
        message = f"{losses} replicas were lost while they served this request; it is not sent to another one"
        return ApiError(
            502, message, type="server_error", code="replica_lost", headers=(("x-should-retry", "false"),)
        )
    return ApiError(
        503,
        "the replica that served this request was lost, and the retry budget is used up; "
        f"try again in {retry_s} s",
        type="server_error",
        code="replica_lost",
        headers=(("retry-after", str(retry_s)),),
    )
