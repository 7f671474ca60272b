"""Placements that routers share through a real Redis, which stops and restarts."""

import asyncio
import signal
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
from live.redis import RedisServer, connected
from patience import PATIENCE_S, eventually
from penstock_routing.connections.backoff import Backoff
from penstock_routing.replicas import shared_placements
from penstock_routing.replicas.peer_placements import PeerLoad
from penstock_routing.replicas.shared_placements import SharedPlacements
from redis.asyncio import Redis
from structlog.testing import capture_logs


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.kill()


class Router:
    """One router's part, with the placements that it has received."""

    def __init__(self, url: Callable[[], str], channel: str = "pool") -> None:
        self.received_loads: list[tuple[str, PeerLoad]] = []
        backoff = Backoff(Random(1), 0.01, 0.1)
        self.shared = SharedPlacements(url, channel, backoff)

    async def run(self) -> None:
        await self.shared.run(lambda *reported: self.received_loads.append(reported), lambda: None)

    @property
    def requests(self) -> int:
        return sum(placed.requests for _, placed in self.received_loads)


async def publish_until_received(sender: Router, listener: Router) -> None:
    """Messages may be lost around an outage; later ones are not."""
    before = listener.requests
    async with asyncio.timeout(PATIENCE_S):
        while listener.requests == before:
            sender.shared.placed("r0", 1)
            await asyncio.sleep(0.01)


async def test_a_routers_placements_are_received_by_the_others_only(
    redis: RedisServer,
) -> None:
    a, b, c = (Router(lambda: redis.url) for _ in range(3))
    async with connected(a, b, c):
        a.shared.placed("r0", 100)
        a.shared.placed("r0", 50)
        a.shared.placed("r1", 7)
        for other in (b, c):
            await eventually(lambda other=other: other.requests == 3)  # type: ignore[misc]
            assert other.received_loads == [("r0", PeerLoad(2, 150)), ("r1", PeerLoad(1, 7))]
        assert a.received_loads == []


async def test_pools_do_not_receive_each_others_placements(redis: RedisServer) -> None:
    a, b, other = Router(lambda: redis.url), Router(lambda: redis.url), Router(lambda: redis.url, "another")
    async with connected(a, b, other):
        await publish_until_received(a, b)
        assert other.received_loads == []


async def test_a_killed_redis_is_logged_once_and_used_again(redis: RedisServer) -> None:
    a, b = Router(lambda: redis.url), Router(lambda: redis.url)
    with capture_logs() as output:
        async with connected(a, b):
            await publish_until_received(a, b)
            redis.kill()
            await eventually(lambda: not a.shared.connected and not b.shared.connected)
            a.shared.placed("r0", 1)  # without a listener, nothing is kept
            received = len(b.received_loads)
            redis.start()
            await eventually(lambda: a.shared.connected and b.shared.connected)
            assert len(b.received_loads) == received
            await publish_until_received(a, b)
    assert len([line for line in output if line["event"] == "redis unavailable"]) == 2  # one for each router


async def test_a_redis_that_hangs_is_treated_as_unavailable(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in {"HEARTBEAT_S": 0.05, "SILENCE_S": 0.3, "ANSWER_S": 0.3}.items():
        monkeypatch.setattr(shared_placements, name, seconds)
    a, b = Router(lambda: redis.url), Router(lambda: redis.url)
    async with connected(a, b):
        redis.signal(signal.SIGSTOP)
        await eventually(lambda: not a.shared.connected and not b.shared.connected)
        redis.signal(signal.SIGCONT)
        await eventually(lambda: a.shared.connected and b.shared.connected)
        await publish_until_received(a, b)


async def test_foreign_messages_are_ignored(redis: RedisServer) -> None:
    a, b = Router(lambda: redis.url), Router(lambda: redis.url)
    async with connected(a, b), Redis.from_url(redis.url) as stranger:
        for message in (
            b"",
            b"[]",
            b'"x"',
            b'{"router": 1}',
            b'{"router": "x", "placed": {"r0": 7}}',
            b"\xff",
        ):
            await stranger.publish("pool", message)
        await stranger.publish("pool", b" " * (shared_placements.MESSAGE_BYTES + 1))
        await publish_until_received(a, b)
        assert {name for name, _ in b.received_loads} == {"r0"}
        assert a.shared.connected and b.shared.connected


async def test_a_renewed_password_is_read_again(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, password="right")
    server.start()
    url = tmp_path / "url"
    url.write_text(server.url.replace("right", "old"))
    router = Router(url.read_text)
    with capture_logs() as output:
        task = asyncio.create_task(router.run())
        await eventually(lambda: any(line["event"] == "redis unavailable" for line in output))
        url.write_text(server.url)
        await eventually(lambda: router.shared.connected)
        task.cancel()
        await asyncio.wait([task])
    server.kill()
    assert "old" not in str(output) and "right" not in str(output)


@pytest.fixture
def certificate(tmp_path: Path) -> ssl.SSLContext:
    """A server's context; its own authority is cert.pem."""
    new = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=redis"
    names = "-addext subjectAltName=IP:127.0.0.1 -keyout key.pem -out cert.pem"
    subprocess.run(["openssl", *f"{new} {names}".split()], cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    return context


async def test_the_connection_to_redis_uses_tls(
    redis: RedisServer, certificate: ssl.SSLContext, tmp_path: Path
) -> None:
    async with tls_in_front(redis.port, certificate) as port:
        url = f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={tmp_path / 'cert.pem'}"
        a, b = Router(lambda: url), Router(lambda: url)
        async with connected(a, b):
            await publish_until_received(a, b)


@asynccontextmanager
async def tls_in_front(port: int, context: ssl.SSLContext) -> AsyncIterator[int]:
    """Yield a port that accepts TLS and forwards to a plain one."""

    async def pipe(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            sink.write(data)
        sink.close()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pipe(reader, inner_writer), pipe(inner_reader, writer), return_exceptions=True)

    server = await asyncio.start_server(carry, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]
