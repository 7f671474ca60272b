"""An engine with negligible cost, so that the cost of processes in front of it can be measured.

It serves the part of OpenAI's API that a router needs, with one asyncio protocol and no framework. Answers
that are not streamed are sent immediately. Streams get their first token immediately and one more at every
tick, all in the same tick, as in an engine's iterations. With `--telemetry` it also reports each tick as
Penstock's engines do, so that a sidecar in front of it does all of its usual work. With `--asks` it asks the
sidecar about each request, as engines behind an Envoy do.

A simulated engine is not suitable: its prefill and step times are those of a GPU, tens of milliseconds with
noise, which would hide a router's share of a millisecond.
"""

import argparse
import asyncio
import contextlib
import json
import socket
import ssl
import time
from base64 import urlsafe_b64decode
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httptools
import uvloop
from penstock_core.domain.engine_fields import engine_calls_socket
from penstock_proto.engine_calls import DECIDED, Reply, decided_body
from penstock_proto.sidecar_calls import SidecarCall, SidecarCalls
from penstock_proto.telemetry_pb2 import StepReport

MODEL = "bench"
KV_BLOCKS, BLOCK_TOKENS = 1_000_000, 16
PROMPT_TOKENS = 8

ASKED = DECIDED.encode()
"""Header of requests about which the sidecar was asked already."""


@dataclass(eq=False, slots=True)
class OpenStream:
    """One streamed answer that has not ended.

    usage_each: whether the request wants usage in every chunk. ids: whether it wants token ids.
    call: to which its tokens are reported; None if the sidecar sent it.
    """

    transport: asyncio.Transport
    request_id: str
    chat: bool
    tokens_left: int
    usage_each: bool
    usage_last: bool
    ids: bool
    call: SidecarCall | None = None
    generated: int = 0

    def write(self, data: bytes) -> None:
        """Send an event."""
        self.transport.write(chunked(data))
        if self.call is not None:
            self.call.wrote(data)


