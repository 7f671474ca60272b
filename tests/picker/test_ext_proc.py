"""The ext_proc server: duration and number of conversations, and its health."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import orjson
import pytest
from authority import make_certificates
from envoy.service.ext_proc.v3 import external_processor_pb2 as proc
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as proc_grpc
from gateway.picking import chat, picker_of
from gateway.replica import HttpReplica
from grpc_by_hand import Pair
from grpc_health.v1 import health_pb2, health_pb2_grpc
from loop_time import turns
from patience import eventually
from penstock_picker import ext_proc
from penstock_picker.picker import Picker
from penstock_pool import Pool
from penstock_routing.applications.usage_ledger import LimitDecision, Ticket
from penstock_routing.flags import Certificate
from penstock_routing.settings import settings_of
from penstock_runtime.serving import address_of, listen
from penstock_runtime.tls import server_context
from scripted.router import pool_with
from self_signed import Identity
from structlog.testing import capture_logs

BODY = orjson.dumps(chat())
PROCESS = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
REFUSED = "penstock_picker_refused_total"
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

    async def answers(self) -> list[proc.ProcessingResponse]:
        """Return the answers of a whole conversation."""
        stream = self.conversation()
        await stream.write(request_headers())
        await stream.write(request_body())
        return [answer async for answer in stream]

    async def endpoints(self) -> str:
        """Return the endpoints of a whole conversation."""
        first, *_ = await self.answers()
        reported: str = first.dynamic_metadata["envoy.lb"]["x-gateway-destination-endpoint"]
        return reported

    async def health(self, service: str) -> int:
        request = health_pb2.HealthCheckRequest(service=service)
        status: int = (await health_pb2_grpc.HealthStub(self.channel).Check(request)).status
        return status


@asynccontextmanager
async def front_of(picker: Picker, certificate: Certificate | None = None) -> AsyncIterator[Front]:
    ready, listener = [True], listen("127.0.0.1", 0)
    address = address_of(listener)
    pair = certificate
    tls = None if pair is None else server_context(pair.cert, pair.key, protocol="h2")
    async with (
        ext_proc.ext_proc_serving(picker, lambda: ready[0], listener, tls),
        grpc.aio.insecure_channel(address) as channel,
    ):
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


async def test_a_conversation_lasts_no_longer_than_a_body_may_take() -> None:
    settings = replace(settings_of(pool_with()), body_timeout_s=0.05)
    async with picker_of((), settings=settings) as picker, front_of(picker) as front:
        stream = front.conversation()
        await stream.write(request_headers())
        assert await stream.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert await stream.details() == "the request took too long to arrive"


async def test_a_body_over_the_bound_is_refused_and_counted() -> None:
    settings = replace(settings_of(pool_with()), max_body_bytes=10)
    async with picker_of((), settings=settings) as picker, front_of(picker) as front:
        stream = front.conversation()
        await stream.write(request_headers())
        await stream.write(request_body())
        refusal = (await stream.read()).immediate_response
        assert refusal.status.code == 413
        headers = {each.header.key: each.header.raw_value for each in refusal.headers.set_headers}
        assert headers["x-should-retry"] == b"false" and headers["x-request-id"]
        counted = picker.metrics.registry.get_sample_value("penstock_picker_refused_total", {"status": "413"})
        assert counted == 1


async def test_bodies_are_held_within_one_budget() -> None:
    settings = replace(settings_of(pool_with()), buffer_bytes=len(BODY))
    async with picker_of((), settings=settings) as picker, front_of(picker) as front:
        held = front.conversation()
        await held.write(request_headers())
        await held.write(proc.ProcessingRequest(request_body=proc.HttpBody(body=BODY[:-1])))
        await eventually(lambda: picker.budget.held_bytes == len(BODY) - 1)
        (refusal,) = await front.answers()
        assert refusal.immediate_response.status.code == 429
        assert "x-request-id" in str(refusal.immediate_response.headers)
        assert orjson.loads(refusal.immediate_response.body)["error"]["code"] == "router_full"
        held.cancel()
        await eventually(lambda: picker.budget.held_bytes == 0)
        assert (await front.answers())[0].immediate_response.status.code == 503


async def test_a_body_in_one_message_counts_while_it_arrives() -> None:
    settings = replace(settings_of(pool_with()), buffer_bytes=80_000)
    async with picker_of((), settings=settings) as picker:
        first, second = (
            Pair(ext_proc.handlers_of(picker, lambda: True), ext_proc.bounds_of(picker)) for _ in range(2)
        )
        held, refused = first.open(PROCESS), second.open(PROCESS)
        for pair, call in ((first, held), (second, refused)):
            await call.write(request_headers())
            await pair.settle()
            await call.write(request_body(bytes(64_000)))
        first.carry(60_000)
        assert picker.budget.held_bytes == 3 * 16_384  # as frames arrive
        second.carry(50_000)
        await turns()
        second.near.data_received(bytes(second.far_cable.waiting))
        answer = await refused.next(proc.ProcessingResponse)
        assert answer is not None and answer.immediate_response.status.code == 429
        assert picker.metrics.registry.get_sample_value(REFUSED, {"status": "429"}) == 1
        assert picker.budget.held_bytes == 3 * 16_384
        first.lose()
        second.lose()
        await turns()
        assert picker.budget.held_bytes == 0


async def test_a_gateway_that_leaves_ends_its_conversation() -> None:
    async with picker_of(()) as picker, front_of(picker) as front:
        left = front.conversation()
        await left.write(request_headers())
        left.cancel()
        assert (await front.answers())[0].immediate_response.status.code == 503


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


async def test_a_gateway_asks_over_tls(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    certificate = Certificate(tmp_path / "node.pem", tmp_path / "node.key")
    trusted = grpc.ssl_channel_credentials((tmp_path / "ca.pem").read_bytes())
    r0 = HttpReplica("r0")
    async with (
        picker_of((r0,)) as picker,
        front_of(picker, certificate) as front,
        grpc.aio.secure_channel(front.address, trusted) as channel,
    ):
        assert await replace(front, channel=channel).endpoints() == f"{r0.endpoint},{r0.endpoint}"


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
        assert reported == [("files not renewed", str(identity.cert), "No such file or directory")]
