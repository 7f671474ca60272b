"""A replica served over real gRPC, in front of an engine that a test controls, over real HTTP."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
import orjson
import pytest
from patience import eventually
from penstock_core.domain.policy import Policy, Step
from penstock_core.domain.replica_view import KvCache, Limits, ReplicaView
from penstock_core.domain.request import Job
from penstock_core.domain.slo import Slo, Tier
from penstock_core.domain.verdict import Admitted, Verdict
from penstock_core.timing.time_model import Term, TimeModel
from penstock_proto import replica_pb2 as wire
from penstock_proto import replica_pb2_grpc
from penstock_sidecar.bounds import Bounds
from penstock_sidecar.engine.client import EngineClient
from penstock_sidecar.engine.watch import EngineWatch
from penstock_sidecar.metrics import Metrics
from penstock_sidecar.mirror.holding_mirror import HoldingMirror
from penstock_sidecar.mirror.replica_mirror import ReplicaMirror
from penstock_sidecar.options import Address
from penstock_sidecar.release.gate import ReleaseGate
from penstock_sidecar.replica.replica import Replica
from penstock_sidecar.replica.serving import Serving
from penstock_sidecar.requests.estimates import Estimates
from penstock_sidecar.requests.tickets import Tickets
from penstock_sidecar.service.grpc_server import service_serving
from penstock_sidecar.service.health import Health
from penstock_sidecar.service.replica_service import Identity, ReplicaService
from penstock_sidecar.telemetry.step_reports import StepReports
from prometheus_client import CollectorRegistry

TOKEN = b'data: {"choices":[{"index":0,"text":"wort"}]}\n\n'
DONE = b"data: [DONE]\n\n"
SLOTS = 2
"""Slots of an engine that is fed by the gate."""

MODEL = TimeModel("test", (Term(0.0001, 0.01),))
TIERS = {
    "chat": Tier("chat", Slo(ttft_s=1.0, tpot_s=0.1)),
    "slow": Tier("slow", Slo(ttft_slowdown=5.0)),
    "batch": Tier("batch", best_effort=True),
}


class Exchange:
    """One request at the engine: its body, and the means to answer it piece by piece."""

    def __init__(self, path: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter) -> None:
        self.path, self.headers, self.raw = path, headers, body
        self.body: dict[str, Any] = orjson.loads(body) if body else {}
        self.closed, self.over = asyncio.Event(), asyncio.Event()
        self._writer = writer

    @property
    def key(self) -> str:
        return str(self.body["vllm_xargs"]["penstock_id"])

    async def begin(self, status: int = 200, content_type: str = "text/event-stream") -> None:
        head = f"HTTP/1.1 {status} X\r\ncontent-type: {content_type}\r\ntransfer-encoding: chunked\r\n\r\n"
        await self._write(head.encode())

    async def send(self, data: bytes) -> None:
        await self._write(b"%x\r\n%s\r\n" % (len(data), data))

    async def end(self) -> None:
        self.over.set()
        await self._write(b"0\r\n\r\n")

    def die(self) -> None:
        self._writer.transport.abort()

    async def _write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()


Script = Callable[[Exchange], Awaitable[None]]


async def _ended(reader: asyncio.StreamReader) -> None:
    """Until the client closes its connection, or loses it."""
    with contextlib.suppress(ConnectionError):
        await reader.read(1)


class Engine:
    """An HTTP engine of a test's making. Requests go to `script`; without one the test answers them."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self.script: Script | None = None
        self.healthy = True
        self.card: dict[str, Any] = {"id": "m", "max_model_len": 4096}
        self.metrics_page: bytes | None = None
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def stop_listening(self) -> None:
        """As an engine that drains: it accepts no new connections, open ones continue."""
        assert self._server is not None
        self._server.close()

    async def kill(self) -> None:
        """As after kill -9: no process listens, every connection is reset."""
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._server.wait_closed()

    async def asked(self, number: int = 1) -> Exchange:
        """The request of this number, once it has come."""
        await eventually(lambda: len(self.exchanges) >= number)
        return self.exchanges[number - 1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while await self._exchange(reader, writer):
                    pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        path = head[0].split(" ")[1]
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:])}
        body = await reader.readexactly(int(headers.get("content-length") or 0))
        exchange = Exchange(path, headers, body, writer)
        if path == "/metrics":
            await exchange.begin(404 if self.metrics_page is None else 200, "text/plain")
            await exchange.send(self.metrics_page or b"none")
            await exchange.end()
            return True
        if path in ("/health", "/v1/models"):
            await self._probed(exchange)
            return True
        self.exchanges.append(exchange)
        task = asyncio.create_task(self._scripted(exchange))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        gone = asyncio.create_task(_ended(reader))
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            exchange.closed.set()
            task.cancel()
            return False
        gone.cancel()
        await asyncio.wait({gone})
        return not writer.is_closing()

    async def _probed(self, exchange: Exchange) -> None:
        body = json.dumps({"data": [self.card]}).encode()
        await exchange.begin(200 if self.healthy else 503, "application/json")
        await exchange.send(body)
        await exchange.end()

    async def _scripted(self, exchange: Exchange) -> None:
        if self.script is None:
            await exchange.over.wait()
        else:
            await self.script(exchange)


