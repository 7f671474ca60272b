"""A gateway as Envoy is one: it asks a picker for endpoints, and sends each request to them in order.

It asks by `ext_authz`, over HTTP, or by `ext_proc`, over gRPC. The next endpoint is tried where one
cannot be reached, or rejects the request by header. Each is told by headers which attempt it is, and how much
time the others took. An endpoint that is lost with the request is the client's error. Once a response has
begun, its bytes are passed on as they come, and its loss cuts the client's connection.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httptools
import orjson
from envoy.config.core.v3.base_pb2 import HeaderMap, HeaderValue
from envoy.service.ext_proc.v3 import external_processor_pb2 as proc
from fault_simulation.hosts import Host
from fault_simulation.network import Network
from fault_simulation.processes import PickerProcess, address_of, ext_proc_of
from penstock_runtime.envoy.bootstrap import REQUEST_S
from penstock_runtime.gateway_headers import ATTEMPT, DESTINATION, REJECTED, TIMEOUT_LEFT_MS, TIMEOUT_MS
from penstock_runtime.grpc.client import Channel
from penstock_runtime.grpc.status import RpcError

PROCESS = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"

PICK_S = 10.0
"""Longest wait for the picker."""

CONNECT_S = 5.0
"""Longest wait for a connection to an endpoint."""


class NotPicked(Exception):
    """The picker could not be asked, or has answered the client itself: response, whole."""

    def __init__(self, response: bytes) -> None:
        super().__init__()
        self.response = response


class Lost(Exception):
    """An endpoint was lost with a request, before its response began."""


LOST = "no replica answered: upstream_reset_before_response_started at "
"""Prefix of the error of a client whose endpoint was lost; the endpoint follows."""

Headers = dict[bytes, bytes]
Ask = Callable[[Headers, bytes], Awaitable[Headers]]
"""Ask a picker about a request: return its headers with the picker's. Raises NotPicked."""


@dataclass(slots=True)
class GatewayProcess:
    """A gateway. connections: of clients that are open."""

    host: Host
    connections: "set[Downstream]"


def start_gateway(
    network: Network, host: Host, picker: Callable[[], PickerProcess], *, ext_proc: bool
) -> GatewayProcess:
    """Start a gateway. picker: returns the picker that runs now."""
    gateway = GatewayProcess(host, set())

    async def by_ext_authz(headers: Headers, body: bytes) -> Headers:
        return await _ask_ext_authz(picker(), headers, body)

    async def by_ext_proc(headers: Headers, body: bytes) -> Headers:
        return await _ask_ext_proc(network, picker(), headers, body)

    ask = by_ext_proc if ext_proc else by_ext_authz
    network.listen(host, address_of(host), lambda: Downstream(gateway, ask))
    return gateway


class Downstream(asyncio.Protocol):
    """A client's connection, with one request."""

    transport: asyncio.Transport

    def __init__(self, gateway: GatewayProcess, ask: Ask) -> None:
        self._gateway, self._ask = gateway, ask
        self._parser = httptools.HttpRequestParser(self)
        self._headers: Headers = {}
        self._body, self.path = b"", b""
        self._serving: asyncio.Task[None] | None = None
        self.upstream: Upstream | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._gateway.connections.add(self)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_body(self, piece: bytes) -> None:
        self._body += piece

    def on_message_complete(self) -> None:
        self._serving = asyncio.get_running_loop().create_task(self._serve())

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        if self.upstream is not None:
            self.upstream.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.upstream is not None:
            self.upstream.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._gateway.connections.discard(self)
        if self._serving is not None:
            self._serving.cancel()
        if self.upstream is not None:
            self.upstream.transport.abort()

    async def _serve(self) -> None:
        try:
            headers = await self._ask({**self._headers, b":path": self.path}, self._body)
        except NotPicked as why:
            self.transport.write(why.response)
            self.transport.close()
            return
        endpoints = headers.pop(DESTINATION.encode()).decode().split(",")
        begun_s = asyncio.get_running_loop().time()
        for number, endpoint in enumerate(endpoints, 1):
            attempt = headers | _of_attempt(number, asyncio.get_running_loop().time() - begun_s)
            try:
                upstream = await _begin(endpoint, _request(self.path, attempt, self._body))
            except Lost:
                self.transport.write(_error(503, f"{LOST}{endpoint}"))
                self.transport.close()
                return
            except OSError:
                continue
            if REJECTED.encode() in upstream.headers and number < len(endpoints):
                upstream.transport.abort()
                continue
            self.upstream = upstream
            upstream.pass_to(self.transport)
            return
        self.transport.write(_error(503, "no endpoint could be reached"))
        self.transport.close()


