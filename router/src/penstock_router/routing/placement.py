"""The walk of one request over the replicas, until one of them has something for the client.

The core says whom to ask next; here it is asked. Nothing has been written to the client before this ends, so
whatever goes wrong up to then is repaired by asking the next replica, or answered by a status. A request that
was lost with a replica is sent to one other, as far as the retry budget goes, and then answered.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from time import monotonic

import orjson
import structlog
from penstock_core.domain.verdict import Admitted, Reason, Rejected
from penstock_core.routing.replica_load import Asked
from penstock_core.routing.walk import (
    REPLAYS,
    Backup,
    NoReplicas,
    ReplicaLost,
    Try,
    Unattainable,
    Walk,
    lost,
    next_move,
    passed_over,
    refused,
    spread_retry_s,
)
from penstock_core.timing.time_model import TimeModel
from penstock_proto import replica_pb2 as wire
from penstock_runtime.openai_errors import ApiError

from penstock_router.observability.metrics import Metrics
from penstock_router.replicas.replica_link import ReplicaLink
from penstock_router.replicas.replica_set import ReplicaSet
from penstock_router.replicas.session_writer import Attempt, Submission
from penstock_router.replicas.upstream_request import Lost, UpstreamRequest
from penstock_router.request.byte_budget import ByteBudget
from penstock_router.request.outcome import Ending, Outcome, slo_of
from penstock_router.routing.waiting_room import WaitingRoom
from penstock_router.settings import Settings

log = structlog.get_logger()


@dataclass(eq=False, slots=True)
class UpstreamError(Exception):
    """A replica or its engine answered with an error of its own: status, and a body in OpenAI's shape."""

    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a request has come to rest. There is something of its answer to take."""

    link: ReplicaLink
    upstream: UpstreamRequest


@dataclass(frozen=True, slots=True)
class Placement:
    """What walking takes.

    metrics: told of verdicts. room: where to wait while there is no replica.
    time_model: the one that slowdowns are of, or None before any replica has told.
    budget: of the bytes held over all requests.
    bound_bytes, on_overflow: of a request that streams; None and nothing where the answer is held whole.
    """

    settings: Settings
    replica_set: ReplicaSet
    metrics: Metrics
    room: WaitingRoom
    outcome: Outcome
    time_model: TimeModel | None
    budget: ByteBudget
    bound_bytes: int | None
    on_overflow: Callable[[], None]

    async def walk(self, submission: Submission, turn: int) -> Placed:
        """Ask until somebody takes it. Raises ApiError where nobody does, UpstreamError where one answers."""
        self.replica_set.arrived()
        placed = await self._round(submission, turn, self.settings.backup)
        while isinstance(placed, NoReplicas) and await self._held(submission):
            placed = await self._round(submission, turn, Backup.BEST_EFFORT)
        if isinstance(placed, Placed):
            return placed
        if isinstance(placed, ReplicaLost):
            self.outcome.ending, self.outcome.reason = Ending.FAILED, "replica_lost"
            raise _answer(placed, submission.tier, self.replica_set.random.random())
        self.outcome.verdict, self.outcome.ending = "rejected", Ending.REJECTED
        if isinstance(placed, NoReplicas):
            self.outcome.reason = "no_replicas"
        never = isinstance(placed, Unattainable) and placed.retry_after_s is None
        self.metrics.demand.decided(self.outcome, never)
        raise _answer(placed, submission.tier, self.replica_set.random.random())

    async def _held(self, submission: Submission) -> bool:
        """Wait for a replica; False where there is no waiting. Nobody is refused for having waited."""
        if not self.room.open:
            return False
        return await self.room.wait(submission.arrival_s)

    async def _round(
        self, submission: Submission, turn: int, backup: Backup
    ) -> Placed | Unattainable | NoReplicas | ReplicaLost:
        """Ask those who take work now."""
        order = self.settings.order(self.replica_set.loads(), self._asked(submission, turn))
        backup = Backup.REJECT if self.outcome.tier.best_effort else backup
        walk = Walk(order, self.settings.max_hops, backup, losses=self.outcome.failovers)
        while isinstance(move := next_move(walk, self.replica_set.loads()), Try):
            self.outcome.hops = move.hop
            taken = await self._try(submission, move)
            if isinstance(taken, Placed):
                return taken
            if isinstance(taken, Rejected):
                walk, self.outcome.reason = refused(walk, move, taken), taken.reason.value
            else:
                log.info("lost", request=submission.request_id, replica=taken.replica, why=taken.why)
                walk = self._after_loss(walk, move, taken)
        return move

    def _after_loss(self, walk: Walk, move: Try, loss: Lost) -> Walk:
        if not loss.reached:
            return passed_over(walk, move)
        self.outcome.failovers += 1
        return lost(walk, move, affordable=walk.losses < REPLAYS and self.replica_set.replays())

    def _asked(self, submission: Submission, turn: int) -> Asked:
        """The request as orders see it. A slowdown of a model that is not known yet is no bound."""
        asked = Asked(submission.tier, len(submission.body), turn)
        model = self.time_model
        idle_s = inf if model is None else model.prefill_seconds(asked.prompt_tokens)
        targets = slo_of(self.outcome).targets(idle_s)
        return asked._replace(ttft_s=targets.ttft_s or inf, tpot_s=targets.tpot_s or inf)

    async def _try(self, submission: Submission, move: Try) -> Placed | Rejected | Lost:
        link = self.replica_set[move.replica]
        upstream = link.submit(Attempt(submission, move.hop, move.backup), self.bound_bytes, self.on_overflow)
        upstream.hold_within(self.budget)
        placed = False
        try:
            no = await self._until_output(upstream, link)
            placed = no is None
            return Placed(link, upstream) if no is None else no
        finally:
            if not placed:
                link.abandon(upstream)
                upstream.release()

    async def _until_output(self, upstream: UpstreamRequest, link: ReplicaLink) -> Rejected | Lost | None:
        """Until there is something to write: for a stream its first bytes, else the whole answer."""
        asked_s = monotonic()
        try:
            async with asyncio.timeout(self.settings.verdict_timeout_s):
                while upstream.verdict is None and upstream.end is None:
                    await upstream.changed()
        except TimeoutError:
            link.ejection.failed()
            return _unanswered(link, asked_s)
        if upstream.verdict is not None:
            admitted = isinstance(upstream.verdict, Admitted)
            self.outcome.verdict, self.outcome.reason = "admitted" if admitted else "best-effort", ""
            self.metrics.demand.decided(self.outcome)
        while upstream.end is None and not (self.outcome.stream and upstream.brought):
            await upstream.changed()
        return self._judge_end(upstream, link.name)

    def _judge_end(self, upstream: UpstreamRequest, replica: str) -> Rejected | Lost | None:
        end = upstream.end
        if isinstance(end, Rejected | Lost):
            return end
        if isinstance(end, wire.Failed):
            if end.failure == wire.FAILURE_ENGINE_LOST:
                return Lost(replica, "its engine was lost")
            if end.failure == wire.FAILURE_RETURNED:
                return Lost(replica, "it handed the request back", reached=False)
            self.outcome.ending = Ending.INVALID if 400 <= end.status < 500 else Ending.FAILED
            raise upstream_error(end)
        return None


def _unanswered(link: ReplicaLink, asked_s: float) -> Rejected | Lost:
    """A replica that still talks to us has too much to do; one that is silent is lost."""
    if link.heard_s > asked_s:
        return Rejected(Reason.QUEUE_FULL)
    return Lost(link.name, "silent")


def upstream_error(end: wire.Failed) -> UpstreamError:
    """The answer of a replica that failed, in OpenAI's shape whatever it said."""
    status = end.status if 400 <= end.status <= 599 else 502
    return UpstreamError(status, error_body(end))


