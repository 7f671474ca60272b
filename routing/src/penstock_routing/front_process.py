"""Runs a process in front of the replicas, a router or a picker: reads its configuration, then serves.

Exit codes: 0 stopped, 1 failure, 2 invalid pool file, keys or certificates, with a line on stderr.
"""

import asyncio
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import NamedTuple

from penstock_pool import Pool, PoolError, load_keys, load_pool
from penstock_runtime.logs import configure_logs
from penstock_runtime.serving import run_process
from penstock_runtime.tls import server_context

from penstock_routing import assembly
from penstock_routing.applications.api_keys import Keys
from penstock_routing.connections.api_server import AccessError
from penstock_routing.discovery.endpoints import Source
from penstock_routing.flags import FrontOptions


class Configuration(NamedTuple):
    """The configuration of a process. source: source of the replica set."""

    pool: Pool
    keys: Keys
    source: Source


Serve = Callable[[Configuration, asyncio.Event], Coroutine[None, None, None]]


def run_front(process: str, options: FrontOptions, serve: Serve) -> int:
    """Read the configuration and serve until SIGTERM or SIGINT. Return the exit code."""
    configure_logs(process, options.log_level, options.log_json)
    try:
        configuration = _read(options)
    except PoolError as error:
        print(*error.lines, sep="\n", file=sys.stderr)
        return 2
    except AccessError as error:
        print(f"--discover: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    return run_process(lambda stop: serve(configuration, stop))


@asynccontextmanager
async def running(
    parts: Iterable[Coroutine[None, None, None]], stop: asyncio.Event
) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Run the parts of a process during a block, and cancel them after it.

    Yields a function that waits until `stop` is set or a part has ended, and raises the part's error.
    """
    tasks = [asyncio.create_task(part) for part in parts]
    stopping = asyncio.create_task(stop.wait())

    async def until_stopped() -> None:
        await asyncio.wait({stopping, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        for part in tasks:
            if part.done():
                part.result()

    try:
        yield until_stopped
    finally:
        for task in (stopping, *tasks):
            task.cancel()
        await asyncio.wait(tasks)


def served_tls(options: FrontOptions, protocol: str = "http/1.1") -> ssl.SSLContext | None:
    """Return the TLS context to serve with; None without TLS. protocol: for ALPN. Raises OSError."""
    given = options.certificate
    return None if given is None else server_context(given.cert, given.key, protocol=protocol)


def _read(options: FrontOptions) -> Configuration:
    """Read the files that the flags name. Raises PoolError, AccessError or OSError."""
    pool = load_pool(options.pool)
    keys = Keys(pool.spec.applications, load_keys(pool, options.pool.parent))
    assembly.check_key_secrets(options, pool)
    served_tls(options)
    if options.replica_tls is not None:
        options.replica_tls.contexts()
    return Configuration(pool, keys, assembly.source(options))
