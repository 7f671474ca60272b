"""vLLM's own scheduler classes in virtual time, with a model runner that makes tokens up.

`Engine` does what vLLM's engine core does around a scheduler: add, schedule, run, update, take drafts; one
step at a time, or with one under way while the next is planned. Nothing is computed. A step takes as long as
the time model says.
"""

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock_core.timing.builtin_models import time_model
from penstock_simulator.real_vllm import scheduler as real_scheduler
from penstock_simulator.real_vllm.location import importing
from virtual import vllm_at

A_TOKEN = 7
MODEL_NAME = "llama-3-8b-a100"
MODEL_PATH = Path(real_scheduler.__file__).with_name(real_scheduler.MODEL)


@dataclass(frozen=True, slots=True)
class Kind:
    """What kind of engine. loras: adapters that it has room for at once; 0 for an engine without.

    loads_kv: from a connector, for requests with `kv_transfer_params`.
    """

    policy: str = "slos-serve"
    blocks: int = 4000
    block_tokens: int = 16
    batch_tokens: int = 512
    running: int = 64
    drafts: int = 0
    ahead: bool = False
    prefix_caching: bool = False
    steered: bool = True
    loras: int = 0
    loads_kv: bool = False
    watermark: float = 0.0
    more: dict[str, Any] = field(default_factory=dict)


def build(kind: Kind) -> Any:
    """A scheduler of this kind, as vLLM would build it."""
    vllm_at.load()
    with importing():
        return _build(kind)


def _build(kind: Kind) -> Any:
    import torch
    from penstock_vllm.scheduler import PenstockScheduler
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    config = _configuration(kind)
    config.cache_config.num_gpu_blocks = kind.blocks + 1
    config.scheduler_config.async_scheduling = kind.ahead
    layer = FullAttentionSpec(block_size=kind.block_tokens, num_kv_heads=1, head_size=1, dtype=torch.float32)
    cache = KVCacheConfig(
        num_blocks=kind.blocks + 1, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], layer)]
    )
    own = AsyncScheduler if kind.ahead else Scheduler
    return (PenstockScheduler if kind.steered else own)(
        vllm_config=config,
        kv_cache_config=cache,
        structured_output_manager=StructuredOutputManager(config),
        block_size=kind.block_tokens,
        hash_block_size=kind.block_tokens,
    )


def _configuration(kind: Kind) -> Any:
    from vllm.config import (
        CacheConfig,
        DeviceConfig,
        KVTransferConfig,
        LoRAConfig,
        ModelConfig,
        ParallelConfig,
        SchedulerConfig,
        SpeculativeConfig,
        VllmConfig,
    )

    longest = kind.blocks * kind.block_tokens
    model = ModelConfig(
        model=str(MODEL_PATH), dtype="float32", max_model_len=longest, skip_tokenizer_init=True
    )
    parallel = ParallelConfig()
    remote = KVTransferConfig(
        kv_connector="RemoteKv", kv_role="kv_both", kv_connector_module_path="virtual.connector"
    )
    drafter = None
    if kind.drafts:
        drafter = SpeculativeConfig(
            method="ngram",
            num_speculative_tokens=kind.drafts,
            target_model_config=model,
            target_parallel_config=parallel,
        )
    return VllmConfig(
        model_config=model,
        parallel_config=parallel,
        cache_config=CacheConfig(block_size=kind.block_tokens, enable_prefix_caching=kind.prefix_caching),
        scheduler_config=SchedulerConfig(
            max_model_len=longest,
            is_encoder_decoder=False,
            max_num_batched_tokens=max(kind.batch_tokens, kind.running),
            max_num_scheduled_tokens=kind.batch_tokens,
            max_num_seqs=kind.running,
            enable_chunked_prefill=True,
            watermark=kind.watermark,
            async_scheduling=False,  # set afterwards: vLLM refuses it where there is no GPU
        ),
        device_config=DeviceConfig("cpu"),
        speculative_config=drafter,
        lora_config=LoRAConfig(max_loras=kind.loras) if kind.loras else None,
        kv_transfer_config=remote if kind.loads_kv else None,
        additional_config={
            "penstock": {"policy": kind.policy, "timeModel": MODEL_NAME, "planningS": 60, **kind.more}
        },
    )