def error_body(end: wire.Failed) -> bytes:
    """Return the failure as `{"error": …}`, on one line."""
    try:
        said = orjson.loads(end.body)
        if isinstance(said, dict) and isinstance(said.get("error"), dict):
            return orjson.dumps(said)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):  # reads deeper nesting than it writes
        pass
    return ApiError(end.status, "the engine failed to serve this request", type="server_error").body()


def _answer(move: Unattainable | NoReplicas | ReplicaLost, tier: str, draw: float) -> ApiError:
    if isinstance(move, ReplicaLost):
        return _lost_answer(move.losses, spread_retry_s(1, draw))
    if isinstance(move, NoReplicas):
        again_s = spread_retry_s(1, draw)
        return ApiError(
            503,
            f"no replica is in service; try again in {again_s} s",
            type="no_replicas",
            code="no_replicas",
            headers=(("retry-after", str(again_s)),),
        )
    where = f"on any of {move.replicas} replicas" if move.replicas > 1 else "on the replica asked"
    if move.retry_after_s is None:
        return ApiError(
            429,
            f"tier '{tier}' cannot be kept for this request {where}, not even when idle",
            type="slo_unattainable",
            code="slo_unattainable",
            headers=(("x-should-retry", "false"),),
        )
    again_s = spread_retry_s(move.retry_after_s, draw)
    return ApiError(
        429,
        f"tier '{tier}' cannot start this request in time {where}; try again in {again_s} s",
        type="slo_unattainable",
        code="slo_unattainable",
        headers=(("retry-after", str(again_s)),),
    )


def _lost_answer(losses: int, again_s: int) -> ApiError:
    """Answer a request that was lost with its replica. One that two were lost with must not come again by
    itself."""
    if losses > REPLAYS:
        said = f"{losses} replicas were lost with this request, one after the other; it is sent to no other"
        return ApiError(
            502, said, type="server_error", code="replica_lost", headers=(("x-should-retry", "false"),)
        )
    return ApiError(
        503,
        "a replica was lost with this request, and too many others are being sent again; "
        f"try again in {again_s} s",
        type="server_error",
        code="replica_lost",
        headers=(("retry-after", str(again_s)),),
    )
