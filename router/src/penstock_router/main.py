"""The router process: `penstock-router -f pool.yaml --replica r0=127.0.0.1:7001 --replica r1=…`.

In a cluster: `penstock-router -f pool.yaml --discover default/llama3-8b-replicas`.
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from random import Random

import structlog
from penstock_routing import assembly
from penstock_routing.front_process import Configuration, run_front, running, served_tls
from penstock_routing.replicas.replica_set import ReplicaSet
from penstock_routing.settings import settings_of
from penstock_runtime.client_tls import Contexts, client_contexts
from penstock_runtime.engine_key import engine_key
from penstock_runtime.http_connection.bounds import HttpBounds
from penstock_runtime.pages import PAGES_BOUNDS, PAGES_DRAIN_S
from penstock_runtime.serving import StartError, address_of, is_loopback, listen, serving

from penstock_router.http.admin_port import admin_app
from penstock_router.http.app import RouterApp
from penstock_router.options import Options, parse

FIRST_NUMBERS = 2**16
"""Bound on the random number of a router's first request, so that routers do not choose the same replicas."""

log = structlog.get_logger()


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT. Return the exit code."""
    options = parse(argv)
    return run_front("penstock-router", options, lambda found, stop: serve(found, options, stop))


async def serve(found: Configuration, options: Options, stop: asyncio.Event) -> None:
    """Serve until `stop` is set, then drain. Raises StartError if an address cannot be bound."""
    pool, keys, source = found
    settings = settings_of(pool)
    random = Random()
    placements = assembly.shared_placements(options, pool)
    limits = assembly.shared_limits(options, pool)
    replica_set = ReplicaSet(assembly.link_maker(options, random, placements), random)
    listener, admin = listen(options.host, options.port), listen(options.admin_host, options.admin_port)
    app = RouterApp(
        pool,
        settings,
        keys,
        replica_set,
        first_number=random.randrange(FIRST_NUMBERS),
        admin_url=f"http://{address_of(admin)}" if is_loopback(options.admin_host) else None,
        shared_limits=limits,
        engine_key=engine_key(os.environ),
        engine_tls=engine_tls(options),
    )
    bounds = HttpBounds(
        head_bytes=pool.spec.router.max_header_bytes, write_s=pool.spec.router.write_timeout_s
    )
    drain_s = pool.spec.router.drain_timeout_s if options.drain_s is None else options.drain_s
    parts = [
        *assembly.sharing(placements, limits, replica_set, app.metrics),
        *assembly.refreshing(options, pool, keys, app.metrics),
        replica_set.follow(source),
    ]
    try:
        async with (
            running(parts, stop) as until_stopped,
            serving(admin_app(app, settings.pool), admin, PAGES_DRAIN_S, PAGES_BOUNDS),
            serving(app, listener, drain_s, bounds, served_tls(options)) as server,
        ):
            where = str(options.service or len(options.replicas))
            log.info("ready", address=address_of(listener), admin=address_of(admin), replicas=where)
            await until_stopped()
            app.draining = True
            server.close_after_responses()
            await asyncio.sleep(min(options.lame_duck_s, drain_s))
    finally:
        app.close()
    log.info("stopped")


def engine_tls(options: Options) -> Contexts | None:
    """Return the TLS of connections to engines; None if replicas have no TLS. Raises StartError."""
    tls = options.replica_tls
    if tls is None:
        return None
    try:
        return client_contexts(tls.ca, tls.cert, tls.key, options.engine_server_name or tls.server_name)
    except OSError as error:
        raise StartError(f"{error.filename}: {error.strerror}") from None


if __name__ == "__main__":
    sys.exit(main())
