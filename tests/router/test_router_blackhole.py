"""A replica's host that vanishes: no end, no reset, and no answer to any packet."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import Random

from patience import eventually
from penstock_core.domain.slo import Tier
from penstock_proto import replica_pb2 as wire
from penstock_routing.connections.backoff import Backoff
from penstock_routing.replicas.link_state import LinkState
from penstock_routing.replicas.replica_link import ReplicaLink
from penstock_routing.replicas.session_writer import Attempt
from penstock_routing.replicas.upstream_request import Lost
from penstock_routing.request.generation_request import GenerationRequest
from penstock_runtime.grpc.bounds import GrpcBounds
from penstock_runtime.grpc.client import Channel
from scripted.replica import ScriptedReplica, is_silent

SPED_UP = GrpcBounds(ping_s=0.5, pong_s=0.25)
"""Waits of a twentieth: else the test would take a quarter of a minute."""


class Network:
    """The network between a router and a replica. swallows: accepts all bytes and forwards none."""

    def __init__(self, port: int) -> None:
        self._port, self.swallows = port, False
        self._flows: set[asyncio.Task[None]] = set()

    async def __call__(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        server, to_server = await asyncio.open_connection("127.0.0.1", self._port)
        flows = [
            asyncio.create_task(self._flow(*ends)) for ends in ((client, to_server), (server, to_client))
        ]
        self._flows.update(flows)
        await asyncio.wait(flows)
        for end in (to_server, to_client):
            end.transport.abort()

    async def _flow(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await source.read(2**16):
                if not self.swallows:
                    sink.write(data)

    def fall(self) -> None:
        for flow in self._flows:
            flow.cancel()


@asynccontextmanager
async def linked(replica: ScriptedReplica) -> AsyncIterator[tuple[ReplicaLink, Network]]:
    """A link to a replica, over a network that a test may cut."""
    await replica.start()
    network = Network(replica.port)
    between = await asyncio.start_server(network, "127.0.0.1", 0)
    host, port = between.sockets[0].getsockname()
    backoff = Backoff(Random(1), 0.005, 0.02)
    link = ReplicaLink("r0", f"{host}:{port}", lambda address: Channel(address, bounds=SPED_UP), backoff)
    running = asyncio.create_task(link.run())
    await eventually(lambda: link.state is LinkState.READY)
    yield link, network
    running.cancel()
    network.fall()
    between.close()
    await asyncio.wait([running])
    await replica.die()


async def test_a_host_that_vanishes_is_detected_by_pings_and_reconnected() -> None:
    replica = ScriptedReplica("r0", is_silent)
    async with linked(replica) as (link, network):
        request = GenerationRequest("id", wire.ENDPOINT_COMPLETIONS, b"{}", Tier("chat"), 0.0)
        upstream = link.submit(Attempt(request, 1, False), None, lambda: None)
        await eventually(lambda: len(replica.parts) == 1)
        network.swallows = True
        await eventually(lambda: upstream.end is not None)
        assert isinstance(upstream.end, Lost)
        assert link.state is LinkState.LOST
        network.swallows = False
        await eventually(lambda: link.state is LinkState.READY)
        assert replica.sessions > 1
