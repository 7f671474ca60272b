"""Accepted requests are forwarded to an engine with scripted answers, and back."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, NamedTuple, cast

import orjson
import pytest
from penstock_core.domain.replica_view import KvCache, Limits
from penstock_core.domain.request import Request, new_job
from penstock_core.domain.request_lifecycle import State
from penstock_core.domain.ticket import TICKET, opened
from penstock_core.domain.verdict import Admitted
from penstock_proto import replica_pb2 as wire
from penstock_runtime.engine.connection import EngineGone, Receive
from penstock_runtime.engine.http_client import EngineResponse
from penstock_sidecar.engine.client import EngineClient
from penstock_sidecar.frames.outbox import Outbox
from penstock_sidecar.metrics import Metrics
from penstock_sidecar.mirror.replica_mirror import ReplicaMirror
from penstock_sidecar.requests.client_body import read_body
from penstock_sidecar.requests.faults import Faults
from penstock_sidecar.requests.forwarding import Forwarder
from penstock_sidecar.requests.gate import OpenGate
from penstock_sidecar.requests.replica_request import ReplicaRequest
from penstock_sidecar.requests.tickets import Tickets
from prometheus_client import CollectorRegistry

TOKEN = b'data: {"choices":[{"text":"word"}]}\n\n'
LAST = b'data: {"choices":[{"text":"","finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"
THOUGHT = b'data: {"choices":[{"delta":{"reasoning_content":"hm"}}]}\n\n'
CONTENT = b'data: {"choices":[{"delta":{"content":"yes"}}]}\n\n'
WHOLE = b'{"choices": [{"text": "a"}], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}'


class ScriptedResponse(NamedTuple):
    """An answer of the engine. An exception among its pieces breaks it off."""

    pieces: tuple[bytes | Exception, ...]
    status: int = 200
    streamed: bool = True


class Engine:
    """An engine that returns these responses in turn. sent: its requests."""

    def __init__(self, *answers: ScriptedResponse) -> None:
        self._answers = iter(answers)
        self.sent: list[tuple[int, dict[str, Any], str]] = []
        self.takes_stream_options = self.takes_token_ids = True

    @contextlib.asynccontextmanager
    async def answer(self, endpoint: int, body: bytes, request_id: str) -> AsyncIterator[EngineResponse]:
        self.sent.append((endpoint, orjson.loads(body), request_id))
        said = next(self._answers)

        async def each(receive: Receive) -> None:
            for piece in said.pieces:
                if isinstance(piece, Exception):
                    raise piece
                receive(piece)

        yield EngineResponse(said.status, said.streamed, each)

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [body for _, body, _ in self.sent]


class Mirror(ReplicaMirror):
    """A mirror that records forwarded tokens and the end of thinking."""

    def __init__(self) -> None:
        super().__init__(KvCache(1000, 1000, 16), Limits(), lambda job: 100)
        self.went: list[tuple[str, int]] = []
        self.thought: list[tuple[str, int]] = []

    def passed(self, request_id: str, tokens: int, now_s: float) -> None:
        self.went.append((request_id, tokens))

    def thinking_ended(self, request_id: str, thinking_tokens: int, now_s: float) -> None:
        self.thought.append((request_id, thinking_tokens))
        super().thinking_ended(request_id, thinking_tokens, now_s)


class Turns(OpenGate):
    """A gate that releases requests when it is opened."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.came: list[tuple[str, ...]] = []
        self.went: list[tuple[str, int]] = []

    def hold(self, keys: tuple[str, ...]) -> None:
        self.came.append(keys)

    async def wait_for_turn(self, key: str) -> None:
        await self.open.wait()

    def passed(self, key: str, tokens: int, now_s: float) -> None:
        self.went.append((key, tokens))


