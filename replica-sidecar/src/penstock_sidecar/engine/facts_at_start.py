"""Determines the facts about an engine: those that the pool names, else measured ones.

Without a built-in time model the sidecar waits for the engine. The KV cache is the pool's `kvCacheTokens`, or
the size that the engine reports. With `timeModel: auto` the engine is measured once before the sidecar is
ready; later, step reports correct the model.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog
from penstock_core.timing.builtin_models import BUILTINS
from penstock_pool import Pool
from penstock_runtime.client_tls import Contexts

from penstock_sidecar.engine.client import Probe
from penstock_sidecar.engine.facts import Facts, builtin_facts

ASK_AGAIN_S = 1.0
"""Interval between probes of an engine that is not ready yet."""

log = structlog.get_logger()


async def facts_of(
    pool: Pool,
    url: str,
    probe: Callable[[], Awaitable[Probe]],
    stop: asyncio.Event,
    model_file: Path | None = None,
    *,
    api_key: str = "",
    tls: Contexts | None = None,
) -> Facts | None:
    """Return the facts that the pool names, else measured ones; None if `stop` is set first.

    Raises StartError if a fact is missing in both the pool and the engine.
    api_key: the engine's API key; empty if it has none. tls: for an engine with https.
    model_file: file to which a measured model is written, for an engine that plans with it.
    """
    if pool.spec.engine.time_model in BUILTINS:
        return builtin_facts(pool)
    stopping = asyncio.create_task(stop.wait())
    measuring = asyncio.create_task(_measured(pool, url, probe, model_file, api_key=api_key, tls=tls))
    try:
        await asyncio.wait({stopping, measuring}, return_when=asyncio.FIRST_COMPLETED)
        return measuring.result() if measuring.done() else None
    finally:
        for task in (stopping, measuring):
            task.cancel()
        await asyncio.gather(stopping, measuring, return_exceptions=True)


async def _measured(
    pool: Pool,
    url: str,
    probe: Callable[[], Awaitable[Probe]],
    model_file: Path | None,
    *,
    api_key: str,
    tls: Contexts | None,
) -> Facts:
    """Wait for the engine and measure it. The profiler, which takes 7 MiB, is imported only here."""
    from penstock_sidecar.engine.measured_facts import measured_facts

    found = await until_ready(probe)
    return await measured_facts(pool, url, found.max_model_len, model_file, api_key=api_key, tls=tls)


async def until_ready(probe: Callable[[], Awaitable[Probe]]) -> Probe:
    """Probe until the engine is ready, and return that probe. Logs each new reason why it is not ready."""
    cause = ""
    while not (found := await probe()).ready:
        if found.cause != cause:
            log.info("waiting for the engine", cause=found.cause)
            cause = found.cause
        await asyncio.sleep(ASK_AGAIN_S)
    return found
