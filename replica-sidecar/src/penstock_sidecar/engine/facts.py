"""What planning must know of the engine before anybody is served: how fast it is, and how much it remembers.

A pool names a time model that comes with Penstock, and that has a KV cache of its own. Any other engine is
waited for: its cache is the pool's `kvCacheTokens`, or what it tells. Where the pool says `auto`, it is also
measured, once, while the sidecar does not say yet that it is ready; what it learns from then on corrects the
model.
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
from penstock_profiler import Engine, EngineError, Limits, TooLittle, connected, profile
from penstock_runtime.engine_key import bearer
from penstock_runtime.serving import StartError

from penstock_sidecar.engine.client import Probe

ASK_AGAIN_S = 1.0
"""Between two looks at an engine that is not there yet."""

log = structlog.get_logger()


class Facts(NamedTuple):
    """Of one engine, before it has worked for anybody."""

    model: TimeModel
    kv: KvCache


async def facts_of(
    pool: Pool,
    url: str,
    probe: Callable[[], Awaitable[Probe]],
    stop: asyncio.Event,
    tell: Path | None = None,
    *,
    api_key: str = "",
) -> Facts | None:
    """As the pool names them, else as measured; None where `stop` came first.

    api_key: the engine's, empty without one.
    tell: where a measured model is left for an engine that plans by it. Raises StartError where nobody tells.
    """
    if pool.spec.engine.time_model in BUILTINS:
        return named(pool)
    stopping = asyncio.create_task(stop.wait())
    measuring = asyncio.create_task(_measured(pool, url, probe, tell, api_key))
    try:
        await asyncio.wait({stopping, measuring}, return_when=asyncio.FIRST_COMPLETED)
        return measuring.result() if measuring.done() else None
    finally:
        for task in (stopping, measuring):
            task.cancel()
        await asyncio.gather(stopping, measuring, return_exceptions=True)


def named(pool: Pool) -> Facts:
    """Of the built-in that the pool names."""
    spec = pool.spec.engine
    model = time_model(spec.time_model)
    return Facts(model, _cache(spec.kv_cache_tokens or kv_cache_tokens(model.name), spec.block_tokens))


async def _measured(
    pool: Pool, url: str, probe: Callable[[], Awaitable[Probe]], tell: Path | None, api_key: str
) -> Facts:
    spec, scheduling = pool.spec.engine, pool.spec.scheduling
    found = await _until_ready(probe)
    try:
        async with connected(url, bearer(api_key)) as engine:
            kv, written = await _kv_of(pool, engine), named_time_model(spec.time_model)
            if written is not None:
                return Facts(written, kv)
            limits = Limits(
                min(scheduling.max_batch_tokens, Limits().prompt_tokens),
                min(scheduling.max_running, Limits().requests),
                found.max_model_len or spec.max_model_len,
                kv.total_blocks * kv.block_tokens,
            )
            log.info("measuring the engine", longest_s=spec.profile_timeout_s)
            measured = await profile(engine, limits, spec.profile_timeout_s)
    except (EngineError, TooLittle) as error:
        raise StartError(f"spec.engine.timeModel: auto: {error}") from None
    if tell is not None:
        _leave(measured.fit.model, tell)
    worth = measured.fit.held_out
    log.info(
        "measured",
        probes=len(measured.readings),
        error=round(worth.mean_error, 3),
        noise=round(measured.noise, 3),
    )
    return Facts(measured.fit.model, kv)


def _leave(model: TimeModel, path: Path) -> None:
    """Whole or not at all: the engine may look at any moment. Raises StartError."""
    unfinished = path.with_suffix(".unfinished")
    try:
        unfinished.write_bytes(orjson.dumps(to_json(model)))
        unfinished.replace(path)
    except OSError as error:
        raise StartError(f"cannot leave the time model at {path}: {error.strerror}") from None


async def _until_ready(probe: Callable[[], Awaitable[Probe]]) -> Probe:
    cause = ""
    while not (found := await probe()).ready:
        if found.cause != cause:
            log.info("waiting for the engine", cause=found.cause)
            cause = found.cause
        await asyncio.sleep(ASK_AGAIN_S)
    return found


async def _kv_of(pool: Pool, engine: Engine) -> KvCache:
    spec = pool.spec.engine
    if spec.kv_cache_tokens is not None:
        return _cache(spec.kv_cache_tokens, spec.block_tokens)
    told = await engine.kv_cache()
    if told is None:
        raise StartError(
            "spec.engine.kvCacheTokens: missing, and this engine does not tell; write how many tokens its KV "
            "cache holds"
        )
    return KvCache(told.blocks, told.blocks, told.block_tokens)


def _cache(tokens: int, block_tokens: int) -> KvCache:
    blocks = tokens // block_tokens
    return KvCache(blocks, blocks, block_tokens)
