"""A step in progress, and its cost by the time model."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from penstock_core.domain.request import Job
from penstock_core.timing.time_model import BatchWork, TimeModel, chunk_work

from penstock_vllm.engine import EngineRequest, RunnerOutput, StepOutput
from penstock_vllm.ledger import HeldRequest


class StepInProgress(NamedTuple):
    """One step of vLLM.

    output: vLLM's SchedulerOutput. requested_s: when it was planned.
    work: its work. predicted_s: its duration by the time model.
    chunks: tokens that it prefills of each request, by vLLM's ids.
    membership: the ledger's count if it computes one token of every running request; else None.
    """

    output: StepOutput
    requested_s: float
    work: BatchWork
    predicted_s: float
    chunks: Mapping[str, int]
    membership: int | None = None


def step_in_progress(
    output: StepOutput,
    held: Mapping[str, HeldRequest],
    requested_s: float,
    model: TimeModel,
    decodes: Sequence[Job] | None,
) -> StepInProgress:
    """Return the step that vLLM has just planned.

    decodes: its requests, if it certainly has only decodes.
    """
    tokens, drafted = output.num_scheduled_tokens, output.scheduled_spec_decode_tokens
    spec_steps = max([len(ids) for ids in drafted.values()], default=0)
    if decodes is not None and len(decodes) == len(tokens):
        context_tokens = sum([job.computed_tokens for job in decodes]) + len(decodes)
        work = BatchWork(output.total_num_scheduled_tokens, context_tokens, 0.0, spec_steps)
        return StepInProgress(output, requested_s, work, model.seconds(work), {})
    context_tokens, prefill_work, chunks = 0, 0.0, {}
    for engine_id, count in tokens.items():
        request = held[engine_id].request
        before_tokens = request.num_computed_tokens - count
        if decoded(request, before_tokens):
            context_tokens += before_tokens + 1
        else:
            chunks[engine_id] = count
            prefill_work += chunk_work(count, before_tokens)
    work = BatchWork(output.total_num_scheduled_tokens, context_tokens, prefill_work, spec_steps)
    return StepInProgress(output, requested_s, work, model.seconds(work), chunks)


def computes_one_each(output: StepOutput, running: int) -> bool:
    """Return whether a step computes one token each of as many requests as are running."""
    return len(output.num_scheduled_tokens) == running == output.total_num_scheduled_tokens


def decoded(request: EngineRequest, before_tokens: int) -> bool:
    """Return whether a step that began with this many computed tokens began after the request's prefill."""
    tokens = request.num_tokens
    return before_tokens >= tokens or (before_tokens == tokens - 1 and request.num_output_tokens > 0)


def generated_one_each(output: StepOutput, result: RunnerOutput) -> bool:
    """Return whether a step of one token each generated one token of each. `output` has no draft tokens."""
    tokens = result.sampled_token_ids
    return len(tokens) == len(output.num_scheduled_tokens) == sum(map(len, tokens))
