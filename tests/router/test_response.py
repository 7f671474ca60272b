"""A placed request's answer as it is written: in parts while its client keeps up, whole, or cut off."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import cast

import pytest
from loop_time import freeze, skip, thaw, turns
from penstock_core.domain.slo import Tier
from penstock_proto import replica_pb2 as wire
from penstock_router.http.intake import Accepted
from penstock_router.http.response import respond
from penstock_router.moving.movable_answer import Mover
from penstock_router.observability.move_metrics import MoveMetrics
from penstock_router.routing.placement import Placed, Placement
from penstock_routing.applications.rate_limits import RateLimitGrant
from penstock_routing.replicas.replica_link import ReplicaLink
from penstock_routing.replicas.upstream_request import Lost, Overflowed, UpstreamRequest
from penstock_routing.request.generation_request import NO_TARGETS, GenerationRequest
from penstock_routing.request.outcome import MOST_TIMES, Ending, Outcome
from penstock_routing.response import answer as written
from penstock_routing.response.answer import FINISH_S
from penstock_routing.response.client_scope import ClientScope
from prometheus_client import CollectorRegistry

DONE = b"data: [DONE]\n\n"
FIGURES = wire.Finished(prompt_tokens=5, completion_tokens=2)
HEADERS = [
    (b"x-request-id", b"mine"),
    (b"x-penstock-tier", b"chat"),
    (b"x-penstock-verdict", b"admitted"),
    (b"x-penstock-replica", b"r0"),
    (b"x-penstock-hops", b"2"),
    (b"x-ratelimit-limit-requests", b"7"),
]


class Answer:
    """One answer in progress. relayed: parts written without the request's task; behind: none is."""

    name = "r0"

    def __init__(self, stream: bool) -> None:
        self.upstream = UpstreamRequest(1, 1000 if stream else None)
        self.started: tuple[int, list[tuple[bytes, bytes]]] = (0, [])
        self.sent: list[tuple[bytes, bool]] = []
        self.relayed: list[bytes] = []
        self.behind = self.was_answered = False
        self.abandoned: list[UpstreamRequest] = []
        self.http = self
        self.outcome = Outcome(Tier("chat"), NO_TARGETS, 100.0, stream, verdict="admitted", hops=2)
        request = GenerationRequest(
            "mine", wire.ENDPOINT_COMPLETIONS, b"{}", Tier("chat"), 100.0, stream=stream
        )
        self._accepted = Accepted(request, None, RateLimitGrant([HEADERS[-1]]))

    async def answer(self, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        self.started = 200, headers
        self.sent.append((body, False))

    def start(self, headers: list[tuple[bytes, bytes]]) -> None:
        self.started = 200, headers

    def write(self, data: bytes) -> bool:
        if not self.behind:
            self.relayed.append(data)
        return not self.behind

    def answered(self) -> None:
        self.was_answered = True

    def abandon(self, upstream: UpstreamRequest) -> None:
        self.abandoned.append(upstream)

    async def send(self, data: bytes) -> None:
        self.sent.append((data, True))

    async def end(self, data: bytes) -> None:
        self.sent.append((data, False))

    async def begin(self) -> "asyncio.Task[None]":
        placed = Placed(cast(ReplicaLink, self), self.upstream)
        client = cast(ClientScope, self)
        mover = Mover(cast(Placement, self), 0, lambda: None, MoveMetrics(CollectorRegistry()))
        task = asyncio.create_task(respond(self._accepted, placed, self.outcome, client, mover))
        await turns()
        return task

    @property
    def text(self) -> bytes:
        return b"".join(data for data, _ in self.sent)


@pytest.fixture
async def now_s(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[[], float]]:
    """A clock that only tests advance."""
    freeze()

    def read() -> float:
        return asyncio.get_running_loop().time()

    monkeypatch.setattr(written, "monotonic", read)
    yield read
    thaw()


async def test_a_whole_answer_is_written_in_one_piece(now_s: Callable[[], float]) -> None:
    answer = Answer(stream=False)
    answer.upstream.put(b"{}", 2)
    answer.upstream.finish(FIGURES)
    await (await answer.begin())
    status, headers = answer.started
    assert (status, answer.text) == (200, b"{}")
    assert headers[-len(HEADERS) :] == HEADERS
    outcome = answer.outcome
    assert (outcome.ending, outcome.finished, outcome.ended_s) == (Ending.ANSWERED, FIGURES, now_s())
    assert answer.was_answered
    assert answer.abandoned == [answer.upstream]


async def test_a_whole_answer_without_its_figures_is_not_counted_as_answered(
    now_s: Callable[[], float],
) -> None:
    answer = Answer(stream=False)
    answer.upstream.put(b"{}", 2)
    answer.upstream.finish(Lost("r0", "gone"))
    await (await answer.begin())
    assert (answer.text, answer.outcome.ending, answer.outcome.finished) == (b"{}", Ending.FAILED, None)


async def test_a_stream_is_written_as_it_comes_and_each_token_has_its_time(
    now_s: Callable[[], float],
) -> None:
    answer = Answer(stream=True)
    began_s = now_s()
    answer.upstream.put(b"a", 1)
    answer.upstream.put(b"b", 2)
    task = await answer.begin()
    assert answer.started == (
        200,
        [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"), *HEADERS],
    )
    assert answer.sent == [(b"ab", True)]
    await skip(1)
    for data, tokens in ((b"c", 1), (b"", 0), (b"d", 3)):
        assert answer.upstream.put(data, tokens)
    assert answer.relayed == [b"c", b"", b"d"]
    await skip(1)
    answer.behind = True
    answer.upstream.put(b"e", 1)
    await turns()
    assert answer.sent[-1] == (b"e", True)
    assert not answer.was_answered
    answer.behind = False
    answer.upstream.put(b"f" + DONE, 1)
    await turns()
    assert answer.was_answered
    assert answer.sent[-1] == (b"f" + DONE, False)
    answer.upstream.finish(FIGURES)
    await task
    outcome = answer.outcome
    assert [at_s - began_s for at_s in outcome.token_times_s] == [0, 0, 0, 1, 1, 1, 1, 2, 2]
    assert (outcome.ending, outcome.finished, outcome.ended_s - began_s) == (Ending.ANSWERED, FIGURES, 2)
    assert answer.abandoned == [answer.upstream]


@pytest.mark.parametrize("relayed", [False, True])
async def test_output_with_an_impossible_number_of_tokens_does_not_fill_memory(
    now_s: Callable[[], float], relayed: bool
) -> None:
    """A replica claims 2**32 - 1 tokens in each event."""
    answer = Answer(stream=True)
    answer.upstream.put(b"a", 1 if relayed else 2**32 - 1)
    task = await answer.begin()
    for _ in range(3):
        answer.upstream.put(b"b", 2**32 - 1)
    answer.upstream.finish(FIGURES)
    await task
    assert len(answer.outcome.token_times_s) == MOST_TIMES
    assert answer.outcome.ending is Ending.ANSWERED


async def test_an_answer_that_arrived_whole_is_sent_without_waiting_for_more(
    now_s: Callable[[], float],
) -> None:
    answer = Answer(stream=True)
    answer.upstream.put(b"a", 1)
    answer.upstream.finish(FIGURES)
    await (await answer.begin())
    assert (answer.text, answer.outcome.ending, answer.outcome.finished) == (b"a", Ending.ANSWERED, FIGURES)


async def test_the_final_figures_have_a_short_timeout(now_s: Callable[[], float]) -> None:
    answer = Answer(stream=True)
    answer.upstream.put(b"a" + DONE, 1)
    task = await answer.begin()
    await skip(FINISH_S * 0.9)
    assert not task.done()
    await skip(FINISH_S * 0.2)
    assert task.done()
    assert (answer.outcome.ending, answer.outcome.finished) == (Ending.ANSWERED, None)


async def test_an_end_without_figures_leaves_a_complete_answer_unchanged(
    now_s: Callable[[], float],
) -> None:
    answer = Answer(stream=True)
    answer.upstream.put(b"a" + DONE, 1)
    task = await answer.begin()
    answer.upstream.finish(Lost("r0", "gone"))
    await task
    assert (answer.outcome.ending, answer.outcome.finished) == (Ending.ANSWERED, None)
    assert answer.text == b"a" + DONE


@pytest.mark.parametrize(
    ("end", "last"),
    [
        (
            wire.Failed(status=500, body=b'{"error":{"message":"no"}}'),
            b'data: {"error":{"message":"no"}}\n\n',
        ),
        (Lost("r0", "gone"), b"replica r0 was lost while it answered"),
        (Overflowed(), b""),
    ],
    ids=["failed", "lost", "the client was too slow"],
)
async def test_a_stream_that_cannot_continue_ends_with_the_reason(
    now_s: Callable[[], float], end: wire.Failed | Lost | Overflowed, last: bytes
) -> None:
    answer = Answer(stream=True)
    answer.upstream.put(b"a", 1)
    task = await answer.begin()
    answer.upstream.finish(end)
    await task
    assert last in answer.text
    assert answer.text == b"a" or last != b""
    assert answer.outcome.ending is Ending.FAILED
    _, more = answer.sent[-1]
    assert not more
    assert answer.was_answered


async def test_a_client_that_disconnects_releases_everything(now_s: Callable[[], float]) -> None:
    answer = Answer(stream=True)
    answer.upstream.put(b"a", 1)
    task = await answer.begin()
    task.cancel()
    await asyncio.wait([task])
    assert answer.abandoned == [answer.upstream]
    answer.upstream.put(b"b", 1)
    assert answer.relayed == []