class Upstream(asyncio.Protocol):
    """A request to an endpoint or a picker. begun: set when the head of its response, or its loss, came."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.begun: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.whole: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.headers: Headers = {}
        self.status = 0
        self.raw = bytearray()
        self._downstream: asyncio.Transport | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self._downstream is None:
            self.raw += data
        else:
            self._downstream.write(data)
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        _set(self.begun, True)

    def on_message_complete(self) -> None:
        _set(self.whole, True)
        self._finish()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        _set(self.begun, False)
        _set(self.whole, False)
        self._finish()

    def pause_writing(self) -> None:
        """Requests are short."""

    def resume_writing(self) -> None:
        """Requests are short."""

    def pass_to(self, downstream: asyncio.Transport) -> None:
        """Forward the bytes that have arrived and those that arrive."""
        self._downstream = downstream
        downstream.write(bytes(self.raw))
        self._finish()

    def _finish(self) -> None:
        if self._downstream is not None and self.whole.done():
            self.transport.abort()
            if self.whole.result():
                self._downstream.close()
            else:
                self._downstream.abort()


def _set(future: "asyncio.Future[bool]", value: bool) -> None:
    if not future.done():
        future.set_result(value)


async def _begin(address: str, request: bytes) -> Upstream:
    """Send a request, and wait until its response begins. Raises Lost; OSError where it was not sent."""
    host, _, port = address.rpartition(":")
    async with asyncio.timeout(CONNECT_S):
        _, upstream = await asyncio.get_running_loop().create_connection(Upstream, host, int(port))
    upstream.transport.write(request)
    try:
        begun = await upstream.begun
    except asyncio.CancelledError:
        upstream.transport.abort()
        raise
    if not begun:
        raise Lost(address)
    return upstream


def _of_attempt(number: int, spent_s: float) -> Headers:
    values = {ATTEMPT: number, TIMEOUT_MS: REQUEST_S * 1000, TIMEOUT_LEFT_MS: (REQUEST_S - spent_s) * 1000}
    return {name.encode(): b"%d" % value for name, value in values.items()}


def _request(path: bytes, headers: Headers, body: bytes) -> bytes:
    own = {**headers, b"content-length": b"%d" % len(body), b"connection": b"close"}
    lines = [b"%b: %b\r\n" % line for line in own.items() if not line[0].startswith(b":")]
    return b"".join([b"POST %b HTTP/1.1\r\n" % path, *lines, b"\r\n", body])


def _error(status: int, message: str) -> bytes:
    body = orjson.dumps({"error": {"message": message}})
    return b"HTTP/1.1 %d \r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (status, len(body), body)


async def _ask_ext_authz(picker: PickerProcess, headers: Headers, body: bytes) -> Headers:
    request = _request(headers[b":path"], headers, body)
    try:
        async with asyncio.timeout(PICK_S):
            answer = await _begin(address_of(picker.host), request)
            if not await answer.whole:
                raise NotPicked(_error(503, "the picker does not answer"))
    except (Lost, OSError):  # a timeout is one
        raise NotPicked(_error(503, "the picker does not answer")) from None
    answer.transport.abort()
    if answer.status != 200:
        raise NotPicked(bytes(answer.raw))
    return {**headers, **answer.headers}


async def _ask_ext_proc(network: Network, picker: PickerProcess, headers: Headers, body: bytes) -> Headers:
    """Ask by a call on a connection of its own, which the answers to all messages end."""
    pairs = {**headers, b":method": b"POST"}
    fields = [HeaderValue(key=name.decode(), raw_value=value) for name, value in pairs.items()]
    middle = len(body) // 2
    messages = [
        proc.ProcessingRequest(request_headers=proc.HttpHeaders(headers=HeaderMap(headers=fields))),
        proc.ProcessingRequest(request_body=proc.HttpBody(body=body[:middle])),
        proc.ProcessingRequest(request_body=proc.HttpBody(body=body[middle:], end_of_stream=True)),
    ]
    answers: list[proc.ProcessingResponse] = []
    try:
        async with (
            asyncio.timeout(PICK_S),
            Channel(ext_proc_of(picker.host), bounds=network.weather.grpc_bounds) as channel,
        ):
            call = channel.open(PROCESS)
            for message in messages:
                await call.write(message)
            await call.receive(proc.ProcessingResponse, answers.append)
    except (RpcError, TimeoutError):
        raise NotPicked(_error(503, "the picker does not answer")) from None
    return _changed(headers, body, answers)


def _changed(headers: Headers, body: bytes, answers: list[proc.ProcessingResponse]) -> Headers:
    """Return the headers as the picker changed them, and check that it has given the body back."""
    body_responses, changed = b"", dict(headers)
    for answer in answers:
        kind = answer.WhichOneof("response")
        if kind == "immediate_response":
            immediate_response = answer.immediate_response
            head = b"HTTP/1.1 %d \r\ncontent-length: %d\r\n" % (
                immediate_response.status.code,
                len(immediate_response.body),
            )
            raise NotPicked(head + b"connection: close\r\n\r\n" + immediate_response.body)
        if kind == "request_headers":
            for each in answer.request_headers.response.header_mutation.set_headers:
                changed[each.header.key.encode()] = each.header.raw_value
        elif kind == "request_body":
            body_responses += answer.request_body.response.body_mutation.streamed_response.body
    assert body_responses == body, "the picker has changed the body"
    return changed
