"""The picker process: `penstock-picker -f pool.yaml --ext-authz-port 9002 --replica r0=127.0.0.1:7001 …`.

In a cluster: `penstock-picker -f pool.yaml --ext-proc-port 9002 --discover default/llama3-8b-replicas`.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random

import structlog
from penstock_pool import Pool
from penstock_routing import assembly
from penstock_routing.front_process import Configuration, run_front, running, served_tls
from penstock_routing.replicas.replica_set import ReplicaSet
from penstock_routing.settings import settings_of
from penstock_runtime.http_connection.bounds import HttpBounds
from penstock_runtime.pages import PAGES_BOUNDS, PAGES_DRAIN_S
from penstock_runtime.serving import address_of, listen, serving

from penstock_picker.admin_port import admin_app
from penstock_picker.drained_envoy import DrainedEnvoy
from penstock_picker.endpoints_file import EndpointsFile
from penstock_picker.envoy_drain import drain_envoy
from penstock_picker.ext_authz import ext_authz_app
from penstock_picker.ext_proc import ext_proc_serving
from penstock_picker.options import Options, parse
from penstock_picker.picker import Picker

FIRST_NUMBERS = 2**16
"""Bound on the random number of a picker's first request, so that pickers do not choose the same replicas."""

DRAIN_S = 5.0
"""Longest wait for open ext_authz checks when stopped. Each takes milliseconds."""

log = structlog.get_logger()


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT. Return the exit code."""
    options = parse(argv)
    return run_front("penstock-picker", options, lambda found, stop: serve(found, options, stop))


async def serve(found: Configuration, options: Options, stop: asyncio.Event) -> None:
    """Serve until `stop` is set, then drain. Raises StartError if an address cannot be bound."""
    pool, keys, source = found
    random = Random()
    placements, limits = assembly.shared_placements(options, pool), assembly.shared_limits(options, pool)
    replica_set = ReplicaSet(assembly.link_maker(options, random, None), random)
    picker = Picker(
        pool,
        settings_of(pool),
        keys,
        replica_set,
        first_number=random.randrange(FIRST_NUMBERS),
        placed=(lambda replica, tokens: None) if placements is None else placements.placed,
        shared_limits=limits,
    )
    _warn_unenforced_limits(pool)
    endpoints = None if options.endpoints_file is None else EndpointsFile(options.endpoints_file)
    envoy = (
        None if options.envoy_admin is None else DrainedEnvoy(options.envoy_admin, _drain_s(options, pool))
    )
    background = [
        *assembly.sharing(placements, limits, replica_set, picker.metrics),
        *assembly.refreshing(options, pool, keys, picker.metrics),
        replica_set.follow(source),
        *([] if endpoints is None else [endpoints.maintain(replica_set)]),
        *([] if envoy is None else [envoy.restart()]),
    ]
    admin = listen(options.admin_host, options.admin_port)
    pages = admin_app(picker, replica_set, pool.metadata.name, endpoints, envoy, stopping=stop.is_set)
    async with (
        running(background, stop) as until_stopped,
        serving(pages, admin, PAGES_DRAIN_S, PAGES_BOUNDS),
        _protocols(picker, pool, options, lambda: replica_set.ready and not stop.is_set()) as addresses,
    ):
        log.info("ready", **addresses, admin=address_of(admin))
        await until_stopped()
        await _drain(options, pool)
    log.info("stopped")


@asynccontextmanager
async def _protocols(
    picker: Picker, pool: Pool, options: Options, ready: Callable[[], bool]
) -> AsyncIterator[dict[str, str]]:
    """Serve the protocols that have a port within the block, and yield their addresses by protocol."""
    addresses = {}
    async with AsyncExitStack() as stack:
        if options.ext_authz_port is not None:
            listener = listen(options.host, options.ext_authz_port)
            bounds = HttpBounds(head_bytes=pool.spec.router.max_header_bytes)
            app = ext_authz_app(picker)
            await stack.enter_async_context(serving(app, listener, DRAIN_S, bounds, served_tls(options)))
            addresses["ext_authz"] = address_of(listener)
        if options.ext_proc_port is not None:
            listener, tls = listen(options.host, options.ext_proc_port), served_tls(options, "h2")
            await stack.enter_async_context(ext_proc_serving(picker, ready, listener, tls))
            addresses["ext_proc"] = address_of(listener)
        yield addresses


async def _drain(options: Options, pool: Pool) -> None:
    """Drain the Envoy beside this picker; without one, serve until gateways have found the other pickers."""
    if options.envoy_admin is None:
        await asyncio.sleep(options.lame_duck_s)
    else:
        await drain_envoy(options.envoy_admin, options.lame_duck_s, _drain_s(options, pool))


def _drain_s(options: Options, pool: Pool) -> float:
    """Return the longest wait for Envoy's requests."""
    return pool.spec.router.drain_timeout_s if options.drain_s is None else options.drain_s


def _warn_unenforced_limits(pool: Pool) -> None:
    """Log limits that a picker cannot enforce, because it does not see requests end."""
    unenforced = [each.name for each in pool.spec.applications if each.limits.concurrent_requests is not None]
    if unenforced:
        log.warning("concurrentRequests is not enforced behind a gateway", applications=unenforced)


if __name__ == "__main__":
    sys.exit(main())