class Engine:
    """An engine around a scheduler. now_s: its clock.

    accepted: of so many drafts, how many are right. loaded: requests whose KV was loaded.
    """

    def __init__(self, kind: Kind, accepted: Callable[[int], int] = lambda drafts: drafts // 2) -> None:
        self.kind, self.accepted = kind, accepted
        self.scheduler = build(kind)
        self.now_s = 0.0
        self.scheduler.clock = self.scheduler.wall = lambda: self.now_s
        if kind.steered:
            self.scheduler.policy_calls._clock = lambda: 0.0
        self.model = time_model(MODEL_NAME)
        self.under_way: deque[Any] = deque()
        self.finished: set[str] = set()
        self.asked: dict[str, int] = {}
        self.stopped: set[str] = set()
        self.loaded: set[str] = set()
        self.steps = 0
        self._hasher = _hasher(kind)

    def add(
        self,
        name: str,
        prompt_tokens: int,
        output_tokens: int,
        *,
        prompt: list[int] | None = None,
        fields: dict[str, Any] | None = None,
        grammar: "Future[Any] | None" = None,
        lora: int = 0,
        loads: bool = False,
        **more: Any,
    ) -> Any:
        """A request comes; `fields` ride in it. grammar: it waits for. lora: number of its adapter.

        loads: its prompt's KV is loaded, once its name is in `loaded`.
        """
        from vllm.lora.request import LoRARequest
        from vllm.sampling_params import SamplingParams, StructuredOutputsParams
        from vllm.v1.request import Request

        extra: dict[str, Any] | None = fields
        if loads:
            extra = {**(fields or {}), "kv_transfer_params": {"do_remote_prefill": True}}
        sampling = SamplingParams(max_tokens=output_tokens, ignore_eos=True)
        sampling.extra_args = extra  # without what vLLM checks of them
        if grammar is not None:
            sampling.structured_outputs = StructuredOutputsParams(regex=".*")
        if lora:
            more["lora_request"] = LoRARequest(f"lora-{lora}", lora, "/nowhere")
        ids = prompt or [A_TOKEN] * prompt_tokens
        request = Request(
            name, ids, sampling, None, arrival_time=self.now_s, block_hasher=self._hasher, **more
        )
        if grammar is not None:
            request.structured_output_request._grammar = grammar
        self.scheduler.add_request(request)
        self.asked[name] = output_tokens
        return request

    def abort(self, names: Iterable[str]) -> None:
        """Clients go away."""
        from vllm.v1.request import RequestStatus

        names = list(names)
        self.stopped.update(names)
        self.scheduler.finish_requests(names, RequestStatus.FINISHED_ABORTED)

    def step(self) -> Any:
        """Plan a step; and end one, the same or the one before. Returns the plan."""
        output = self.begin()
        self.end_due(output)
        return output

    def end_due(self, output: Any) -> None:
        """End the oldest step under way, where the engine does not go ahead with the one just planned."""
        if len(self.under_way) > 1 or not (self.kind.ahead and output.num_scheduled_tokens):
            self.end()

    def begin(self) -> Any:
        """Plan a step."""
        output = self.scheduler.schedule()
        sampled = {}
        for name in output.num_scheduled_tokens:
            request = self.scheduler.requests[name]
            drafts = len(output.scheduled_spec_decode_tokens.get(name, ()))
            sampled[name] = 0 if request.is_prefill_chunk else 1 + (self.accepted(drafts) if drafts else 0)
        self.under_way.append((output, sampled))
        self.steps += 1
        return output

    def end(self) -> None:
        """The oldest step under way ends."""
        from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput, ModelRunnerOutput

        output, sampled = self.under_way.popleft()
        self.now_s += 0.01 + 5e-5 * output.total_num_scheduled_tokens
        names, loaded, self.loaded = list(sampled), self.loaded, set()
        reported = self.scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: i for i, name in enumerate(names)},
                sampled_token_ids=[[A_TOKEN] * count for count in sampled.values()],
                kv_connector_output=KVConnectorOutput(finished_recving=loaded) if loaded else None,
            ),
        )
        for outputs in reported.values():
            self.finished.update([one.request_id for one in outputs.outputs if one.finish_reason is not None])
        if self.kind.drafts and not self.kind.ahead and names:
            drafts = [[A_TOKEN] * self.kind.drafts for _ in names]
            self.scheduler.update_draft_token_ids(DraftTokenIds(names, drafts))

    def drain(self, most_steps: int = 5000) -> None:
        """Continue until all requests have ended."""
        for _ in range(most_steps):
            if not self.scheduler.has_requests() and not self.under_way:
                return
            self.now_s += 0.001
            if self.scheduler.has_requests():
                self.step()
            else:
                self.end()
        raise AssertionError(f"still here after {most_steps} steps: {sorted(self.scheduler.requests)}")

    @property
    def free_blocks(self) -> int:
        """Blocks that no request holds."""
        return int(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())


def _hasher(kind: Kind) -> Any:
    if not kind.prefix_caching:
        return None
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

    init_none_hash(sha256)
    return get_request_block_hasher(kind.block_tokens, sha256)
