"""A router on a real socket, in front of scripted replicas."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import httpx2
from openai import AsyncOpenAI, OpenAI
from patience import eventually
from penstock_pool import Application, Pool, parse_pool
from penstock_router.http.admin_port import admin_app
from penstock_router.http.app import RouterApp
from penstock_routing.applications.api_keys import Keys
from penstock_routing.connections.backoff import Backoff
from penstock_routing.discovery.endpoints import Fixed
from penstock_routing.replicas.link_state import LinkState
from penstock_routing.replicas.replica_link import ReplicaLink
from penstock_routing.replicas.replica_set import ReplicaSet
from penstock_routing.settings import settings_of
from penstock_runtime.grpc.bounds import GrpcBounds
from penstock_runtime.grpc.client import Channel
from penstock_runtime.http_connection.bounds import HttpBounds
from penstock_runtime.pages import PAGES_DRAIN_S
from penstock_runtime.serving import address_of, listen, serving
from scripted.replica import ScriptedReplica

MODEL = "test/model"
PATIENCE_S = 20.0
"""Longest wait for a condition. Reached only in a test that fails."""

POOL_FILE = f"""
apiVersion: penstock.dev/v1alpha1
kind: ServingPool
metadata: {{name: tests}}
spec:
  model: {{name: {MODEL}}}
  engine: {{type: simulated, timeModel: llama-3-8b-a100}}
  tiers: [{{name: chat, slo: {{ttft: 10s}}}}]
"""
"""A pool file for processes, with one tier."""

TIERS: list[dict[str, Any]] = [
    {"name": "chat", "slo": {"ttft": "10s", "tpot": "5s"}},
    {"name": "coder", "slo": {"ttft": "800ms", "tpot": "50ms"}, "allowRequestTargets": True},
    {"name": "batch", "bestEffort": True},
]


def pool_with(**spec: Any) -> Pool:
    """A small pool; `spec` replaces fields of that name."""
    document = {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "ServingPool",
        "metadata": {"name": "tests"},
        "spec": {
            "model": {"name": MODEL},
            "engine": {"type": "simulated", "timeModel": "llama-3-8b-a100"},
            "tiers": TIERS,
            "routing": {"backup": "reject"},
            **spec,
        },
    }
    return parse_pool(document, "pool.yaml")


@dataclass(frozen=True, slots=True)
class RunningRouter:
    """A router that serves, with clients of its API (`http`, `openai`) and of its admin port (`admin`)."""

    address: str
    app: RouterApp
    replica_set: ReplicaSet
    http: httpx2.AsyncClient
    admin: httpx2.AsyncClient
    openai: AsyncOpenAI

    def sync_openai(self) -> OpenAI:
        return OpenAI(base_url=f"http://{self.address}/v1", api_key="any", max_retries=0)

    async def all_in(self, state: LinkState = LinkState.READY) -> None:
        await eventually(lambda: all(link.state is state for link in self.replica_set.links))

    async def chat(self, headers: Mapping[str, str] | None = None, **body: Any) -> httpx2.Response:
        """Send a request for a chat completion."""
        requested = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **body}
        return await self.http.post("/v1/chat/completions", json=requested, headers=headers)

    async def metric(self, line: str) -> float:
        """Return the value of one line of /metrics; 0 if the page has no such line."""
        page = (await self.admin.get("/metrics")).text
        return next((float(x.rpartition(" ")[2]) for x in page.splitlines() if x.startswith(line)), 0.0)

    async def counted(self, line: str, value: float = 1) -> None:
        """Wait until a line of /metrics has this value."""
        async with asyncio.timeout(PATIENCE_S):
            while await self.metric(line) != value:  # noqa: ASYNC110  the page has no event
                await asyncio.sleep(0.002)


class NoSpread(Random):
    """A generator that draws no jitter: times stay as they are."""

    def random(self) -> float:
        return 0.0


@asynccontextmanager
async def running_router(
    *replicas: ScriptedReplica,
    pool: Pool | None = None,
    keys: Mapping[str, Application] | None = None,
    bounds: HttpBounds | None = None,
    ready: bool = True,
) -> AsyncIterator[RunningRouter]:
    """Run a router in front of these replicas. ready: wait until the router has connected to all of them."""
    pool = pool or pool_with()
    async with AsyncExitStack() as stack:
        for replica in replicas:
            await replica.start()
            stack.push_async_callback(replica.die)
        replica_set = ReplicaSet(make_link, NoSpread())
        admin_listener = listen("127.0.0.1", 0)
        app = RouterApp(pool, settings_of(pool), Keys(pool.spec.applications, keys or {}), replica_set)
        following = asyncio.create_task(replica_set.follow(Fixed({r.name: r.address for r in replicas})))
        stack.push_async_callback(asyncio.wait, [following])
        stack.callback(following.cancel)
        listener = listen("127.0.0.1", 0)
        address = address_of(listener)
        await stack.enter_async_context(serving(admin_app(app, "tests"), admin_listener, PAGES_DRAIN_S))
        await stack.enter_async_context(serving(app, listener, 5.0, bounds))
        http = httpx2.AsyncClient(base_url=f"http://{address}", timeout=PATIENCE_S)
        await stack.enter_async_context(http)
        admin = httpx2.AsyncClient(base_url=f"http://{address_of(admin_listener)}", timeout=PATIENCE_S)
        await stack.enter_async_context(admin)
        openai = AsyncOpenAI(base_url=f"http://{address}/v1", api_key="any", max_retries=0)
        await stack.enter_async_context(openai)
        router = RunningRouter(address, app, replica_set, http, admin, openai)
        if ready:
            await router.all_in()
        yield router


def make_link(name: str, address: str, changed: Callable[[], None] = lambda: None) -> ReplicaLink:
    """Return a link that reconnects immediately, and sends no pings, because tests move the loop's clock."""
    channel = partial(Channel, bounds=GrpcBounds(ping_s=86_400.0))
    return ReplicaLink(name, address, channel, Backoff(Random(1), 0.005, 0.02), changed=changed)
