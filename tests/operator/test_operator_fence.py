"""No write leaves an operator that may not write."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from lightkube.config.kubeconfig import KubeConfig
from lightkube.config.models import Cluster, User
from penstock_operator.cluster.api_client import Api
from penstock_operator.cluster.lease import LeaseLost
from penstock_operator.manifests.manifest import Manifest, Ref

MADE: Manifest = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "chat", "namespace": "team", "resourceVersion": "1"},
    "data": {"a": "x" * 100},
}
REF = Ref("v1", "ConfigMap", "team", "chat")

WRITES: list[Callable[[Api], Awaitable[object]]] = [
    lambda api: api.apply(MADE),
    lambda api: api.apply(MADE, subresource="status"),
    lambda api: api.overwrite(MADE),
    lambda api: api.put(MADE),
    lambda api: api.create(MADE),
    lambda api: api.delete(REF, "uid"),
]


class Server:
    """A server that answers every request with an empty object, and records the requests."""

    def __init__(self) -> None:
        self.got = b""
        self.idle = asyncio.Event()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while chunk := await reader.read(65536):
                self.got += chunk
                if self.got.startswith(b"GET") or self.got.endswith(b"}"):
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        finally:
            writer.close()
            self.idle.set()


async def sent(use: Callable[[Api], Awaitable[object]], fence: Callable[[], None]) -> tuple[bytes, bool]:
    """Return the requests that reach the API server, and whether the Lease was found lost."""
    server = Server()
    async with await asyncio.start_server(server.answer, "127.0.0.1", 0) as listening:
        cluster = Cluster(server=f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}")
        access = KubeConfig.from_one(cluster=cluster, user=User()).get()
        assert access is not None
        api = Api(access, fence)
        try:
            await use(api)
        except LeaseLost:
            return server.got, True
        finally:
            await api.close()
            await server.idle.wait()
    return server.got, False


class Held:
    """A Lease that is lost after this many checks."""

    def __init__(self, checks: int) -> None:
        self._left = checks

    def check(self) -> None:
        if self._left == 0:
            raise LeaseLost
        self._left -= 1


@pytest.mark.parametrize("write", WRITES)
def test_no_byte_of_a_write_is_sent_without_the_lease(write: Callable[[Api], Awaitable[object]]) -> None:
    assert asyncio.run(sent(write, Held(0).check)) == (b"", True)


@pytest.mark.parametrize("write", WRITES)
def test_a_write_is_not_completed_if_the_lease_is_lost_meanwhile(
    write: Callable[[Api], Awaitable[object]],
) -> None:
    got, lost = asyncio.run(sent(write, Held(1).check))
    assert lost
    assert b"{" not in got


@pytest.mark.parametrize("write", WRITES)
def test_a_write_is_sent_while_the_lease_is_held(write: Callable[[Api], Awaitable[object]]) -> None:
    got, lost = asyncio.run(sent(write, Held(2).check))
    assert not lost
    assert got.endswith(b"}")


def test_reading_needs_no_lease() -> None:
    got, lost = asyncio.run(sent(lambda api: api.get(REF), Held(0).check))
    assert not lost
    assert got.startswith(b"GET")
