"""Message order of ext_proc: at most one decision, and the body returned unchanged, for any messages."""

from collections.abc import Callable
from typing import Any

import pytest
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3 import external_processor_pb2 as proc
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from penstock_picker.conversation import (
    CHUNK_BYTES,
    STRIPPED,
    Conversation,
    ConversationState,
    OutOfOrder,
    body_responses,
    immediate_response,
    subset_of,
)
from penstock_picker.pick import Picked
from penstock_picker.picker import Call
from penstock_runtime.openai_errors import ApiError

MAX_BODY_BYTES = 3 * CHUNK_BYTES
PICKED = Picked("chat", "r0", ("10.0.0.1:7000", "10.0.0.2:7000"), 1)
PARTS = st.one_of(st.binary(max_size=20), st.integers(0, 2 * CHUNK_BYTES).map(bytes))


def headers(ends: bool = False, **config: Any) -> proc.ProcessingRequest:
    message = proc.ProcessingRequest(request_headers=proc.HttpHeaders(end_of_stream=ends))
    for name, value in ((":method", "POST"), (":path", "/v1/completions?x=1")):
        message.request_headers.headers.headers.add(key=name, raw_value=value.encode())
    if config:
        message.protocol_config.request_body_mode = config["mode"]
    return message


def part(body: bytes, ends: bool) -> proc.ProcessingRequest:
    return proc.ProcessingRequest(request_body=proc.HttpBody(body=body, end_of_stream=ends))


TRAILERS = proc.ProcessingRequest(request_trailers=proc.HttpTrailers())

Pick = Callable[[Call], Picked]


def told(
    conversation: Conversation, message: proc.ProcessingRequest, pick: Pick = lambda call: PICKED
) -> list[proc.ProcessingResponse]:
    """Return all answers to a message, with the endpoints that `pick` returns."""
    try:
        answers = [*conversation.receive(message)]
        return answers + conversation.answer(pick(conversation.asked)) if conversation.asked else answers
    except ApiError as error:
        return conversation.answer(error)


