"""The ext_proc server: duration and number of conversations, and its health."""

import asyncio
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import orjson
import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as proc
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as proc_grpc
from gateway.picking import chat, picker_of
from gateway.replica import HttpReplica
from grpc_health.v1 import health_pb2, health_pb2_grpc
from patience import eventually
from penstock_picker import ext_proc
from penstock_picker.picker import Picker
from penstock_pool import Pool
from penstock_routing.applications.usage_ledger import LimitDecision, Ticket
from penstock_routing.flags import Certificate
from penstock_routing.settings import settings_of
from penstock_runtime.serving import StartError
from scripted.router import pool_with
from self_signed import Identity
from structlog.testing import capture_logs

BODY = orjson.dumps(chat())
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


def request_headers(path: str = "/v1/chat/completions") -> proc.ProcessingRequest:
    message = proc.ProcessingRequest(request_headers=proc.HttpHeaders())
    for name, value in ((":method", "POST"), (":path", path), ("authorization", "Bearer sk-ide")):
        message.request_headers.headers.headers.add(key=name, raw_value=value.encode())
    return message


def request_body(body: bytes = BODY) -> proc.ProcessingRequest:
    return proc.ProcessingRequest(request_body=proc.HttpBody(body=body, end_of_stream=True))


@dataclass
class Front:
    """A server, as gateways see it. ready: what the picker says of itself."""

    address: str
    channel: grpc.aio.Channel
    ready: list[bool]

    def conversation(self) -> Any:
        """One stream of it, as the client library has it."""
        return proc_grpc.ExternalProcessorStub(self.channel).Process()

    async def endpoints(self) -> str:
        """Return the answers of a whole conversation."""
        stream = self.conversation()
        await stream.write(request_headers())
        await stream.write(request_body())
        first, *_ = [answer async for answer in stream]
        reported: str = first.dynamic_metadata["envoy.lb"]["x-gateway-destination-endpoint"]
        return reported

    async def health(self, service: str) -> int:
        request = health_pb2.HealthCheckRequest(service=service)
        status: int = (await health_pb2_grpc.HealthStub(self.channel).Check(request)).status
        return status


@asynccontextmanager
async def front_of(picker: Picker, certificate: Certificate | None = None) -> AsyncIterator[Front]:
    ready = [True]
    loop = asyncio.get_running_loop()
    with ext_proc.ext_proc(picker, lambda: ready[0], "127.0.0.1:0", loop, certificate) as port:
        address = f"127.0.0.1:{port}"
        async with grpc.aio.insecure_channel(address) as channel:
            yield Front(address, channel, ready)


async def test_the_stream_ends_with_the_endpoints() -> None:
    r0 = HttpReplica("r0")
    async with picker_of((r0,)) as picker, front_of(picker) as front:
        assert await front.endpoints() == f"{r0.endpoint},{r0.endpoint}"


async def test_a_message_out_of_order_is_an_invalid_argument() -> None:
    async with picker_of(()) as picker, front_of(picker) as front:
        stream = front.conversation()
        await stream.write(request_body())
        assert await stream.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert await stream.details() == "request_body in the state begin"


