"""Builds vLLM's scheduler as `vllm serve` does: vLLM's configuration with its defaults.

Set explicitly are the settings that the simulated engine has too: KV memory, batch tokens, slots, draft
tokens, prefix caching. Asynchronous scheduling, which overlaps planning with the previous step, is off,
because planning takes no simulated time. The model is a placeholder that no decision reads; its context is
the whole KV memory, so that memory is the only limit on a request.

Draft tokens are configured as n-gram drafts, which need no memory of their own, as in the simulated engine.
"""

from pathlib import Path
from typing import Any, NamedTuple

from penstock_core.domain.replica_view import ReplicaView

from penstock_simulator.real_vllm.location import importing, load

MODEL = "model"


class EngineShape(NamedTuple):
    """The settings that vLLM's scheduler depends on. drafts: draft tokens of a decode in every step."""

    blocks: int
    block_tokens: int
    batch_tokens: int
    running: int
    drafts: int
    prefix_caching: bool = False


def shape_of(view: ReplicaView) -> EngineShape:
    """Return the settings of the engine in this view."""
    kv, limits = view.kv, view.limits
    drafts = view.speculation.max_tokens if view.speculation else 0
    return EngineShape(kv.total_blocks, kv.block_tokens, limits.batch_tokens, limits.running, drafts)


def build_scheduler(shape: EngineShape) -> Any:
    """Return a `vllm.v1.core.sched.scheduler.Scheduler` without requests. Raises VllmMissing."""
    load()
    with importing():
        return _build(shape)


def longest_tokens(shape: EngineShape) -> int:
    """Return the most tokens of a request: one more than fits, because the last one is not computed."""
    return shape.blocks * shape.block_tokens + 1


def _build(shape: EngineShape) -> Any:
    import torch
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    config = _configuration(shape)
    blocks = shape.blocks + 1  # vLLM reserves one as the null block
    config.cache_config.num_gpu_blocks = blocks
    layer = FullAttentionSpec(block_size=shape.block_tokens, num_kv_heads=1, head_size=1, dtype=torch.float32)
    cache = KVCacheConfig(
        num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], layer)]
    )
    return Scheduler(
        vllm_config=config,
        kv_cache_config=cache,
        structured_output_manager=StructuredOutputManager(config),
        block_size=shape.block_tokens,
    )


def _configuration(shape: EngineShape) -> Any:
    from vllm.config import (
        CacheConfig,
        DeviceConfig,
        ModelConfig,
        ParallelConfig,
        SchedulerConfig,
        SpeculativeConfig,
        VllmConfig,
    )

    longest = longest_tokens(shape)
    model = ModelConfig(
        model=str(Path(__file__).with_name(MODEL)),
        dtype="float32",
        max_model_len=longest,
        skip_tokenizer_init=True,
    )
    parallel = ParallelConfig()
    drafter = None
    if shape.drafts:
        drafter = SpeculativeConfig(
            method="ngram",
            num_speculative_tokens=shape.drafts,
            target_model_config=model,
            target_parallel_config=parallel,
        )
    return VllmConfig(
        model_config=model,
        parallel_config=parallel,
        cache_config=CacheConfig(block_size=shape.block_tokens, enable_prefix_caching=shape.prefix_caching),
        scheduler_config=SchedulerConfig(
            max_model_len=longest,
            is_encoder_decoder=False,
            # vLLM requires at least a token for every slot; the next setting limits a step
            max_num_batched_tokens=max(shape.batch_tokens, shape.running),
            max_num_scheduled_tokens=shape.batch_tokens,
            max_num_seqs=shape.running,
            enable_chunked_prefill=True,
            async_scheduling=False,
        ),
        device_config=DeviceConfig("cpu"),
        speculative_config=drafter,
    )