class EngineLoop:
    """All streams, and the tick that advances them."""

    def __init__(self, step_s: float, telemetry: str | None, calls: SidecarCalls | None = None) -> None:
        self.step_s, self.calls = step_s, calls
        self.streams: dict[asyncio.Transport, OpenStream] = {}
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) if telemetry else None
        self.telemetry = telemetry
        self.sequence = 0
        if self.socket is not None:
            self.socket.setblocking(False)

    def start(self, stream: OpenStream) -> None:
        """Send the first token; keep the stream if it has more tokens."""
        stream.transport.write(STREAM_HEAD)
        self._advance(stream)

    def drop(self, transport: asyncio.Transport) -> None:
        """Remove the streams of a client that has disconnected."""
        self.streams.pop(transport, None)

    async def tick_forever(self) -> None:
        """Send one token on every stream, every `step_s`."""
        due_s = time.monotonic()
        while True:
            due_s = max(due_s + self.step_s, time.monotonic())
            await asyncio.sleep(due_s - time.monotonic())
            for stream in list(self.streams.values()):
                self._advance(stream)
            self._report()

    def _advance(self, stream: OpenStream) -> None:
        stream.generated += 1
        stream.tokens_left -= 1
        last = stream.tokens_left <= 0
        stream.write(token_event(stream, last))
        if last:
            stream.write(end_events(stream))
            stream.transport.write(b"0\r\n\r\n")
            if stream.call is not None:
                stream.call.stream_ended()
            self.streams.pop(stream.transport, None)
        else:
            self.streams[stream.transport] = stream

    def _report(self) -> None:
        if self.socket is None or self.telemetry is None:
            return
        self.sequence += 1
        streams = self.streams.values()
        report = StepReport(
            sequence=self.sequence,
            engine_instance="bench",
            duration_s=self.step_s if streams else 0.0,
            tokens=len(streams),
            context_tokens=sum(PROMPT_TOKENS + s.generated for s in streams),
            next_duration_s=self.step_s if streams else 0.0,
            kv_blocks_total=KV_BLOCKS,
            kv_blocks_free=KV_BLOCKS
            - sum(1 + (PROMPT_TOKENS + s.generated) // BLOCK_TOKENS for s in streams),
            block_tokens=BLOCK_TOKENS,
            running=len(streams),
            request_ids=[s.request_id for s in streams],
            computed_tokens=[PROMPT_TOKENS + s.generated - 1 for s in streams],
            generated_tokens=[s.generated for s in streams],
            best_effort=[False] * len(streams),
            checks_tickets=True,
        )
        with contextlib.suppress(
            OSError
        ):  # no receiver yet, or its queue is full; the next report replaces this one
            self.socket.sendto(report.SerializeToString(), self.telemetry)


class ServerConnection(asyncio.Protocol):
    """One keep-alive connection, without pipelining."""

    def __init__(self, engine: EngineLoop) -> None:
        self.engine = engine
        self.parser = httptools.HttpRequestParser(self)
        self.path, self.body = b"", b""
        self.headers: list[tuple[bytes, bytes]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.engine.drop(self.transport)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.path, self.body, self.headers = url, b"", []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        if self.parser.get_method() == b"GET":
            self.transport.write(ANSWERS.get(self.path, NOT_FOUND))
            return
        calls = self.engine.calls
        if calls is None or any(name == ASKED for name, _ in self.headers):
            self._serve(self.body, None)
            return
        call, body = calls.begin("POST", self.path.decode(), self.headers, self.body), self.body
        call.decided.add_done_callback(lambda _: self._decided(call, body))

    def _decided(self, call: SidecarCall, body: bytes) -> None:
        decision = call.decided.result()
        if isinstance(decision, Reply):
            head = b"".join(b"%b: %b\r\n" % pair for pair in decision.headers)
            self.transport.write(b"HTTP/1.1 %d X\r\n%b\r\n%b" % (decision.status, head, decision.body))
        else:
            self._serve(decided_body(body, decision), call)

    def _serve(self, body: bytes, call: SidecarCall | None) -> None:
        request = json.loads(body)
        chat = self.path == b"/v1/chat/completions"
        if request.get("stream"):
            self.engine.start(stream_of(request, self.transport, chat, call))
            return
        answer = COMPLETE_CHAT if chat else COMPLETE
        self.transport.write(answer)
        if call is not None:
            call.answered(answer.partition(b"\r\n\r\n")[2])


def stream_of(
    request: dict[str, Any], transport: asyncio.Transport, chat: bool, call: SidecarCall | None
) -> OpenStream:
    options = request.get("stream_options") or {}
    return OpenStream(
        transport,
        request_id(request.get("vllm_xargs") or {}),
        chat,
        int(request.get("max_completion_tokens") or request.get("max_tokens") or 16),
        bool(options.get("continuous_usage_stats")),
        bool(options.get("include_usage")),
        bool(request.get("return_token_ids")),
        call,
    )


def request_id(xargs: dict[str, Any]) -> str:
    """Return the sidecar's id of a request, from its ticket or its own field. Tickets are not checked."""
    ticket = xargs.get("penstock_ticket")
    if ticket is None:
        return str(xargs.get("penstock_id", "direct"))
    payload = ticket.split(".")[1]
    return str(json.loads(urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))[2]["penstock_id"])


def token_event(stream: OpenStream, last: bool) -> bytes:
    reason = "length" if last else None
    choice: dict[str, Any] = (
        {"index": 0, "delta": {"content": " word"}, "logprobs": None, "finish_reason": reason}
        if stream.chat
        else {"index": 0, "text": " word", "logprobs": None, "finish_reason": reason}
    )
    if stream.ids:
        choice["token_ids"] = [100_000 + stream.generated]
    event = {**chunk_head(stream.chat), "choices": [choice]}
    if stream.ids and stream.generated == 1:
        event["prompt_token_ids"] = list(range(PROMPT_TOKENS))
    if stream.usage_each:
        event["usage"] = usage(stream.generated)
    return b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"


def end_events(stream: OpenStream) -> bytes:
    end = b""
    if stream.usage_last:
        event = {**chunk_head(stream.chat), "choices": [], "usage": usage(stream.generated)}
        end = b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"
    return end + b"data: [DONE]\n\n"


def chunk_head(chat: bool) -> dict[str, Any]:
    kind = "chat.completion.chunk" if chat else "text_completion"
    return {"id": "cmpl-0123456789abcdef0123456789abcdef", "object": kind, "created": 0, "model": MODEL}


def usage(completion_tokens: int) -> dict[str, int]:
    total_tokens = PROMPT_TOKENS + completion_tokens
    return {
        "prompt_tokens": PROMPT_TOKENS,
        "total_tokens": total_tokens,
        "completion_tokens": completion_tokens,
    }


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def json_response(body: object) -> bytes:
    data = json.dumps(body).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(data) + data


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
ANSWERS = {
    b"/health": json_response({}),
    b"/v1/models": json_response(
        {"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": 131072}]}
    ),
    b"/version": json_response({"version": "bench"}),
    b"/metrics": b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 0\r\n\r\n",
}
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
COMPLETE_CHAT = json_response(
    {
        **chunk_head(chat=True),
        "object": "chat.completion",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": " word"}, "finish_reason": "length"}
        ],
        "usage": usage(1),
    }
)
COMPLETE = json_response(
    {
        **chunk_head(chat=False),
        "choices": [{"index": 0, "text": " word", "logprobs": None, "finish_reason": "length"}],
        "usage": usage(1),
    }
)


async def serve(
    port: int, step_s: float, telemetry: str | None, tls: ssl.SSLContext | None, *, asks: bool
) -> None:
    calls = SidecarCalls(Path(engine_calls_socket(str(telemetry)))) if asks else None
    connecting = asyncio.create_task(calls.run()) if calls else None  # noqa: F841
    engine = EngineLoop(step_s, telemetry, calls)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: ServerConnection(engine), "127.0.0.1", port, backlog=2048, ssl=tls
    )
    print(f"ready {server.sockets[0].getsockname()[1]}", flush=True)
    await engine.tick_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--step-ms", type=float, default=30.0, help="time between two tokens of a stream")
    parser.add_argument("--telemetry", help="Unix socket of a sidecar, for step reports")
    parser.add_argument("--asks", action="store_true", help="ask the sidecar about each request")
    parser.add_argument("--ssl-certfile", help="serve TLS with this certificate")
    parser.add_argument("--ssl-keyfile", help="key of the certificate")
    options = parser.parse_args()
    tls = None
    if options.ssl_certfile:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(options.ssl_certfile, options.ssl_keyfile)
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(serve(options.port, options.step_ms / 1000, options.telemetry, tls, asks=options.asks))


if __name__ == "__main__":
    main()