class Desk:
    """A forwarder between an engine and the session that its requests came by."""

    def __init__(
        self,
        *answers: ScriptedResponse,
        reads_fields: bool = False,
        answer_bytes: int = 1000,
        key: bytes = b"",
    ) -> None:
        self.engine, self.mirror, self.gate = Engine(*answers), Mirror(), Turns()
        self.lost = 0
        self.events: list[wire.Event] = []
        self.outbox = cast(Outbox, self)
        self.registry = CollectorRegistry()
        self.forwarder = Forwarder(
            cast(EngineClient, self.engine),
            self.mirror,
            self.gate,
            Faults(Metrics(self.registry).faults),
            reads_fields=reads_fields,
            tickets=Tickets(key),
            answer_bytes=answer_bytes,
            engine_lost=self._lose,
        )

    def _lose(self) -> None:
        self.lost += 1

    def put(self, event: wire.Event, *_: object, **__: object) -> None:
        self.events.append(event)

    def output(self, id: int, data: bytes, tokens: int, _: object) -> None:
        self.put(wire.Event(id=id, output=wire.Output(data=data, tokens=tokens)))

    def forget(self, request: ReplicaRequest) -> None:
        """Do nothing: no state is kept."""

    def start(self, **fields: Any) -> ReplicaRequest:
        """A request for a streamed answer to text, unless given otherwise, has been accepted."""
        submit = wire.Submit(id=7, request_id="r7", endpoint=wire.ENDPOINT_COMPLETIONS, tier="chat")
        request = ReplicaRequest(submit, "k", self, lambda request: None, 100.0)
        raw = orjson.dumps({"prompt": "a", "stream": True, **fields})
        job = new_job(Request("k", "chat", 99.5, 5, 500), 50, best_effort=False)
        request.planned(read_body(wire.ENDPOINT_COMPLETIONS, raw), job)
        for each in request.jobs:
            self.mirror.accept(each, 100.0)
        request.decided(Admitted(0.25, 0.05))
        self.events.clear()
        self.forwarder.start(request)
        return request

    async def served(self, **fields: Any) -> ReplicaRequest:
        request = self.start(**fields)
        await self.forwarder.closed()
        return request

    @property
    def data(self) -> bytes:
        return b"".join(event.output.data for event in self.events)

    @property
    def tokens(self) -> list[int]:
        return [event.output.tokens for event in self.events if event.HasField("output")]

    @property
    def faults(self) -> float | None:
        return self.registry.get_sample_value("penstock_replica_faults_total", {"where": "forwarding"})


async def test_a_request_enters_the_engine_when_it_is_released() -> None:
    desk = Desk(ScriptedResponse((TOKEN, DONE)))
    desk.gate.open.clear()
    request = desk.start()
    for _ in range(5):
        await asyncio.sleep(0)
    assert (desk.gate.came, desk.engine.sent) == ([("k",)], [])
    desk.gate.open.set()
    await desk.forwarder.closed()
    assert desk.engine.sent[0][0::2] == (wire.ENDPOINT_COMPLETIONS, "r7")
    assert request.state is State.FINISHED
    await desk.forwarder.closed()  # with no event left to wait for


async def test_output_of_the_engine_is_forwarded_and_counted_once() -> None:
    desk = Desk(ScriptedResponse((TOKEN, TOKEN + TOKEN, DONE)))
    await desk.served()
    assert desk.data == TOKEN * 3 + DONE
    assert desk.tokens == [1, 2, 0]
    assert desk.mirror.went == desk.gate.went == [("k", 1), ("k", 2), ("k", 0)]
    finished = desk.events[-1].finished
    assert (finished.prompt_tokens, finished.completion_tokens) == (5, 3)  # as planned and as seen
    assert (desk.faults, desk.lost) == (None, 0)


async def test_tokens_of_several_answers_are_distributed_in_turn() -> None:
    desk = Desk(ScriptedResponse((TOKEN, TOKEN * 2, TOKEN * 4, DONE)))
    request = await desk.served(n=3)
    a, b, c = request.keys
    shares = [dict(desk.mirror.went[at : at + 3]) for at in range(0, 12, 3)]
    assert shares == [{a: 1, b: 0, c: 0}, {a: 0, b: 1, c: 1}, {a: 2, b: 1, c: 1}, {a: 0, b: 0, c: 0}]
    assert desk.gate.went == [("k", 1), ("k", 2), ("k", 4), ("k", 0)]