class Gateway(RuleBasedStateMachine):
    """Messages that a gateway may send in any mode, and invalid ones."""

    @initialize(refuses=st.booleans())
    def begin(self, refuses: bool) -> None:
        self.refuses = refuses
        self.calls: list[Call] = []
        self.sent, self.answers = b"", list[proc.ProcessingResponse]()
        self.conversation = Conversation(MAX_BODY_BYTES)
        self.ended, self.mode = False, ProcessingMode.FULL_DUPLEX_STREAMED

    def pick(self, call: Call) -> Picked:
        self.calls.append(call)
        if self.refuses:
            raise ApiError(429, "no", type="rate_limit_error", code="slo_unattainable")
        return PICKED

    def send(self, message: proc.ProcessingRequest) -> None:
        self.answers += told(self.conversation, message, self.pick)

    def state(self) -> ConversationState:
        return self.conversation.state

    def buffered(self) -> bool:
        """Whether the whole body comes in one message, after the headers have passed."""
        return self.mode == ProcessingMode.BUFFERED and self.state() is not ConversationState.BEGIN

    @precondition(lambda self: self.state() is ConversationState.BEGIN)
    @rule(ends=st.booleans(), mode=st.sampled_from([None, *ProcessingMode.BodySendMode.values()]))
    def headers_come(self, ends: bool, mode: ProcessingMode.BodySendMode.ValueType | None) -> None:
        self.ended, self.mode = ends, ProcessingMode.FULL_DUPLEX_STREAMED if mode is None else mode
        self.send(headers(ends) if mode is None else headers(ends, mode=mode))

    @precondition(lambda self: self.state() is ConversationState.BODY)
    @rule(body=PARTS, ends=st.booleans())
    def a_part_of_the_body_comes(self, body: bytes, ends: bool) -> None:
        self.sent += body
        self.send(part(body, ends))

    @precondition(lambda self: self.state() is ConversationState.BODY and not self.buffered())
    @rule()
    def trailers_come(self) -> None:
        self.send(TRAILERS)

    @rule(message=st.sampled_from([headers(), part(b"x", True), TRAILERS, proc.ProcessingRequest()]))
    def another_message_ends_nothing(self, message: proc.ProcessingRequest) -> None:
        trailers = [] if self.buffered() else ["request_trailers"]
        expected = {
            ConversationState.BEGIN: ["request_headers"],
            ConversationState.BODY: ["request_body", *trailers],
        }
        if message.WhichOneof("request") not in expected.get(self.state(), []):
            before = self.state()
            with pytest.raises(OutOfOrder):
                self.conversation.receive(message)
            assert self.state() is before

    @invariant()
    def one_decision_at_most_and_answers_only_with_it(self) -> None:
        answers = list(self.answers)
        if self.buffered() and not self.ended:
            assert answers.pop(0) == proc.ProcessingResponse(request_headers=proc.HeadersResponse())
        if self.state() is not ConversationState.DONE:
            assert self.calls == [] and answers == []
            return
        assert len(self.calls) <= 1
        if len(self.sent) > MAX_BODY_BYTES:
            assert [each.immediate_response.status.code for each in answers] == [413]
        elif self.refuses:
            assert [each.immediate_response.status.code for each in answers] == [429]
        else:
            self.answered(*answers)

    def answered(self, first: proc.ProcessingResponse, *rest: proc.ProcessingResponse) -> None:
        reads = self.mode in (ProcessingMode.FULL_DUPLEX_STREAMED, ProcessingMode.BUFFERED)
        assert self.calls[0].body == (self.sent if self.ended or reads else None)
        assert self.calls[0].path == "/v1/completions"
        changed = first.request_body if self.buffered() and not self.ended else first.request_headers
        set_headers = changed.response.header_mutation.set_headers
        written = [(each.header.key, each.header.raw_value.decode()) for each in set_headers]
        assert written == list(PICKED.headers)
        assert first.dynamic_metadata["envoy.lb"]["x-gateway-destination-endpoint"] == ",".join(
            PICKED.endpoints
        )
        if self.ended or self.mode != ProcessingMode.FULL_DUPLEX_STREAMED:
            assert rest == ()
            return
        parts = [
            each.request_body.response.body_mutation.streamed_response
            for each in rest
            if each.WhichOneof("response") == "request_body"
        ]
        assert b"".join(each.body for each in parts) == self.sent
        assert all(len(each.body) <= CHUNK_BYTES for each in parts)
        ends = [each.end_of_stream for each in parts] + [each.HasField("request_trailers") for each in rest]
        assert sum(ends) == 1


TestGateway = Gateway.TestCase


def test_a_body_over_the_bound_is_refused_once_and_not_read_further() -> None:
    conversation = Conversation(MAX_BODY_BYTES)
    conversation.receive(headers())
    assert told(conversation, part(bytes(MAX_BODY_BYTES), ends=False)) == []
    (refusal,) = told(conversation, part(b"x", ends=False))
    assert refusal.immediate_response.status.code == 413
    for message in (part(b"x", ends=True), TRAILERS):
        with pytest.raises(OutOfOrder):
            conversation.receive(message)


def test_a_mode_without_the_body_decides_by_the_headers() -> None:
    none = proc.ProcessingRequest().protocol_config.request_body_mode
    conversation = Conversation(MAX_BODY_BYTES)
    (answer,) = told(conversation, headers(mode=none))
    assert answer.WhichOneof("response") == "request_headers"
    assert conversation.asked is not None and conversation.asked.body is None


@pytest.mark.parametrize(
    ("length", "parts"),
    [(0, [0]), (1, [1]), (CHUNK_BYTES, [CHUNK_BYTES]), (2 * CHUNK_BYTES + 1, [CHUNK_BYTES, CHUNK_BYTES, 1])],
)
def test_a_body_is_returned_in_parts_that_envoy_accepts(length: int, parts: list[int]) -> None:
    for ends in (True, False):
        answers = list(body_responses(bytes(length), ends))
        streamed = [each.request_body.response.body_mutation.streamed_response for each in answers]
        assert [len(each.body) for each in streamed] == parts
        assert [each.end_of_stream for each in streamed] == [False] * (len(parts) - 1) + [ends]