class AdmitsAll:
    """A policy that admits every request; a test may give it other `answers`, or `break` it."""

    def __init__(self) -> None:
        self.views: list[ReplicaView] = []
        self.asked: list[list[Job]] = []
        self.answers: Callable[[Job], Verdict] = lambda _: Admitted(0.25, 0.05)

    def start(self) -> None:
        return None

    def admit(self, view: ReplicaView, new: Sequence[Job]) -> Sequence[Verdict]:
        if new:
            self.views.append(view)
            self.asked.append(list(new))
        return [self.answers(job) for job in new]

    def step(self, view: ReplicaView, memory: None) -> tuple[Step, None]:
        raise AssertionError("the engine steps, not the sidecar")


class Router:
    """A router's end of one session."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        self.stub = replica_pb2_grpc.ReplicaStub(self._channel)
        self.call = self.stub.Session()
        self.frames: list[wire.ReplicaFrame] = []
        self.events: dict[int, list[wire.Event]] = {}
        self._reading: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self.read()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.call.cancel()
        if self._reading is not None:
            await asyncio.wait({self._reading})
        await self._channel.close()

    def read(self) -> None:
        self._reading = asyncio.create_task(self._read())

    async def submit(self, id: int, body: dict[str, Any] | bytes | None = None, **more: Any) -> None:
        await self.send(wire.RouterFrame(submits=[submit(id, body, **more)]))

    async def send(self, frame: wire.RouterFrame) -> None:
        await self.call.write(frame)

    async def cancel(self, id: int) -> None:
        await self.send(wire.RouterFrame(cancels=[id]))

    async def first(self, id: int) -> wire.Event:
        """A request's first event."""
        await eventually(lambda: bool(self.events.get(id)))
        return self.events[id][0]

    async def ended(self, id: int) -> wire.Event:
        """A request's last event."""
        await eventually(lambda: _ends(self.events.get(id, [])))
        return self.events[id][-1]

    def kinds(self, id: int) -> list[str]:
        return [str(event.WhichOneof("kind")) for event in self.events.get(id, [])]

    def data(self, id: int) -> bytes:
        return b"".join(event.output.data for event in self.events.get(id, []))

    async def _read(self) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
            async for frame in self.call:
                self.frames.append(frame)
                for event in frame.events:
                    self.events.setdefault(event.id, []).append(event)


def _ends(events: list[wire.Event]) -> bool:
    return bool(events) and events[-1].WhichOneof("kind") in ("rejected", "finished", "failed")


