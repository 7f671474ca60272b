"""Finds the facts of an engine: those that the pool names, else those that are measured.

Without a built-in time model the sidecar waits for the engine: its KV cache is the pool's `kvCacheTokens`, or
what the engine reports. With `timeModel: auto` the engine is also measured once, before the sidecar is ready;
step reports correct the model from then on.
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
    """Return what the pool names, else what is measured; None where `stop` is set first.

    api_key: the engine's, empty without one. tls: of an engine with https.
    model_file: where a measured model is left for an engine that plans by it. Raises StartError where neither
        the pool nor the engine has a fact.
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
    """Wait for the engine. The profiler is imported on use: with its HTTP client it takes 7 MiB."""
    from penstock_sidecar.engine.measured_facts import measured_facts

    found = await until_ready(probe)
    return await measured_facts(pool, url, found.max_model_len, model_file, api_key=api_key, tls=tls)


async def until_ready(probe: Callable[[], Awaitable[Probe]]) -> Probe:
    """Return the first probe of an engine that is ready. Logs each new cause why it is not."""
    cause = ""
    while not (found := await probe()).ready:
        if found.cause != cause:
            log.info("waiting for the engine", cause=found.cause)
            cause = found.cause
        await asyncio.sleep(ASK_AGAIN_S)
    return found
