"""A picker in the test's own process, in front of replicas that gateways reach over HTTP."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from gateway.replica import HttpReplica
from patience import eventually
from penstock_picker.ext_authz import ext_authz_app
from penstock_picker.ext_proc import ext_proc_serving
from penstock_picker.picker import Picker
from penstock_pool import Application, Pool
from penstock_routing.applications.api_keys import Keys
from penstock_routing.discovery.endpoints import Fixed
from penstock_routing.replicas.replica_set import ReplicaSet
from penstock_routing.settings import Settings, settings_of
from penstock_runtime.serving import address_of, listen, serving
from scripted.router import MODEL, NoSpread, make_link, pool_with


@asynccontextmanager
async def picker_of(
    replicas: Sequence[HttpReplica],
    pool: Pool | None = None,
    keys: Mapping[str, Application] | None = None,
    settings: Settings | None = None,
    **more: Any,
) -> AsyncIterator[Picker]:
    """A picker that knows all replicas, which are started and ready. more: the picker's own arguments."""
    pool = pool or pool_with(routing={"backup": "best-effort", "order": "round-robin"})
    async with AsyncExitStack() as stack:
        for replica in replicas:
            await replica.start()
            stack.push_async_callback(replica.die)
        replica_set = ReplicaSet(make_link, NoSpread())
        following = asyncio.create_task(replica_set.follow(Fixed({r.name: r.address for r in replicas})))
        stack.push_async_callback(asyncio.wait, [following])
        stack.callback(following.cancel)
        await eventually(lambda: len(replica_set.loads()) == len(replicas))
        known = Keys(pool.spec.applications, keys or {})
        yield Picker(pool, settings or settings_of(pool), known, replica_set, **more)


@asynccontextmanager
async def ext_authz_address(picker: Picker, port: int = 0) -> AsyncIterator[str]:
    """The address at which the picker answers ext_authz."""
    listener = listen("127.0.0.1", port)
    address = address_of(listener)
    async with serving(ext_authz_app(picker), listener, 1.0):
        yield address


@asynccontextmanager
async def ext_proc_address(picker: Picker, port: int = 0) -> AsyncIterator[str]:
    """The address at which the picker answers ext_proc."""
    ready = picker._replica_set.ready
    listener = listen("127.0.0.1", port)
    address = address_of(listener)
    async with ext_proc_serving(picker, lambda: ready, listener):
        yield address


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **fields}
