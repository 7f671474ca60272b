"""Facts of an engine that its pool does not configure: read from the engine, or measured."""

from pathlib import Path

import orjson
import structlog
from penstock_core.domain.replica_view import KvCache
from penstock_core.timing.time_model import TimeModel, to_json
from penstock_pool import Pool, named_time_model
from penstock_profiler import EngineError, MeasuredEngine, NoTimeModel, ProfileLimits, connected, profile
from penstock_runtime.client_tls import Contexts
from penstock_runtime.engine_key import bearer
from penstock_runtime.serving import StartError

from penstock_sidecar.engine.facts import Facts, kv_cache

log = structlog.get_logger()


async def measured_facts(
    pool: Pool,
    url: str,
    max_model_len: int | None,
    model_file: Path | None,
    *,
    api_key: str,
    tls: Contexts | None = None,
) -> Facts:
    """Return the facts of the engine at `url`, as `facts_from` does."""
    async with connected(url, bearer(api_key), tls) as engine:
        return await facts_from(engine, pool, max_model_len, model_file)


async def facts_from(
    engine: MeasuredEngine, pool: Pool, max_model_len: int | None, model_file: Path | None = None
) -> Facts:
    """Return the facts that the pool names, else those that the engine reports or that are measured.

    max_model_len: context length that the engine reports. model_file: file for a measured model. Raises
    StartError.
    """
    spec, scheduling = pool.spec.engine, pool.spec.scheduling
    try:
        kv, named_model = await _kv_of(pool, engine), named_time_model(spec.time_model)
        if named_model is not None:
            return Facts(named_model, kv)
        limits = ProfileLimits(
            min(scheduling.max_batch_tokens, ProfileLimits().prompt_tokens),
            min(scheduling.max_running, ProfileLimits().requests),
            max_model_len or spec.max_model_len,
            kv.total_blocks * kv.block_tokens,
        )
        log.info("measuring the engine", longest_s=spec.profile_timeout_s)
        measured = await profile(engine, limits, spec.profile_timeout_s)
    except (EngineError, NoTimeModel) as error:
        raise StartError(f"spec.engine.timeModel: auto: {error}") from None
    if model_file is not None:
        _write_model(measured.fit.model, model_file)
    log.info(
        "measured",
        probes=len(measured.summaries),
        error=round(measured.fit.held_out.mean_error, 3),
        noise=round(measured.noise, 3),
    )
    if measured.inaccurate:
        log.warning(
            "the measured time model is inaccurate: admitted requests may miss their SLOs until steps have "
            "corrected it; measure for longer (spec.engine.profileTimeout), or set spec.engine.timeModel"
        )
    return Facts(measured.fit.model, kv, measured.overhead_s)


def _write_model(model: TimeModel, path: Path) -> None:
    """Write the model atomically, because the engine may read it at any time. Raises StartError."""
    unfinished = path.with_suffix(".unfinished")
    try:
        unfinished.write_bytes(orjson.dumps(to_json(model)))
        unfinished.replace(path)
    except OSError as error:
        raise StartError(f"cannot write the time model to {path}: {error.strerror}") from None


async def _kv_of(pool: Pool, engine: MeasuredEngine) -> KvCache:
    spec = pool.spec.engine
    if spec.kv_cache_tokens is not None:
        return kv_cache(spec.kv_cache_tokens, spec.block_tokens)
    reported = await engine.kv_cache()
    if reported is None:
        raise StartError(
            "spec.engine.kvCacheTokens: missing, and this engine does not report it; "
            "set it to the number of tokens that its KV cache holds"
        )
    return KvCache(reported.blocks, reported.blocks, reported.block_tokens)
