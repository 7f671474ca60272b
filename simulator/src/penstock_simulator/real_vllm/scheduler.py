"""Builds vLLM's scheduler as `vllm serve` would: its own configuration with its own defaults.

What is set is what an engine of ours has as well: memory, batch, seats, drafts. Prefix caching is off, since
simulated prompts have no text to share, and so is asynchronous scheduling, which overlaps a step's planning
with the step before: planning takes no simulated time. The model is a name and a shape that no decision
looks at; its longest context is the whole memory, so that memory is the only bound on a request.

Drafts are configured as n-gram drafts, the kind that needs no memory of its own, as on the simulated engine.
"""

from pathlib import Path
from typing import Any, NamedTuple

from penstock_core.domain.replica_view import ReplicaView

from penstock_simulator.real_vllm.location import importing, load

MODEL = "model"


class Shape(NamedTuple):
    """What of an engine vLLM's scheduler depends on. drafts: tokens drafted for a decode, in every step."""

    blocks: int
    block_tokens: int
    batch_tokens: int
    running: int
    drafts: int


def shape_of(view: ReplicaView) -> Shape:
    """Of the engine that is seen here."""
    kv, limits = view.kv, view.limits
    drafts = view.speculation.max_tokens if view.speculation else 0
    return Shape(kv.total_blocks, kv.block_tokens, limits.batch_tokens, limits.running, drafts)


def build_scheduler(shape: Shape) -> Any:
    """A `vllm.v1.core.sched.scheduler.Scheduler` with no requests. Raises VllmMissing."""
    load()
    with importing():
        return _build(shape)


def longest_tokens(shape: Shape) -> int:
    """Of one request. One token more than fits, since vLLM does not compute the last one it brings out."""
    return shape.blocks * shape.block_tokens + 1


def _build(shape: Shape) -> Any:
    import torch
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    config = _configuration(shape)
    blocks = shape.blocks + 1  # vLLM keeps one for itself, which stands for no block
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


def _configuration(shape: Shape) -> Any:
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
        cache_config=CacheConfig(block_size=shape.block_tokens, enable_prefix_caching=False),
        scheduler_config=SchedulerConfig(
            max_model_len=longest,
            is_encoder_decoder=False,
            # vLLM wants room for a token of every request; the bound on a step is the one below
            max_num_batched_tokens=max(shape.batch_tokens, shape.running),
            max_num_scheduled_tokens=shape.batch_tokens,
            max_num_seqs=shape.running,
            enable_chunked_prefill=True,
            async_scheduling=False,
        ),
        device_config=DeviceConfig("cpu"),
        speculative_config=drafter,
    )
