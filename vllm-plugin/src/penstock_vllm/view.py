"""The policy's view of vLLM's requests in their state when the next step begins.

With asynchronous scheduling, vLLM plans a step while the previous one is being computed. Its counts are
already those at that step's end, except for draft tokens, which it counts as accepted until the result is
known. Policies see them as rejected, so every request has at least the progress that its job shows. The
planned step begins when the one in progress ends, which is the time of the view.

Some running requests are left out, because vLLM cannot compute them in this step: those whose last token is
being computed, and those that wait for their turn in a pipeline. They still use memory and slots.
"""

from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple

from penstock_core.domain.replica_view import KvCache, Limits, ReplicaView
from penstock_core.domain.request import Job, advance, after_each
from penstock_core.domain.shared_prefixes import SharedPrefixes
from penstock_core.timing.speculation import Speculation
from penstock_core.timing.time_model import TimeModel

from penstock_vllm.engine import EngineRequest
from penstock_vllm.ledger import HeldRequest


class StepBounds(NamedTuple):
    """Bounds of every step: the engine's own, or the lower ones of the settings.

    longest_tokens: most tokens of one request whose KV is ever computed.
    """

    batch_tokens: int
    running: int
    longest_tokens: int


class KvMemory(NamedTuple):
    """vLLM's KV cache.

    groups: layers of different kinds, each of which has blocks of its own for the same tokens.
    """

    total_blocks: int
    free_blocks: int
    block_tokens: int
    groups: int = 1

    @property
    def kv(self) -> KvCache:
        """Return the cache as policies count it: a block is one in every group of layers."""
        return KvCache(self.total_blocks // self.groups, self.free_blocks // self.groups, self.block_tokens)


class StepsInProgress(Enum):
    """Work that is still being computed while the next step is planned."""

    NONE = auto()
    ONE_TOKEN_EACH = auto()  # one step, of one token of every running request
    OTHER = auto()


def view_of(
    running: Sequence[HeldRequest],
    waiting: tuple[Job, ...],
    *,
    memory: KvMemory,
    bounds: StepBounds,
    model: TimeModel,
    speculation: Speculation | None,
    step: int,
    start_s: float,
    in_progress: StepsInProgress,
    shared: SharedPrefixes | None = None,
) -> ReplicaView:
    """Return the view for step number `step`, which begins at `start_s`.

    shared: common prefixes of requests; None if unknown.
    """
    jobs = _running_jobs(running, bounds, step, start_s, in_progress)
    hidden = len(running) - len(jobs)
    limits = Limits(bounds.batch_tokens, max(bounds.running - hidden, 0))
    kv = memory.kv if shared is None else memory.kv.with_shared_prefixes(shared)
    return ReplicaView(start_s, start_s, jobs, waiting, kv, limits, model, speculation)


def _running_jobs(
    running: Sequence[HeldRequest],
    bounds: StepBounds,
    step: int,
    start_s: float,
    in_progress: StepsInProgress,
) -> tuple[Job, ...]:
    """Return the jobs that can be computed in this step."""
    if in_progress is StepsInProgress.NONE:
        return tuple([held.job for held in running if held.planned])
    going = [
        held for held in running if held.planned and may_continue(held.request, bounds.longest_tokens, step)
    ]
    if in_progress is StepsInProgress.ONE_TOKEN_EACH:
        return tuple(after_each([held.job for held in going], [start_s]))
    seen = [after_steps_in_progress(held, start_s) for held in going]
    return tuple([job for job in seen if job.pending_tokens > 0])


def may_continue(request: EngineRequest, longest_tokens: int, step: int) -> bool:
    """Return whether vLLM can compute this running request in this step."""
    coming, computed = request.num_output_placeholders, request.num_computed_tokens
    ends = coming > 0 and computed + 2 - coming >= request.num_prompt_tokens + request.max_tokens
    return not ends and computed < longest_tokens and step >= request.next_decode_eligible_step


def after_steps_in_progress(held: HeldRequest, end_s: float) -> Job:
    """Return a running job in its state after the steps in progress, if all draft tokens are rejected."""
    request, job, drafts = held.request, held.job, held.drafts_in_progress
    new_tokens = max(request.num_output_placeholders - drafts, 0)
    computed = request.num_computed_tokens - drafts - job.computed_tokens
    if not computed and not new_tokens:
        return job
    return advance(job, computed, new_tokens, end_s)
