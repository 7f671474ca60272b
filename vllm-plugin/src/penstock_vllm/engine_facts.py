"""Facts about the engine from vLLM's configuration and memory."""

import logging
from collections.abc import Callable

from penstock_vllm.engine import EngineScheduler
from penstock_vllm.settings import PluginSettings
from penstock_vllm.view import KvMemory, StepBounds

log = logging.getLogger("vllm.penstock")


def bounds_of(scheduler: EngineScheduler, settings: PluginSettings) -> StepBounds:
    """Return vLLM's own bounds, or the lower ones of the settings."""
    spec = scheduler.vllm_config.speculative_config
    slots = spec.max_num_new_slots_for_drafting * scheduler.max_num_running_reqs if spec is not None else 0
    most = scheduler.scheduler_config.max_num_batched_tokens - slots
    batch_tokens = scheduler.max_num_scheduled_tokens
    if most > 0:
        batch_tokens = min(batch_tokens, most)
    return StepBounds(
        min(settings.max_batch_tokens or batch_tokens, batch_tokens),
        min(settings.max_running or scheduler.max_num_active_reqs, scheduler.max_num_active_reqs),
        scheduler.max_model_len - scheduler.num_sampled_tokens_per_step,
    )


def memory_of(scheduler: EngineScheduler) -> Callable[[], KvMemory]:
    """Return a function that reads the KV cache's state; it is called in every step."""
    pool, block_tokens = scheduler.kv_cache_manager.block_pool, scheduler.block_size
    total_blocks, groups = pool.num_gpu_blocks - 1, max(len(scheduler.kv_cache_config.kv_cache_groups), 1)
    return lambda: KvMemory(total_blocks, pool.get_num_free_blocks(), block_tokens, groups)


def can_be_steered(scheduler: EngineScheduler) -> bool:
    """Return whether policies support this model's requests; otherwise every step is vLLM's own."""
    config = scheduler.vllm_config.model_config
    unsupported = {
        "chunked prefill is off": not scheduler.scheduler_config.enable_chunked_prefill,
        "the model is an encoder and a decoder": config.is_encoder_decoder,
        "the model is a diffusion model": config.is_diffusion,
    }
    reasons = [reason for reason, holds in unsupported.items() if holds]
    if reasons:
        log.warning("penstock: vLLM schedules by its own rules, because %s", ", ".join(reasons))
    return not reasons


def generates_one_token_per_step(scheduler: EngineScheduler) -> bool:
    """Return whether a step of decodes always generates one token of each, unless a request ends.

    False with draft tokens, KV transfer, or a pipeline of workers.
    """
    pipeline = scheduler.vllm_config.parallel_config.pipeline_parallel_size
    return not scheduler.num_spec_tokens and scheduler.connector is None and pipeline == 1