def submit(id: int, body: dict[str, Any] | bytes | None = None, **more: Any) -> wire.Submit:
    """A submit of a small streamed completion, unless given otherwise."""
    if body is None:
        body = {"model": "m", "prompt": [1, 2, 3], "max_tokens": 5, "stream": True}
    fields = {"request_id": f"r{id}", "endpoint": wire.ENDPOINT_COMPLETIONS, "tier": "chat", "hop": 1, **more}
    return wire.Submit(id=id, body=body if isinstance(body, bytes) else orjson.dumps(body), **fields)


class Rig:
    """Engine, replica and routers, wired."""

    def __init__(
        self,
        engine: Engine,
        bounds: Bounds,
        reads_fields: bool,
        held_by: Policy[Any] | None = None,
        *,
        ticket_key: bytes = b"",
    ) -> None:
        self.ticket_key = ticket_key
        self.engine, self.bounds, self.reads_fields = engine, bounds, reads_fields
        self.policy = AdmitsAll()
        self.registry = CollectorRegistry()
        self.metrics = Metrics(self.registry)
        self.estimates = Estimates(MODEL)
        self.mirror = ReplicaMirror(KvCache(1000, 1000, 16), Limits(), self.estimates.longer_output_tokens)
        self.gate: ReleaseGate | None = None
        if held_by is not None:
            self.mirror = holding = HoldingMirror(
                KvCache(1000, 1000, 16), Limits(running=SLOTS), self.estimates.longer_output_tokens
            )
            self.gate = ReleaseGate(held_by, holding, self.estimates, bounds=bounds, metrics=self.metrics)
        self.address = ""
        self.replica: Replica
        self.client: EngineClient
        self.reports: StepReports
        self.service: ReplicaService

    def router(self) -> Router:
        return Router(self.address)

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"penstock_replica_{name}", labels) or 0.0

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        async with EngineClient(f"http://127.0.0.1:{self.engine.port}", self.bounds) as client:
            serving = Serving(self.policy, TIERS, self.reads_fields, 8192)
            self.client = client
            watch = EngineWatch(
                client.probe, last_received_s=lambda: self.mirror.last_received_s, bounds=self.bounds
            )
            health = Health()
            self.replica = Replica(
                serving,
                self.mirror,
                self.estimates,
                client,
                metrics=self.metrics,
                bounds=self.bounds,
                gate=self.gate,
                tickets=Tickets(self.ticket_key, lambda: self.mirror.live and self.mirror.checks_tickets),
                engine_lost=watch.suspect,
                serves_changed=health.set_serving,
            )
            self.reports = StepReports(
                self.mirror,
                self.estimates,
                self.metrics,
                self.replica.accepted.prompt_known,
                applied=self.replica.send_progress,
            )
            self.service = ReplicaService(
                Identity("r0", "m", "everybody"),
                self.replica,
                self.mirror,
                self.estimates,
                self.metrics,
                detokenize=client.detokenize,
            )
            watching = asyncio.create_task(watch.run(self.replica.engine_up, self.replica.engine_down))
            async with service_serving(self.service, health, Address("127.0.0.1", 0), None) as address:
                self.address = str(address)
                await eventually(lambda: self.replica.state.engine_ready)
                yield
                await self.replica.close()
            watching.cancel()
            await asyncio.wait({watching})


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    scripted = Engine()
    await scripted.start()
    yield scripted
    await scripted.kill()


@pytest.fixture
def bounds() -> Bounds:
    """A test file may override this."""
    return replace(Bounds(), probe_s=0.05)


@pytest.fixture
async def rig(engine: Engine, bounds: Bounds) -> AsyncIterator[Rig]:
    made = Rig(engine, bounds, reads_fields=True)
    async with made.serving():
        yield made


@pytest.fixture
async def router(rig: Rig) -> AsyncIterator[Router]:
    async with rig.router() as connected:
        yield connected


@pytest.fixture
def socket_path(tmp_path: Path) -> Path:
    return tmp_path / "steps.sock"
