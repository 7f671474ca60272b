"""Attempts of one request at scripted replicas, and the error if none serves it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import orjson
import pytest
from penstock_core.domain.slo import Tier
from penstock_core.domain.verdict import Admitted, BestEffort, Reason, Rejected
from penstock_core.routing.replica_load import ReplicaLoad
from penstock_proto import replica_pb2 as wire
from penstock_router.routing import placement
from penstock_router.routing.placement import Placed, Placement
from penstock_router.routing.waiting_room import WaitingRoom
from penstock_routing.demand import Demand
from penstock_routing.replicas.cached_prefixes import CachedPrefixes
from penstock_routing.replicas.replica_set import ReplicaSet
from penstock_routing.replicas.session_writer import Attempt
from penstock_routing.replicas.upstream_request import End, Lost, UpstreamRequest
from penstock_routing.request.byte_budget import ByteBudget
from penstock_routing.request.generation_request import NO_TARGETS, GenerationRequest
from penstock_routing.request.outcome import Ending, Outcome
from penstock_routing.response.upstream_error import UpstreamError, error_body, upstream_error
from penstock_routing.settings import settings_of
from penstock_runtime.openai_errors import ApiError
from scripted.router import pool_with

FULL = Rejected(Reason.PREFILL_BUDGET, 2.4)
NEVER = Rejected(Reason.NEVER)
GONE = Lost("r0", "gone")
UNSENT = Lost("r0", "no connection", reached=False)
ENGINE_LOST = wire.Failed(failure=wire.FAILURE_ENGINE_LOST, status=502)
RETURNED = wire.Failed(failure=wire.FAILURE_RETURNED, status=503)
WHOLE = wire.Finished(completion_tokens=1)
Script = Callable[[UpstreamRequest], None]


def ends(end: End) -> Script:
    return lambda upstream: upstream.finish(end)


def serves(upstream: UpstreamRequest) -> None:
    upstream.accepted(Admitted(0.25, 0.05))
    upstream.put(b"{}", 1)
    upstream.finish(WHOLE)


def begins(upstream: UpstreamRequest) -> None:
    upstream.accepted(Admitted(0.25, 0.05))
    upstream.put(b"a", 1)


@dataclass
class Replica:
    """A replica with scripted answers. asked: attempts; abandoned: those that were abandoned."""

    name: str
    scripts: list[Script]
    asked: list[Attempt] = field(default_factory=list)
    upstreams: list[UpstreamRequest] = field(default_factory=list)
    abandoned: list[UpstreamRequest] = field(default_factory=list)

    def submit(self, attempt: Attempt, bound_bytes: int | None, *_: object) -> UpstreamRequest:
        upstream = UpstreamRequest(len(self.asked) + 1, bound_bytes)
        self.asked.append(attempt)
        self.upstreams.append(upstream)
        self.scripts.pop(0)(upstream)
        return upstream

    def abandon(self, upstream: UpstreamRequest) -> None:
        self.abandoned.append(upstream)


class Draws(NamedTuple):
    """A source of one and the same draw."""

    draw: float

    def random(self) -> float:
        return self.draw


class Desk:
    """A pool of such replicas, all taking work. draw: by which waits are spread."""

    def __init__(self, *scripts: Script | list[Script], draw: float = 0.0, **routing: Any) -> None:
        lists = (each if isinstance(each, list) else [each] for each in scripts)
        self.replicas = {f"r{at}": Replica(f"r{at}", each) for at, each in enumerate(lists)}
        self.may_replay, self.came = True, 0
        self.random, self.prefixes = Draws(draw), CachedPrefixes()
        pool = pool_with(routing={"backup": "reject", **routing})
        self.settings = settings_of(pool)
        self.budget = ByteBudget(1000)
        self.demand = Demand(["chat", "batch"])
        self.waits: list[bool] = []
        self.waited: list[float] = []
        self.open, self.lost_s = True, 95.0
        self.placement = Placement(
            self.settings,
            cast(ReplicaSet, self),
            demand=self.demand,
            room=cast(WaitingRoom, self),
            lost_requests=cast(WaitingRoom, self),
            time_model=lambda: None,
            budget=self.budget,
            direct=None,
        )
        self.outcome: Outcome

    def __getitem__(self, name: str) -> Replica:
        return self.replicas[name]

    def loads(self) -> list[ReplicaLoad]:
        return [ReplicaLoad(name) for name in self.replicas]

    def arrived(self) -> None:
        self.came += 1

    def take_replay(self) -> bool:
        return self.may_replay

    async def wait(self, arrival_s: float) -> bool:
        self.waited.append(arrival_s)
        return bool(self.waits) and self.waits.pop(0)

    async def placed(self, stream: bool = False, best_effort: bool = False) -> Placed:
        tier = Tier("batch", best_effort=True) if best_effort else Tier("chat")
        request = GenerationRequest("id", wire.ENDPOINT_COMPLETIONS, b"{}", tier, 100.0, stream=stream)
        self.outcome = Outcome(tier, NO_TARGETS, 100.0, stream)
        return await self.placement.place(request, self.outcome, lambda: None)

    async def refusal(self, **how: bool) -> ApiError:
        with pytest.raises(ApiError) as refused:
            await self.placed(**how)
        return refused.value

    @property
    def asked(self) -> list[int]:
        return [len(replica.asked) for replica in self.replicas.values()]

    def verdicts(self) -> dict[str, int]:
        return {verdict: count for _, verdict, count in self.demand.verdicts() if count}


async def test_a_whole_answer_is_placed_on_arrival() -> None:
    desk = Desk(serves)
    placed = await desk.placed()
    assert cast(object, placed.link) is desk["r0"]
    assert placed.upstream.take().data == b"{}"
    assert (desk.asked, desk["r0"].abandoned, desk.came) == ([1], [], 1)
    assert (desk.outcome.verdict, desk.outcome.hops, desk.verdicts()) == ("admitted", 1, {"admitted": 1})
    assert not placed.upstream.streamed


async def test_a_stream_is_placed_with_its_first_bytes() -> None:
    desk = Desk(begins)
    placed = await desk.placed(stream=True)
    assert placed.upstream.end is None
    assert placed.upstream.streamed
    placed.upstream.put(b"bc", 1)
    assert desk.budget.held_bytes == 2


async def test_after_a_rejection_the_next_replica_is_tried_and_the_request_released() -> None:
    desk = Desk(ends(FULL), serves)
    placed = await desk.placed()
    assert cast(object, placed.link) is desk["r1"]
    assert [desk[name].asked[0].hop for name in ("r0", "r1")] == [1, 2]
    assert desk["r0"].abandoned == desk["r0"].upstreams
    assert (desk.outcome.hops, desk.outcome.reason, desk.outcome.failovers) == (2, "", 0)


@pytest.mark.parametrize(("draw", "again_s"), [(0.0, "3"), (0.5, "4"), (0.999, "5")])
async def test_when_all_replicas_are_full_retry_times_are_spread(draw: float, again_s: str) -> None:
    desk = Desk(ends(FULL), ends(Rejected(Reason.KV_MEMORY, 9.0)), draw=draw)
    error = await desk.refusal()
    assert (error.status, error.code) == (429, "slo_unattainable")
    assert dict(error.headers) == {"retry-after": again_s}
    assert f"on any of 2 replicas; try again in {again_s} s" in error.message
    assert (desk.outcome.verdict, desk.outcome.ending) == ("rejected", Ending.REJECTED)
    assert desk.verdicts() == {"rejected": 1}


async def test_a_message_about_one_replica_is_singular() -> None:
    assert "on the replica that was tried" in (await Desk(ends(FULL)).refusal()).message
    assert "on the replica that was tried" in (await Desk(ends(NEVER)).refusal()).message


async def test_a_request_that_no_replica_can_ever_serve_is_not_retryable() -> None:
    desk = Desk(ends(NEVER), ends(NEVER))
    error = await desk.refusal()
    assert (error.status, dict(error.headers)) == (429, {"x-should-retry": "false"})
    assert "on any of 2 replicas, not even when idle" in error.message
    assert (desk.verdicts(), desk.outcome.reason) == ({"never": 1}, "never")


@pytest.mark.parametrize(("draw", "again_s"), [(0.0, "1"), (0.999, "2")])
async def test_without_replicas_the_answer_is_503(draw: float, again_s: str) -> None:
    desk = Desk(draw=draw)
    error = await desk.refusal()
    assert (error.status, error.code, dict(error.headers)) == (503, "no_replicas", {"retry-after": again_s})
    assert (desk.outcome.reason, desk.outcome.verdict, desk.waited) == ("no_replicas", "rejected", [100.0])


def _best_effort(upstream: UpstreamRequest) -> None:
    upstream.accepted(BestEffort())
    upstream.put(b"{}", 1)
    upstream.finish(WHOLE)


async def test_a_request_that_has_waited_is_not_refused() -> None:
    desk = Desk()
    desk.waits = [True, True]

    async def comes_up(arrival_s: float) -> bool:
        desk.waited.append(arrival_s)
        desk.replicas["r0"] = Replica("r0", [ends(FULL), _best_effort])
        return True

    desk.wait = comes_up  # type: ignore[method-assign]
    await desk.placed()
    assert [attempt.backup for attempt in desk["r0"].asked] == [False, True]
    assert (desk.outcome.verdict, desk.verdicts()) == ("best-effort", {"best-effort": 1})


async def test_a_best_effort_request_has_no_backup() -> None:
    desk = Desk([ends(FULL), serves], backup="best-effort")
    assert (await desk.refusal(best_effort=True)).status == 429
    assert desk.asked == [1]


@pytest.mark.parametrize("loss", [GONE, ENGINE_LOST], ids=["the replica", "its engine"])
async def test_a_request_that_is_lost_is_sent_to_one_other_replica(loss: End) -> None:
    desk = Desk(ends(loss), serves, serves)
    placed = await desk.placed()
    assert cast(object, placed.link) is desk["r1"]
    assert (desk.asked, desk.outcome.failovers, desk.outcome.hops) == ([1, 1, 0], 1, 1)


@pytest.mark.parametrize("loss", [UNSENT, RETURNED], ids=["never sent", "handed back"])
async def test_an_unstarted_request_fails_over_without_the_retry_budget(loss: End) -> None:
    desk = Desk(ends(loss), ends(loss), serves)
    desk.may_replay = False
    placed = await desk.placed()
    assert cast(object, placed.link) is desk["r2"]
    assert (desk.asked, desk.outcome.failovers) == ([1, 1, 1], 0)


async def test_a_request_lost_with_the_only_replica_goes_to_one_added_since() -> None:
    desk = Desk(ends(GONE), serves)
    late = desk.replicas.pop("r1")

    def comes_and_ends(upstream: UpstreamRequest) -> None:
        desk.replicas["r1"] = late
        upstream.finish(GONE)

    desk.replicas["r0"].scripts = [comes_and_ends]
    placed = await desk.placed()
    assert cast(object, placed.link) is late
    assert desk.asked == [1, 1]


@pytest.mark.parametrize(("comes", "asked"), [(True, 2), (False, 1)])
async def test_a_request_lost_with_the_last_replica_waits_for_one_like_a_stream(
    comes: bool, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "monotonic", lambda: 107.0)
    desk = Desk([])
    replica = desk["r0"]

    def goes(upstream: UpstreamRequest) -> None:
        desk.replicas.clear()
        upstream.finish(GONE)

    async def wait(arrival_s: float) -> bool:
        desk.waited.append(arrival_s)
        desk.replicas["r0"] = replica
        return comes

    replica.scripts = [goes, serves]
    desk.wait = wait  # type: ignore[method-assign]
    if comes:
        await desk.placed()
    else:
        assert (await desk.refusal()).code == "no_replicas"
    assert (len(replica.asked), desk.waited, desk.outcome.failovers) == (asked, [107.0], 1)


async def test_a_new_request_waits_as_if_it_had_been_lost_with_the_last_replica() -> None:
    desk = Desk()
    desk.open = False
    assert (await desk.refusal()).code == "no_replicas"
    assert (desk.waited, desk.outcome.failovers) == ([95.0], 0)


async def test_a_request_that_the_only_replica_does_not_answer_is_not_sent_to_it_again() -> None:
    desk = Desk(ends(GONE))
    error = await desk.refusal()
    assert (error.status, error.code, desk.asked, desk.waited) == (503, "no_replicas", [1], [100.0])


async def test_a_request_lost_with_two_replicas_is_not_sent_again() -> None:
    desk = Desk(ends(GONE), ends(GONE), serves)
    error = await desk.refusal()
    assert (error.status, error.code, dict(error.headers)) == (
        502,
        "replica_lost",
        {"x-should-retry": "false"},
    )
    assert "2 replicas were lost" in error.message
    assert (desk.asked, desk.outcome.failovers) == ([1, 1, 0], 2)
    assert (desk.outcome.ending, desk.outcome.reason, desk.verdicts()) == (Ending.FAILED, "replica_lost", {})


@pytest.mark.parametrize(("draw", "again_s"), [(0.0, "1"), (0.999, "2")])
async def test_without_retry_budget_a_lost_request_is_left_to_the_clients_retry(
    draw: float, again_s: str
) -> None:
    desk = Desk(ends(GONE), serves, draw=draw)
    desk.may_replay = False
    error = await desk.refusal()
    assert (error.status, error.code, dict(error.headers)) == (503, "replica_lost", {"retry-after": again_s})
    assert desk.asked == [1, 0]


async def test_a_failure_is_the_answer_and_no_other_replica_is_tried() -> None:
    desk = Desk(ends(wire.Failed(failure=wire.FAILURE_BAD_REQUEST, status=400)), serves)
    with pytest.raises(UpstreamError) as failed:
        await desk.placed()
    assert failed.value.status == 400
    assert desk.asked == [1, 0]
    assert desk["r0"].abandoned == desk["r0"].upstreams


@pytest.mark.parametrize(
    ("output", "status"), [(0, 502), (200, 502), (399, 502), (400, 400), (599, 599), (600, 502)]
)
def test_a_failures_status_is_always_an_error_status(output: int, status: int) -> None:
    assert upstream_error(wire.Failed(status=output)).status == status


@pytest.mark.parametrize(
    ("body", "reported"),
    [
        (b'{\n"error": {"message": "no"}, "x": 1}', b'{"error":{"message":"no"},"x":1}'),
        (b'{"error": "no"}', None),
        (b"[]", None),
        (b"Traceback: secret", None),
        (b"", None),
        (b'{"error": {"x": ' + b"[" * 300 + b"]" * 300 + b"}}", None),
    ],
    ids=["in shape", "no object", "a list", "no JSON", "nothing", "too deep to be written"],
)
def test_a_failure_s_error_is_passed_on_if_it_has_openais_format(body: bytes, reported: bytes | None) -> None:
    answer = error_body(wire.Failed(status=500, body=body))
    message = "the engine failed to serve this request"
    assert answer == reported if reported is not None else orjson.loads(answer)["error"]["message"] == message


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b'{"object": "error", "message": "too long", "code": 400}', 400, "too long"),
        (b'{"detail": "no such model"}', 404, "no such model"),
        (b'{"error": "no", "message": "other"}', 422, "no"),
        (b'{"error": "' + b"x" * 5000 + b'"}', 400, "x" * 2000),
        (b'{"error": ""}', 400, None),
        (b'{"detail": [{"msg": "no"}]}', 400, None),
        (b'{"detail": "Traceback: secret"}', 500, None),
    ],
    ids=["an engine's", "FastAPI's", "text", "long", "empty", "a list", "of the engine"],
)
def test_of_an_error_of_the_client_in_another_format_the_message_is_kept(
    body: bytes, status: int, message: str | None
) -> None:
    error = orjson.loads(error_body(wire.Failed(status=status, body=body)))["error"]
    kind = "invalid_request_error" if message else "server_error"
    assert (error["message"], error["type"]) == (message or "the engine failed to serve this request", kind)
