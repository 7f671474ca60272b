"""The engine's time model and KV cache, which planning needs before the first request.

A time model that comes with Penstock has a KV cache of its own. For any other the sidecar waits for the
engine: the cache is the pool's `kvCacheTokens`, or what the engine reports. With `timeModel: auto` the engine
is also measured once, before the sidecar is ready; step reports correct the model from then on.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import orjson
import structlog
from penstock_core.domain.replica_view import KvCache
from penstock_core.timing.builtin_models import BUILTINS, kv_cache_tokens, time_model
from penstock_core.timing.time_model import TimeModel, to_json
from penstock_pool import Pool, named_time_model
from penstock_profiler import EngineError, MeasuredEngine, ProfileLimits, TooLittle, connected, profile
from penstock_runtime.engine_key import bearer
from penstock_runtime.serving import StartError

from penstock_sidecar.engine.client import Probe

ASK_AGAIN_S = 1.0
"""Interval between probes of an engine that is not ready yet."""

log = structlog.get_logger()


class Facts(NamedTuple):
    """What planning starts from."""

    model: TimeModel
    kv: KvCache


async def facts_of(
    pool: Pool,
    url: str,
    probe: Callable[[], Awaitable[Probe]],
    stop: asyncio.Event,
    model_file: Path | None = None,
    *,
    api_key: str = "",
) -> Facts | None:
    """Return what the pool names, else what is measured; None where `stop` is set first.

    api_key: the engine's, empty without one.
    model_file: where a measured model is left for an engine that plans by it. Raises StartError where neither
        the pool nor the engine has a fact.
    """
    if pool.spec.engine.time_model in BUILTINS:
        return named(pool)
    stopping = asyncio.create_task(stop.wait())
    measuring = asyncio.create_task(_measured(pool, url, probe, model_file, api_key))
    try:
        await asyncio.wait({stopping, measuring}, return_when=asyncio.FIRST_COMPLETED)
        return measuring.result() if measuring.done() else None
    finally:
        for task in (stopping, measuring):
            task.cancel()
        await asyncio.gather(stopping, measuring, return_exceptions=True)


def named(pool: Pool) -> Facts:
    """Return the facts of the built-in model that the pool names."""
    spec = pool.spec.engine
    model = time_model(spec.time_model)
    return Facts(model, _cache(spec.kv_cache_tokens or kv_cache_tokens(model.name), spec.block_tokens))


async def _measured(
    pool: Pool, url: str, probe: Callable[[], Awaitable[Probe]], model_file: Path | None, api_key: str
) -> Facts:
    found = await until_ready(probe)
    async with connected(url, bearer(api_key)) as engine:
        return await facts_from(engine, pool, found.max_model_len, model_file)


async def facts_from(
    engine: MeasuredEngine, pool: Pool, max_model_len: int | None, model_file: Path | None = None
) -> Facts:
    """Return what the pool names, else what this engine reports and what is measured of it.

    max_model_len: as the engine says. model_file: where a measured model is left. Raises StartError.
    """
    spec, scheduling = pool.spec.engine, pool.spec.scheduling
    try:
        kv, written = await _kv_of(pool, engine), named_time_model(spec.time_model)
        if written is not None:
            return Facts(written, kv)
        limits = ProfileLimits(
            min(scheduling.max_batch_tokens, ProfileLimits().prompt_tokens),
            min(scheduling.max_running, ProfileLimits().requests),
            max_model_len or spec.max_model_len,
            kv.total_blocks * kv.block_tokens,
        )
        log.info("measuring the engine", longest_s=spec.profile_timeout_s)
        measured = await profile(engine, limits, spec.profile_timeout_s)
    except (EngineError, TooLittle) as error:
        raise StartError(f"spec.engine.timeModel: auto: {error}") from None
    if model_file is not None:
        _leave(measured.fit.model, model_file)
    log.info(
        "measured",
        probes=len(measured.readings),
        error=round(measured.fit.held_out.mean_error, 3),
        noise=round(measured.noise, 3),
    )
    return Facts(measured.fit.model, kv)


def _leave(model: TimeModel, path: Path) -> None:
    """Write the model whole or not at all: the engine may read it at any moment. Raises StartError."""
    unfinished = path.with_suffix(".unfinished")
    try:
        unfinished.write_bytes(orjson.dumps(to_json(model)))
        unfinished.replace(path)
    except OSError as error:
        raise StartError(f"cannot leave the time model at {path}: {error.strerror}") from None


async def until_ready(probe: Callable[[], Awaitable[Probe]]) -> Probe:
    """Return the first probe of an engine that is ready. Logs each new cause why it is not."""
    cause = ""
    while not (found := await probe()).ready:
        if found.cause != cause:
            log.info("waiting for the engine", cause=found.cause)
            cause = found.cause
        await asyncio.sleep(ASK_AGAIN_S)
    return found


async def _kv_of(pool: Pool, engine: MeasuredEngine) -> KvCache:
    spec = pool.spec.engine
    if spec.kv_cache_tokens is not None:
        return _cache(spec.kv_cache_tokens, spec.block_tokens)
    reported = await engine.kv_cache()
    if reported is None:
        raise StartError(
            "spec.engine.kvCacheTokens: missing, and this engine does not report it; "
            "write how many tokens its KV cache holds"
        )
    return KvCache(reported.blocks, reported.blocks, reported.block_tokens)


def _cache(tokens: int, block_tokens: int) -> KvCache:
    blocks = tokens // block_tokens
    return KvCache(blocks, blocks, block_tokens)
