"""Messages of one request as Envoy sends it by `ext_proc`. Pure.

    request_headers ─▶ [request_body …] ─▶ [request_trailers] ─▶ endpoints, or an immediate response

In the mode FULL_DUPLEX_STREAMED, which the endpoint picker protocol uses, Envoy holds the headers until the
picker has read the body, and the picker returns the body. With a buffered body the headers pass first and are
changed together with the body. In all other modes the picker decides by the headers alone, and replicas
validate the rest.

`receive` takes the messages until the request is whole (`asked`), and `answer` returns what to send once its
endpoints are picked. The conversation ends with them. The picker then closes its stream, so no token passes
through it.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum

from envoy.config.core.v3.base_pb2 import HeaderValue, HeaderValueOption
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3 import external_processor_pb2 as proc
from envoy.type.v3.http_status_pb2 import HttpStatus
from google.protobuf.struct_pb2 import Struct
from penstock_routing.request.request_head import Head
from penstock_runtime.gateway_headers import DESTINATION
from penstock_runtime.openai_errors import ApiError, body_too_large

from penstock_picker.pick import Picked
from penstock_picker.picker import Call

CHUNK_BYTES = 60_000
"""Longest chunk of a body that is returned to Envoy, which accepts messages of up to 64 KiB."""

SUBSET_NAMESPACE, SUBSET = "envoy.lb.subset_hint", f"{DESTINATION}-subset"
"""Metadata in which a gateway names the endpoints to pick from."""

STRIPPED = (SUBSET, "x-prefiller-host-port")
"""Headers that redirect requests in other gateways. They are removed when a client sends them."""


class ConversationState(StrEnum):
    """Progress of a conversation."""

    BEGIN = "begin"  # no message yet
    BODY = "body"  # the headers were received, the body is arriving
    ASKS = "asks"  # the request is whole, and waits for its endpoints
    DONE = "done"  # the endpoints, or an error, were returned


class OutOfOrder(Exception):
    """A message that the protocol does not allow at this point."""


class Conversation:
    """One stream. max_body_bytes: longest body that is read.

    head: the request's headers, once they are received. asked: the request, once it is whole.
    """

    def __init__(self, max_body_bytes: int) -> None:
        self._max_body_bytes = max_body_bytes
        self.state = ConversationState.BEGIN
        self.asked: Call | None = None
        self._body, self._duplex = bytearray(), False
        self.head: Head = {}
        self._subset: frozenset[str] | None = None
        self._last = ""  # kind of the message that completed the request

    def receive(self, message: proc.ProcessingRequest) -> Sequence[proc.ProcessingResponse]:
        """Take a message, and return what to answer at once.

        Raises OutOfOrder, and ApiError if the body is too long.
        """
        kind = message.WhichOneof("request")
        if self.state is ConversationState.BEGIN and kind == "request_headers":
            return self._take_headers(message)
        if self.state is ConversationState.BODY and kind == "request_body":
            return self._take_body(message.request_body)
        if self.state is ConversationState.BODY and kind == "request_trailers" and self._duplex:
            self._ask(bytes(self._body), kind)
            return ()
        raise OutOfOrder(f"{kind} in the state {self.state}")

    def answer(self, picked: Picked | ApiError) -> list[proc.ProcessingResponse]:
        """Return the answers to the request that was asked about: its endpoints, or why it has none."""
        self.state = ConversationState.DONE
        if isinstance(picked, ApiError):
            return [immediate_response(picked)]
        common, metadata = header_changes(picked)
        if self._last == "request_body" and not self._duplex:
            changed = proc.BodyResponse(response=common)
            return [proc.ProcessingResponse(request_body=changed, dynamic_metadata=metadata)]
        headers = proc.HeadersResponse(response=common)
        answers = [proc.ProcessingResponse(request_headers=headers, dynamic_metadata=metadata)]
        if self._last != "request_headers":  # Envoy waits for the body too
            answers += body_responses(bytes(self._body), ends=self._last == "request_body")
        if self._last == "request_trailers":
            answers.append(proc.ProcessingResponse(request_trailers=proc.TrailersResponse()))
        return answers

    def _take_headers(self, message: proc.ProcessingRequest) -> Sequence[proc.ProcessingResponse]:
        headers = message.request_headers
        self.head = {
            _bytes(each.key).lower(): each.raw_value or _bytes(each.value) for each in headers.headers.headers
        }
        self._subset = subset_of(message)
        mode = message.protocol_config.request_body_mode
        self._duplex = not message.HasField("protocol_config") or mode == ProcessingMode.FULL_DUPLEX_STREAMED
        if headers.end_of_stream or not (self._duplex or mode == ProcessingMode.BUFFERED):
            self._ask(b"" if headers.end_of_stream else None, "request_headers")
            return ()
        self.state = ConversationState.BODY
        return () if self._duplex else [proc.ProcessingResponse(request_headers=proc.HeadersResponse())]

    def _take_body(self, part: proc.HttpBody) -> Sequence[proc.ProcessingResponse]:
        if len(self._body) + len(part.body) > self._max_body_bytes:
            raise body_too_large(self._max_body_bytes)
        self._body += part.body
        if part.end_of_stream or not self._duplex:
            self._ask(bytes(self._body), "request_body")
        return ()

    def _ask(self, body: bytes | None, last: str) -> None:
        """Note that the request is whole. last: kind of its last message."""
        self.state, self._last = ConversationState.ASKS, last
        method = self.head.get(b":method", b"").decode("latin-1")
        path = self.head.get(b":path", b"").partition(b"?")[0].decode("latin-1")
        self.asked = Call(method, path, self.head, body, self._subset)


def subset_of(message: proc.ProcessingRequest) -> frozenset[str] | None:
    """Return the endpoints that the gateway allows; None where it allows all."""
    hints = message.metadata_context.filter_metadata
    if SUBSET_NAMESPACE not in hints or SUBSET not in hints[SUBSET_NAMESPACE].fields:
        return None
    given = hints[SUBSET_NAMESPACE].fields[SUBSET]
    if given.WhichOneof("kind") == "list_value":
        return frozenset(each.string_value.strip() for each in given.list_value.values)
    return frozenset(filter(None, (each.strip() for each in given.string_value.split(","))))


def header_changes(picked: Picked) -> tuple[proc.CommonResponse, Struct]:
    """Return the endpoints as headers and as metadata with the same content."""
    changes = proc.HeaderMutation(
        set_headers=[_header(name, value) for name, value in picked.headers], remove_headers=STRIPPED
    )
    metadata = Struct()
    metadata.update({"envoy.lb": {DESTINATION: ",".join(picked.endpoints)}})
    return proc.CommonResponse(header_mutation=changes), metadata


def body_responses(body: bytes, ends: bool) -> Iterator[proc.ProcessingResponse]:
    """Yield the body in chunks. ends: no trailers follow."""
    rest = memoryview(body)
    while True:
        part, rest = rest[:CHUNK_BYTES], rest[CHUNK_BYTES:]
        streamed = proc.StreamedBodyResponse(body=bytes(part), end_of_stream=ends and not rest)
        common = proc.CommonResponse(body_mutation=proc.BodyMutation(streamed_response=streamed))
        yield proc.ProcessingResponse(request_body=proc.BodyResponse(response=common))
        if not rest:
            return


def immediate_response(error: ApiError) -> proc.ProcessingResponse:
    """Return the response that Envoy sends to the client instead of forwarding the request."""
    headers = (("content-type", "application/json"), *error.headers)
    return proc.ProcessingResponse(
        immediate_response=proc.ImmediateResponse(
            status=HttpStatus(code=error.status),
            headers=proc.HeaderMutation(set_headers=[_header(name, value) for name, value in headers]),
            body=error.body(),
            details=error.code or error.type,
        )
    )


def _bytes(text: str) -> bytes:
    return text.encode("latin-1", "replace")


def _header(name: str, value: str) -> HeaderValueOption:
    return HeaderValueOption(
        header=HeaderValue(key=name, raw_value=value.encode("latin-1")),
        append_action=HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD,
    )