async def test_an_engine_that_reads_fields_gets_them() -> None:
    desk = Desk(ScriptedResponse((TOKEN, DONE)), reads_fields=True)
    await desk.served()
    (body,) = desk.engine.bodies
    assert body["vllm_xargs"]["penstock_id"] == "k"
    assert "stream_options" not in body


async def test_an_engine_gets_a_ticket_with_the_same_fields() -> None:
    key = b"k" * 32
    desk = Desk(ScriptedResponse((TOKEN, DONE)), reads_fields=True, key=key)
    await desk.served(n=2)
    xargs = desk.engine.bodies[0]["vllm_xargs"]
    ticket = opened(xargs.pop(TICKET), key)
    assert ticket is not None and dict(ticket.fields) == xargs
    assert (ticket.fields["penstock_id"], ticket.uses) == ("k", 2)
    assert ticket.issued_s - 99.5 == pytest.approx(ticket.fields["penstock_spent_s"])


async def test_usage_is_requested_of_an_engine_that_reads_no_fields_and_removed() -> None:
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4}}\n\n'
    desk = Desk(ScriptedResponse((TOKEN, LAST, usage, DONE)))
    await desk.served()
    assert desk.engine.bodies == [{"prompt": "a", "stream": True, "stream_options": {"include_usage": True}}]
    assert desk.data == TOKEN + LAST + DONE
    finished = desk.events[-1].finished
    assert (finished.prompt_tokens, finished.completion_tokens) == (9, 4)


@pytest.mark.parametrize("fields", [{"stream": False}, {"stream_options": {"include_usage": True}}])
async def test_a_body_that_requests_usage_is_unchanged(fields: dict[str, Any]) -> None:
    streamed = fields.get("stream", True)
    desk = Desk(ScriptedResponse((TOKEN, DONE) if streamed else (WHOLE,), streamed=streamed))
    await desk.served(**fields)
    assert desk.engine.bodies == [{"prompt": "a", "stream": True, **fields}]


@pytest.mark.parametrize("status", [400, 422])
async def test_after_a_rejection_of_stream_options_the_engine_gets_the_clients_body(
    status: int,
) -> None:
    plain = {"prompt": "a", "stream": True}
    desk = Desk(
        ScriptedResponse((b"no",), status), ScriptedResponse((TOKEN, DONE)), ScriptedResponse((TOKEN, DONE))
    )
    request = await desk.served()
    assert desk.engine.bodies[1] == plain
    assert request.state is State.FINISHED
    await desk.served()
    assert desk.engine.bodies[2] == plain


async def test_an_engine_that_also_rejects_the_clients_body_is_tried_again_later() -> None:
    desk = Desk(ScriptedResponse((b"no",), 400), ScriptedResponse((b"never",), 400))
    request = await desk.served()
    failed = desk.events[-1].failed
    assert (failed.failure, failed.status, failed.body) == (wire.FAILURE_ENGINE_REFUSED, 400, b"never")
    assert request.ended
    assert desk.engine.takes_stream_options


IDS, USAGE = {"return_token_ids": True}, {"stream_options": {"include_usage": True}}
PLAIN: dict[str, Any] = {"prompt": "a", "stream": True}


async def test_after_a_rejection_of_token_ids_only_usage_is_requested() -> None:
    desk = Desk(
        ScriptedResponse((b"no",), 422), ScriptedResponse((TOKEN, DONE)), ScriptedResponse((TOKEN, DONE))
    )
    await desk.served(**IDS)
    assert desk.events[-1].WhichOneof("kind") == "finished"
    await desk.served(**IDS)
    assert desk.engine.bodies == [PLAIN | IDS | USAGE, PLAIN | USAGE, PLAIN | USAGE]