@pytest.mark.parametrize("hint", [" 10.0.0.1:1 ,10.0.0.2:1,", ["10.0.0.1:1", " 10.0.0.2:1"]])
def test_an_endpoint_hint_is_a_string_or_a_list(hint: str | list[str]) -> None:
    message = headers()
    assert subset_of(message) is None
    hints = message.metadata_context.filter_metadata["envoy.lb.subset_hint"]
    hints.update({"x-gateway-destination-endpoint-subset": hint})
    assert subset_of(message) == frozenset({"10.0.0.1:1", "10.0.0.2:1"})
    message.request_headers.end_of_stream = True
    assert asked(message).subset == frozenset({"10.0.0.1:1", "10.0.0.2:1"})


def asked(message: proc.ProcessingRequest) -> Call:
    """Return the request of a single message."""
    conversation = Conversation(MAX_BODY_BYTES)
    assert conversation.receive(message) == ()
    assert conversation.asked is not None
    return conversation.asked


def test_headers_are_read_by_lower_case_names_and_from_either_field() -> None:
    message = headers(ends=True)
    for name, raw, value in (("X-One", b"1", ""), ("x-Two", b"", "2"), ("x-three", b"", "\u20ac")):
        message.request_headers.headers.headers.add(key=name, raw_value=raw, value=value)
    call = asked(message)
    assert (call.method, call.path, call.body) == ("POST", "/v1/completions", b"")
    assert {name: call.head[name] for name in (b"x-one", b"x-two", b"x-three")} == {
        b"x-one": b"1",
        b"x-two": b"2",
        b"x-three": b"?",
    }


def test_a_buffered_body_changes_headers_and_decides_with_the_body() -> None:
    conversation = Conversation(MAX_BODY_BYTES)
    (first,) = told(conversation, headers(mode=ProcessingMode.BUFFERED))
    assert first == proc.ProcessingResponse(request_headers=proc.HeadersResponse())
    with pytest.raises(OutOfOrder):
        conversation.receive(TRAILERS)
    (second,) = told(conversation, part(b"{}", ends=True))
    changes = second.request_body.response.header_mutation
    assert [(each.header.key, each.header.raw_value.decode()) for each in changes.set_headers] == list(
        PICKED.headers
    )
    assert second.dynamic_metadata["envoy.lb"]["x-gateway-destination-endpoint"] == ",".join(PICKED.endpoints)
    assert conversation.asked is not None and conversation.asked.body == b"{}"


def test_trailers_end_a_body_that_did_not_end_itself() -> None:
    conversation = Conversation(MAX_BODY_BYTES)
    assert told(conversation, headers()) == told(conversation, part(b"{}", ends=False)) == []
    _, body, trailers = told(conversation, TRAILERS)
    streamed = body.request_body.response.body_mutation.streamed_response
    assert (streamed.body, streamed.end_of_stream) == (b"{}", False)
    assert trailers.WhichOneof("response") == "request_trailers"


def test_a_clients_own_routing_headers_are_removed() -> None:
    (answer,) = told(Conversation(MAX_BODY_BYTES), headers(ends=True))
    mutation = answer.request_headers.response.header_mutation
    assert tuple(mutation.remove_headers) == STRIPPED


def test_a_refusal_has_the_errors_status_headers_body_and_logged_code() -> None:
    error = ApiError(429, "no", type="rate_limit_error", code="slow_down", headers=(("retry-after", "3"),))
    answer = immediate_response(error).immediate_response
    assert (answer.status.code, answer.body, answer.details) == (429, error.body(), "slow_down")
    written = {each.header.key: each.header.raw_value for each in answer.headers.set_headers}
    assert written == {"content-type": b"application/json", "retry-after": b"3"}
    without_code = ApiError(500, "internal error", type="server_error")
    assert immediate_response(without_code).immediate_response.details == "server_error"
