"""Types of the parts of vLLM that are used here. vLLM itself is not typed."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol


class EngineRequest(Protocol):
    """vLLM's Request. Its counts include steps in progress.

    num_computed_tokens: tokens whose KV is in memory once all steps in progress have ended.
    num_in_flight_tokens: those of steps in progress; with `num_stale_output_tokens`, those whose output
        is dropped, because the request was preempted meanwhile.
    num_output_placeholders: tokens of steps in progress, counting every draft token as accepted.
    spec_token_ids: draft tokens to verify next.
    """

    request_id: str
    num_prompt_tokens: int
    num_computed_tokens: int
    num_in_flight_tokens: int
    num_stale_output_tokens: int
    drop_stale_output: bool
    num_output_placeholders: int
    next_decode_eligible_step: int
    spec_token_ids: list[int]
    status: int
    max_tokens: int
    arrival_time: float
    resumable: bool
    sampling_params: Any
    lora_request: Any
    block_hashes: Any

    @property
    def num_tokens(self) -> int: ...  # noqa: D102
    @property
    def num_output_tokens(self) -> int: ...  # noqa: D102
    def is_finished(self) -> bool: ...  # noqa: D102


class StepOutput(Protocol):
    """vLLM's SchedulerOutput: the work of a step."""

    num_scheduled_tokens: dict[str, int]
    total_num_scheduled_tokens: int
    scheduled_spec_decode_tokens: dict[str, list[int]]
    scheduled_new_reqs: Sequence[Any]
    scheduled_cached_reqs: Any
    preempted_req_ids: set[str] | None


class RunnerOutput(Protocol):
    """vLLM's ModelRunnerOutput: the result of a step."""

    req_id_to_index: Mapping[str, int]
    sampled_token_ids: Sequence[Sequence[int]]


class Queue(Protocol):
    """vLLM's queue of waiting requests."""

    def add_request(self, request: Any) -> None: ...  # noqa: D102
    def prepend_request(self, request: Any) -> None: ...  # noqa: D102
    def remove_requests(self, requests: Iterable[Any]) -> None: ...  # noqa: D102
    def __iter__(self) -> Any: ...
    def __len__(self) -> int: ...


class EngineScheduler:
    """The parts of vLLM's scheduler that are called or written here."""

    vllm_config: Any
    scheduler_config: Any
    kv_cache_config: Any
    kv_cache_manager: Any
    connector: Any
    lora_config: Any
    running: list[EngineRequest]
    waiting: Queue
    block_size: int
    max_model_len: int
    max_num_active_reqs: int
    max_num_scheduled_tokens: int
    num_sampled_tokens_per_step: int
    num_spec_tokens: int
    num_waiting_for_streaming_input: int
    scheduler_reserve_full_isl: bool
    requires_kv_delivery: bool
    max_num_running_reqs: int
    requests: dict[str, EngineRequest]
    finished_req_ids: set[str]
    current_step: int
    _pause_state: int

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    def add_request(self, request: EngineRequest) -> None: ...  # noqa: D102
    def schedule(self, throttle_prefills: bool = False) -> StepOutput: ...  # type: ignore[empty-body] # noqa: D102
    def shutdown(self) -> None: ...  # noqa: D102
    def reset_prefix_cache(self, *how: Any, **more: Any) -> bool: ...  # type: ignore[empty-body] # noqa: D102
    def has_unfinished_requests(self) -> bool: ...  # type: ignore[empty-body] # noqa: D102
    def _preempt_request(self, request: EngineRequest, timestamp: float, **how: Any) -> None: ...
    def _handle_blocked_waiting_request(self, request: EngineRequest) -> bool: ...  # type: ignore[empty-body]

    def update_from_output(  # noqa: D102
        self, scheduler_output: StepOutput, model_runner_output: RunnerOutput
    ) -> Any: ...

    def finish_requests(  # type: ignore[empty-body] # noqa: D102
        self, request_ids: str | Iterable[str] | None, finished_status: Any
    ) -> list[EngineRequest]: ...

    def _reserve_prefill_lookahead(  # type: ignore[empty-body]
        self, request: EngineRequest, num_computed_tokens: int, num_new_tokens: int
    ) -> int: ...

    def _mamba_block_aligned_split(  # type: ignore[empty-body]
        self, request: EngineRequest, num_new_tokens: int, *computed: int
    ) -> int: ...

    def _try_schedule_encoder_inputs(
        self, request: EngineRequest, num_computed_tokens: int, num_new_tokens: int, *rest: Any, **more: Any
    ) -> Any: ...


if TYPE_CHECKING:
    Steered = EngineScheduler
else:
    Steered = object
"""Base class of mixins for vLLM's schedulers: that scheduler for type checkers, `object` at run time."""