async def test_an_engine_that_rejected_both_is_asked_for_neither() -> None:
    no, yes = ScriptedResponse((b"no",), 400), ScriptedResponse((TOKEN, DONE))
    desk = Desk(no, no, yes, no, yes, yes)
    for _ in range(3):
        await desk.served(**IDS)
    both = [PLAIN | IDS | USAGE, PLAIN | USAGE, PLAIN]
    assert desk.engine.bodies == [*both, PLAIN | IDS, PLAIN, PLAIN]


async def test_token_ids_are_requested_of_an_engine_that_accepts_them() -> None:
    desk = Desk(ScriptedResponse((TOKEN, DONE)), ScriptedResponse((TOKEN, DONE)))
    await desk.served(**IDS)
    await desk.served(**USAGE, **IDS)
    assert desk.engine.bodies == [PLAIN | IDS | USAGE, PLAIN | USAGE | IDS]


@pytest.mark.parametrize("status", [401, 404, 500])
async def test_any_other_refusal_is_the_engines_answer(status: int) -> None:
    desk = Desk(ScriptedResponse((b"n", b"o"), status))
    await desk.served()
    failed = desk.events[-1].failed
    assert (failed.failure, failed.status, failed.body) == (wire.FAILURE_ENGINE_REFUSED, status, b"no")
    assert len(desk.engine.sent) == 1


@pytest.mark.parametrize("status", [400, 422])
async def test_an_unmodified_body_that_is_refused_is_not_sent_again(status: int) -> None:
    desk = Desk(ScriptedResponse((b"no",), status), reads_fields=True)
    await desk.served()
    assert desk.events[-1].failed.status == status
    assert len(desk.engine.sent) == 1


PAGE, REFUSAL = b"<html>sign in</html>", b'{"error": {"message": "no such model"}}'


@pytest.mark.parametrize(
    ("stream", "answer", "body"),
    [
        (True, ScriptedResponse((WHOLE,), streamed=False), WHOLE),
        (True, ScriptedResponse((REFUSAL,), streamed=False), REFUSAL),
        (True, ScriptedResponse((PAGE,), streamed=False), PAGE),
        (False, ScriptedResponse((TOKEN, DONE)), b""),
        (False, ScriptedResponse((PAGE,), streamed=False), PAGE),
        (False, ScriptedResponse((REFUSAL,), streamed=False), REFUSAL),
        (False, ScriptedResponse((WHOLE[:-9],), streamed=False), WHOLE[:-9]),
    ],
)
async def test_an_answer_of_another_kind_than_requested_is_an_error(
    stream: bool, answer: ScriptedResponse, body: bytes
) -> None:
    """A client would read a page or an object as an empty stream, and cannot read a stream as an object."""
    desk = Desk(answer)
    request = await desk.served(stream=stream)
    (event,) = desk.events
    failed = event.failed
    assert (failed.failure, failed.status, failed.body) == (wire.FAILURE_ENGINE_REFUSED, 502, body)
    assert (request.ended, desk.faults, desk.lost) == (True, None, 0)


@pytest.mark.parametrize("status", [429, 503])
async def test_an_engine_without_room_is_a_rejection(status: int) -> None:
    desk = Desk(ScriptedResponse((b"busy",), status))
    await desk.served()
    assert desk.events[-1].rejected.reason == wire.REASON_QUEUE_FULL
    assert desk.lost == 0


async def test_a_missing_last_event_is_added_to_a_stream() -> None:
    desk = Desk(ScriptedResponse((TOKEN, LAST)), reads_fields=True)
    request = await desk.served()
    assert desk.data == TOKEN + LAST + DONE
    assert request.state is State.FINISHED


@pytest.mark.parametrize(
    ("said", "stream"),
    [
        (ScriptedResponse((TOKEN,)), True),
        (ScriptedResponse(()), True),
        (ScriptedResponse((), streamed=False), False),
    ],
    ids=["a stream", "an empty one", "an empty answer"],
)
async def test_a_truncated_answer_is_lost_and_does_not_affect_the_engine_s_health(
    said: ScriptedResponse, stream: bool
) -> None:
    desk = Desk(said, reads_fields=True)
    await desk.served(stream=stream)
    assert desk.events[-1].failed.failure == wire.FAILURE_ENGINE_LOST
    assert (desk.lost, desk.faults) == (0, None)