@pytest.mark.parametrize("service", ["", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor"])
async def test_services_serve_while_a_replica_takes_requests(service: str) -> None:
    async with picker_of(()) as picker, front_of(picker) as front:
        assert await front.health(service) == SERVING
        front.ready[0] = False
        assert await front.health(service) == NOT_SERVING
        assert await front.health("liveness") == SERVING


async def test_the_health_of_other_services_is_unknown() -> None:
    async with picker_of(()) as picker, front_of(picker) as front:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await front.health("other")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert caught.value.details() == "there is no service 'other'"


async def test_conversations_over_the_bound_are_refused_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ext_proc, "CONVERSATIONS", 1)
    r0 = HttpReplica("r0")
    async with picker_of((r0,)) as picker, front_of(picker) as front:
        held = front.conversation()
        await held.write(request_headers())
        refused = front.conversation()
        assert await refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await held.write(request_body())
        assert (await held.read()).WhichOneof("response") == "request_headers"


class Context:
    """A conversation's context, which counts its ends."""

    def __init__(self) -> None:
        self.cancelled = 0

    def cancel(self) -> None:
        self.cancelled += 1


async def test_a_conversation_may_last_as_long_as_a_body_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(ext_proc, "monotonic", lambda: now_s)
    context = Context()
    async with picker_of((HttpReplica("r0"),)) as picker:
        processor = ext_proc.ExternalProcessor(picker, asyncio.get_running_loop())

        def slow_client() -> Iterator[proc.ProcessingRequest]:
            nonlocal now_s
            yield request_headers()
            now_s += picker.body_timeout_s
            processor.sweep()
            assert context.cancelled == 0
            now_s += 0.001
            processor.sweep()
            assert context.cancelled == 1
            yield request_body()

        assert list(processor.Process(slow_client(), context))  # type: ignore[arg-type]
        processor.sweep()
        assert context.cancelled == 1


async def test_conversations_are_swept_while_they_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ext_proc, "SWEEP_S", 0.01)
    pool = pool_with()
    settings = replace(settings_of(pool), body_timeout_s=0.05)
    async with picker_of((), pool, settings=settings) as picker, front_of(picker) as front:
        stream = front.conversation()
        await stream.write(request_headers())
        assert await stream.code() is grpc.StatusCode.CANCELLED


async def test_a_stopped_server_leaves_no_sweeper_thread() -> None:
    def sweepers() -> int:
        return sum(thread.name == ext_proc.SWEEPER for thread in threading.enumerate())

    async with picker_of(()) as picker:
        await eventually(lambda: sweepers() == 0)  # those of other tests have ended
        async with front_of(picker):
            assert sweepers() == 1
        await eventually(lambda: sweepers() == 0)


class AllPickers:
    """Limits over all pickers, with room. loops: on which it was asked."""

    def __init__(self) -> None:
        self.loops: list[asyncio.AbstractEventLoop] = []

    async def ask(self, application: str, tokens: int) -> LimitDecision | None:
        self.loops.append(asyncio.get_running_loop())
        return None

    def ended(self, application: str, ticket: Ticket | None, tokens: int) -> None:
        pass


async def test_shared_limits_are_checked_on_the_replicas_event_loop() -> None:
    ide = {"name": "ide", "tier": "chat", "keys": {"file": "k"}, "limits": {"requestsPerMinute": 5}}
    pool: Pool = pool_with(applications=[ide])
    shared, r0 = AllPickers(), HttpReplica("r0")
    keys = {"sk-ide": pool.spec.applications[0]}
    async with picker_of((r0,), pool, keys, shared_limits=shared) as picker, front_of(picker) as front:
        assert await front.endpoints() == r0.endpoint
        assert shared.loops == [asyncio.get_running_loop()]


async def test_a_port_is_used_by_one_picker_and_named_in_the_error() -> None:
    loop = asyncio.get_running_loop()
    async with picker_of(()) as picker, front_of(picker) as front:
        with (
            pytest.raises(StartError, match=f"^cannot listen on {front.address}: "),
            ext_proc.ext_proc(picker, lambda: True, front.address, loop),
        ):
            pass


async def shown(address: str) -> bytes:
    """The certificate that a client sees."""
    host, port = address.split(":")
    return ssl.PEM_cert_to_DER_cert(await asyncio.to_thread(ssl.get_server_certificate, (host, int(port))))


async def test_renewed_certificates_are_shown_and_unreadable_ones_change_nothing(tmp_path: Path) -> None:
    identity = Identity(tmp_path)
    async with picker_of(()) as picker, front_of(picker, Certificate(identity.cert, identity.key)) as front:
        assert await shown(front.address) == identity.shown
        identity.renew()
        renewed = identity.shown
        assert await shown(front.address) == renewed
        identity.cert.unlink()
        with capture_logs() as logs:
            assert await shown(front.address) == renewed
        reported = [(line["event"], line["file"], line["why"]) for line in logs]
        assert reported == [("certificate unreadable", str(identity.cert), "No such file or directory")]


async def test_a_certificate_that_cannot_be_read_is_an_error_at_the_start(tmp_path: Path) -> None:
    missing = Certificate(tmp_path / "tls.crt", tmp_path / "tls.key")
    async with picker_of(()) as picker:
        with pytest.raises(FileNotFoundError):
            async with front_of(picker, missing):
                pass
