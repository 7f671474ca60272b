"""One request at a replica: the events that its router gets, their urgency, and the effects of its end."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import orjson
import pytest
from penstock_core.domain.request import Request, new_job
from penstock_core.domain.request_lifecycle import State
from penstock_core.domain.verdict import Admitted, BestEffort, Reason, Rejected
from penstock_proto import replica_pb2 as wire
from penstock_proto.sse import EngineUsage
from penstock_runtime.openai_errors import ApiError
from penstock_sidecar.frames.outbox import Outbox, Urgency
from penstock_sidecar.requests.client_body import read_body
from penstock_sidecar.requests.replica_request import ReplicaRequest


class Desk:
    """The session of a request, and the replica that gets its end."""

    def __init__(self) -> None:
        self.events: list[tuple[wire.Event, int, Urgency]] = []
        self.forgotten: list[ReplicaRequest] = []
        self.ended: list[ReplicaRequest] = []
        self.outbox = cast(Outbox, self)

    def put(self, event: wire.Event, data_bytes: int = 0, urgency: Urgency = Urgency.STEP) -> None:
        self.events.append((event, data_bytes, urgency))

    def output(self, id: int, data: bytes, tokens: int, urgency: Urgency) -> None:
        event = wire.Event(id=id, output=wire.Output(data=data, tokens=tokens))
        self.put(event, len(data), urgency)

    def forget(self, request: ReplicaRequest) -> None:
        self.forgotten.append(request)

    @property
    def urgencies(self) -> list[Urgency]:
        return [urgency for _, _, urgency in self.events]

    @property
    def last(self) -> wire.Event:
        return self.events[-1][0]


def new(desk: Desk, request_id: str = "r7") -> ReplicaRequest:
    """Submitted at 100 s, and not yet read."""
    submit = wire.Submit(id=7, request_id=request_id, endpoint=wire.ENDPOINT_COMPLETIONS, tier="chat")
    return ReplicaRequest(submit, "k", desk, desk.ended.append, 100.0)


def planned(desk: Desk, **fields: Any) -> ReplicaRequest:
    """Read, for one streamed answer unless given otherwise. It arrived at its router at 99.5 s."""
    request = new(desk)
    raw = orjson.dumps({"prompt": [1, 2, 3], "stream": True, **fields})
    job = new_job(Request("k", "chat", 99.5, 3, 500), 50, best_effort=False)
    request.planned(read_body(wire.ENDPOINT_COMPLETIONS, raw), job)
    return request


def admitted(desk: Desk, **fields: Any) -> ReplicaRequest:
    request = planned(desk, **fields)
    request.decided(Admitted(0.25, 0.05))
    desk.events.clear()
    return request


@pytest.mark.parametrize("given", ["a", "x" * 128, "!~", "id-with-\x7e"])
def test_the_clients_own_id_is_kept_if_a_header_can_hold_it(given: str) -> None:
    assert new(Desk(), given).request_id == given


@pytest.mark.parametrize("given", ["", "x" * 129, "a b", "a\n", "é", "\x7f"])
def test_an_id_that_no_header_can_hold_is_replaced(given: str) -> None:
    assert new(Desk(), given).request_id == "k"


def test_a_request_has_a_job_for_each_answer() -> None:
    assert (new(Desk()).jobs, new(Desk()).sequences) == ([], 1)
    one, three = planned(Desk()), planned(Desk(), n=3)
    assert ([job.request.id for job in one.jobs], one.sequences) == (["k"], 1)
    assert [job.request.id for job in three.jobs] == list(three.keys)
    assert (three.sequences, len(set(three.keys)), three.keys[0]) == (3, 3, "k")


def test_a_rejection_is_sent_immediately_and_is_the_end() -> None:
    desk = Desk()
    request = planned(desk)
    request.decided(Rejected(Reason.KV_MEMORY, 1.5))
    ((event, _, urgency),) = desk.events
    assert (event.id, event.rejected.reason, urgency) == (7, wire.REASON_KV_MEMORY, Urgency.IMMEDIATE)
    assert request.verdict == Rejected(Reason.KV_MEMORY, 1.5)
    assert request.ended
    assert desk.forgotten == desk.ended == [request]


@pytest.mark.parametrize("verdict", [Admitted(0.25, 0.05), BestEffort()])
def test_an_acceptance_waits_for_output(verdict: Admitted | BestEffort) -> None:
    desk = Desk()
    request = planned(desk)
    request.decided(verdict)
    assert desk.urgencies == [Urgency.NONE]
    assert (request.verdict, request.state, request.ended) == (verdict, State.WAITING, False)
    assert desk.ended == []


def test_the_first_output_of_a_stream_is_sent_immediately_and_later_ones_with_their_step() -> None:
    desk = Desk()
    request = admitted(desk)
    assert [request.output(b"ab", 1, 0, at_s) for at_s in (100.5, 100.75)] == [1, 1]
    first, second = desk.events
    assert (first[0].output.data, first[1:]) == (b"ab", (2, Urgency.IMMEDIATE))
    assert second[1:] == (2, Urgency.STEP)
    assert (request.first_s, request.last_s, request.tpot_s) == (100.5, 100.75, 0.25)


def test_an_answer_that_is_not_streamed_has_no_urgent_output() -> None:
    desk = Desk()
    request = admitted(desk, stream=False)
    request.output(b"{}", 2, 0, 100.5)
    request.finished(EngineUsage(3, 2), (), 0)
    assert desk.urgencies == [Urgency.NONE, Urgency.IMMEDIATE]
    assert not request.streams


def test_the_token_count_is_the_larger_of_seen_and_reported() -> None:
    desk = Desk()
    request = admitted(desk)
    assert [request.output(b"x", *counts, 100.5) for counts in ((1, 0), (1, 5), (1, 2), (3, 0))] == [
        1,
        4,
        0,
        1,
    ]
    assert [event.output.tokens for event, _, _ in desk.events] == [1, 4, 0, 1]
    assert request.tokens == 6


def test_fewer_than_two_tokens_have_no_tpot() -> None:
    request = admitted(Desk())
    assert request.tpot_s == 0
    request.output(b"x", 1, 0, 100.5)
    assert request.tpot_s == 0
    request.output(b"x", 1, 0, 101.0)
    request.output(b"x", 1, 0, 103.5)
    assert request.tpot_s == 1.5


def test_the_end_of_a_stream_has_its_usage_and_may_wait() -> None:
    desk = Desk()
    request = admitted(desk)
    request.output(b"x", 1, 0, 100.5)
    request.output(b"x", 1, 0, 101.0)
    request.finished(EngineUsage(3, 2, 1), (), 1)
    reported = desk.last.finished
    assert (
        reported.prompt_tokens,
        reported.completion_tokens,
        reported.cached_tokens,
        reported.thinking_tokens,
    ) == (
        3,
        2,
        1,
        1,
    )
    assert (reported.ttft_s, reported.tpot_s, list(reported.token_gaps_us)) == (0.5, 0.5, [])
    assert desk.urgencies[-1] is Urgency.NONE
    assert desk.ended == [request]
    assert request.usage == EngineUsage(3, 2, 1)


def test_the_end_of_a_whole_answer_has_the_time_of_each_token() -> None:
    desk = Desk()
    request = admitted(desk, stream=False)
    request.output(b"{}", 3, 0, 109.0)
    request.finished(EngineUsage(3, 3), (100.5, 100.75, 100.5), 0)
    reported = desk.last.finished
    assert list(reported.token_gaps_us) == [1_000_000, 250_000, 0]
    assert (reported.ttft_s, reported.tpot_s) == (0.5, 0.0)


def test_a_wait_beyond_the_fields_range_is_sent_as_its_maximum() -> None:
    desk = Desk()
    request = admitted(desk, stream=False)
    request.output(b"{}", 2, 0, 5001.0)
    request.finished(EngineUsage(3, 2), (5000.0, 5000.5), 0)
    assert list(desk.last.finished.token_gaps_us) == [2**32 - 1, 500_000]


def test_the_engines_token_count_wins_if_it_exceeds_the_seen_tokens() -> None:
    request = admitted(Desk())
    request.output(b"x", 1, 0, 100.5)
    request.output(b"x", 1, 0, 101.5)
    request.finished(EngineUsage(3, 5), (), 0)
    assert (request.tokens, request.tpot_s) == (5, 0.25)


ENDS: list[tuple[Callable[[ReplicaRequest], None], int, int]] = [
    (ReplicaRequest.engine_lost, wire.FAILURE_ENGINE_LOST, 502),
    (ReplicaRequest.returned, wire.FAILURE_RETURNED, 503),
    (ReplicaRequest.internal_error, wire.FAILURE_INTERNAL, 500),
    (lambda request: request.engine_refused(422, b"no"), wire.FAILURE_ENGINE_REFUSED, 422),
]


@pytest.mark.parametrize(("end", "failure", "status"), ENDS)
def test_each_failure_has_its_kind_and_status_and_is_sent_immediately(
    end: Callable[[ReplicaRequest], None], failure: int, status: int
) -> None:
    desk = Desk()
    request = admitted(desk)
    end(request)
    assert (desk.last.failed.failure, desk.last.failed.status) == (failure, status)
    assert desk.urgencies == [Urgency.IMMEDIATE]
    assert desk.ended == desk.forgotten == [request]


def test_an_engines_error_message_counts_as_held_bytes() -> None:
    desk = Desk()
    admitted(desk).engine_refused(422, b"no way")
    assert desk.events[0][1] == 6


def test_a_body_that_cannot_be_served_ends_the_request_before_any_verdict() -> None:
    desk = Desk()
    request = new(desk)
    request.invalid(ApiError(413, "too long"))
    assert (desk.last.failed.failure, desk.last.failed.status) == (wire.FAILURE_BAD_REQUEST, 413)
    assert desk.ended == [request]


def test_an_engine_without_room_is_a_rejection() -> None:
    desk = Desk()
    request = admitted(desk)
    request.engine_full()
    assert desk.last.rejected.reason == wire.REASON_QUEUE_FULL
    assert request.state is State.REJECTED


def test_a_cancelled_request_ends_without_an_event() -> None:
    desk = Desk()
    request = admitted(desk)
    request.cancelled()
    request.cancelled()
    assert desk.events == []
    assert desk.ended == desk.forgotten == [request]


async def test_ending_a_request_cancels_its_forwarding_task_except_from_within_it() -> None:
    async def goes_on() -> None:
        await asyncio.Event().wait()

    request = admitted(Desk())
    await request.closed()  # there is none yet
    request.task = asyncio.create_task(goes_on())
    await asyncio.sleep(0)
    request.cancelled()
    await request.closed()
    assert request.task.cancelled()

    own = admitted(Desk())

    async def loses_its_engine() -> None:
        own.engine_lost()
        await asyncio.sleep(0)

    own.task = asyncio.create_task(loses_its_engine())
    await own.closed()
    assert not own.task.cancelled()