async def test_a_broken_connection_loses_the_request_and_causes_a_probe() -> None:
    desk = Desk(ScriptedResponse((TOKEN, EngineGone(ConnectionResetError()))))
    await desk.served()
    assert desk.events[-1].failed.failure == wire.FAILURE_ENGINE_LOST
    assert (desk.lost, desk.faults) == (1, None)


@pytest.mark.parametrize("fields", [{}, {"stream_options": {"include_usage": True}}])
@pytest.mark.parametrize("end", [(), (EngineGone(ConnectionResetError()),)], ids=["cut short", "broken off"])
async def test_an_incomplete_event_is_not_forwarded(
    fields: dict[str, Any], end: tuple[Exception, ...]
) -> None:
    desk = Desk(ScriptedResponse((TOKEN[:9], TOKEN[9:] + TOKEN[:-1], *end)))
    await desk.served(**fields)
    assert (desk.data, desk.tokens) == (TOKEN, [1])
    assert desk.events[-1].failed.failure == wire.FAILURE_ENGINE_LOST


async def test_an_incomplete_event_at_the_end_of_a_finished_stream_is_completed() -> None:
    desk = Desk(ScriptedResponse((TOKEN, LAST, DONE[:-1])), reads_fields=True)
    await desk.served()
    assert desk.data == TOKEN + LAST + DONE


@pytest.mark.parametrize(("bound", "ends_as"), [(len(WHOLE), State.FINISHED), (len(WHOLE) - 1, State.FAILED)])
async def test_a_buffered_answer_has_a_bound(bound: int, ends_as: State) -> None:
    desk = Desk(ScriptedResponse((WHOLE[:9], WHOLE[9:]), streamed=False), answer_bytes=bound)
    request = await desk.served(stream=False)
    assert request.state is ends_as
    assert desk.data == (WHOLE if ends_as is State.FINISHED else b"")


async def test_a_whole_answer_with_usage_has_a_token_count() -> None:
    desk = Desk(ScriptedResponse((WHOLE,), streamed=False), ScriptedResponse((b"{}",), streamed=False))
    await desk.served(stream=False)
    assert (desk.tokens, desk.events[-1].finished.completion_tokens) == ([2], 2)
    desk.events.clear()
    await desk.served(stream=False)
    finished = desk.events[-1].finished
    assert (desk.tokens, finished.prompt_tokens, finished.completion_tokens) == ([0], 5, 0)


async def test_a_whole_answer_has_the_times_of_its_own_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seven tokens of three answers that were generated beside each other: about two each."""
    desk = Desk(ScriptedResponse((WHOLE.replace(b": 2}", b": 7}"),), streamed=False))
    monkeypatch.setattr(desk.mirror, "token_times_s", lambda _, tokens, ended_s: [100.0] * tokens)
    await desk.served(stream=False, n=3)
    finished = desk.events[-1].finished
    assert (finished.completion_tokens, len(finished.token_gaps_us)) == (7, 2)


async def test_the_end_of_thinking_is_recorded_once() -> None:
    desk = Desk(ScriptedResponse((THOUGHT, THOUGHT + CONTENT, CONTENT, DONE)))
    await desk.served()
    assert desk.mirror.thought == [("k", 2)]
    assert desk.events[-1].finished.thinking_tokens == 2


async def test_an_internal_error_ends_its_own_request(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(ScriptedResponse((TOKEN, DONE)))
    monkeypatch.setattr(desk.mirror, "passed", lambda *_: 1 // 0)
    await desk.served()
    assert desk.events[-1].failed.failure == wire.FAILURE_INTERNAL
    assert (desk.faults, desk.lost) == (1, 0)
