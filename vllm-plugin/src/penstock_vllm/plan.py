"""Translates a policy's step into instructions for vLLM's scheduler, or rejects it before anything changes.

vLLM computes all pending tokens of each running request, then starts waiting ones, within its token budget. A
plan changes the order of its lists, the tokens of each request (`caps`), the draft tokens to verify, and
which requests wait. `caps` is None if every running request computes all of its pending tokens, which is the
case in most steps and the cheapest.
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job, RequestId

from penstock_vllm.ledger import HeldRequest

Caps = Mapping[str, int]
"""Most tokens of each request in a step, including draft tokens, by vLLM's ids. Others have no cap."""


class ImpossibleStep(Exception):
    """A step that no engine could execute. Nothing has been changed."""


class StepInstructions(NamedTuple):
    """Instructions for vLLM in a step.

    preempt: running requests that lose their KV first.
    order: running requests that compute, in this order; None if all do in vLLM's own order.
    start: waiting requests that start, in this order.
    caps: see above; None if running requests compute in vLLM's own order.
    drafts: most draft tokens of each by job id; a job that is not in it verifies none.
    promote: jobs that are admitted from now on.
    repeatable_blocks: as in the policy's step.
    """

    preempt: tuple[HeldRequest, ...]
    order: tuple[HeldRequest, ...] | None
    start: tuple[HeldRequest, ...]
    caps: Caps | None
    drafts: Mapping[RequestId, int]
    promote: tuple[HeldRequest, ...]
    repeatable_blocks: int | None = None


class PlannedStep(NamedTuple):
    """A policy's step: instructions, and the view that it was planned for."""

    instructions: StepInstructions
    view: ReplicaView


def plan_of(step: Step, view: ReplicaView, held: Mapping[RequestId, HeldRequest]) -> StepInstructions:
    """Return the instructions for this step. Raises ImpossibleStep."""
    if _is_all_decodes(step, view.running):
        return _of_all_decodes(step, view, held)
    running = {job.request.id: job for job in view.running}
    waiting = {job.request.id: job for job in view.waiting}
    _check(step, view, running, waiting)
    order = tuple([held[job_id] for job_id in step.tokens if job_id in running])
    start = tuple([held[job_id] for job_id in step.tokens if job_id not in running])
    caps = {held[job_id].request.request_id: 0 for job_id in running}
    for job_id, tokens in step.tokens.items():
        caps[held[job_id].request.request_id] = tokens + step.drafts.get(job_id, 0)
    return StepInstructions(
        preempt=tuple([held[job_id] for job_id in step.preempt]),
        order=order,
        start=start,
        caps=caps,
        drafts=step.drafts,
        promote=tuple([held[job_id] for job_id in step.promote]),
    )


def _is_all_decodes(step: Step, running: Sequence[Job]) -> bool:
    """Return whether every running job computes its one pending token, first and in vLLM's order.

    New requests may follow. Nothing else may happen.
    """
    count = len(running)
    if step.preempt or step.promote or len(step.tokens) < count:
        return False
    decodes = [request.id for request, done, out, *_ in running if request.prompt_tokens + out - done == 1]
    if len(step.tokens) == count:
        return decodes == list(step.tokens) and not any([tokens > 1 for tokens in step.tokens.values()])
    first = list(islice(step.tokens.items(), count))
    return first == [(job_id, 1) for job_id in decodes]


def _of_all_decodes(step: Step, view: ReplicaView, held: Mapping[RequestId, HeldRequest]) -> StepInstructions:
    """Return a plan without instructions for running requests. Raises ImpossibleStep for new ones."""
    if len(step.tokens) == len(view.running):
        return StepInstructions((), None, (), None, step.drafts, (), step.repeatable_blocks)
    starting = dict(islice(step.tokens.items(), len(view.running), None))
    waiting = {job.request.id: job for job in view.waiting if job.request.id in starting}
    _check_tokens(starting, {}, waiting)
    _check_batch(step, view)
    caps = {
        held[job_id].request.request_id: tokens
        for job_id, tokens in starting.items()
        if tokens < waiting[job_id].pending_tokens
    }
    return StepInstructions(
        (), None, tuple([held[job_id] for job_id in starting]), caps or None, step.drafts, ()
    )


def _check(step: Step, view: ReplicaView, running: Mapping[str, Job], waiting: Mapping[str, Job]) -> None:
    _check_tokens(step.tokens, running, waiting)
    for job_id, drafts in step.drafts.items():
        if job_id not in step.tokens or drafts < 0 or (drafts and not running[job_id].decoding):
            raise ImpossibleStep(f"{job_id} cannot draft {drafts} tokens")
    _check_batch(step, view)
    if any(job_id not in running or job_id in step.tokens for job_id in step.preempt):
        raise ImpossibleStep("preempts a job that does not run, or is in the batch")
    if len(set(step.preempt)) < len(step.preempt):
        raise ImpossibleStep("preempts a job twice")
    if any(job_id not in running and job_id not in waiting for job_id in step.promote):
        raise ImpossibleStep("promotes an unknown job")


def _check_tokens(
    tokens_of: Mapping[RequestId, int], running: Mapping[str, Job], waiting: Mapping[str, Job]
) -> None:
    for job_id, tokens in tokens_of.items():
        job = running.get(job_id) or waiting.get(job_id)
        if job is None:
            raise ImpossibleStep(f"{job_id} is unknown, or cannot be computed now")
        if not 0 < tokens <= job.pending_tokens:
            raise ImpossibleStep(f"{job_id} has {job.pending_tokens} tokens pending, not {tokens}")


def _check_batch(step: Step, view: ReplicaView) -> None:
    batch_tokens = sum(step.tokens.values()) + sum(step.drafts.values())
    if batch_tokens > view.limits.batch_tokens:
        raise ImpossibleStep(f"{batch_tokens} tokens in a batch of at most {view.limits.batch_tokens}")


def within_loras(
    start: Sequence[HeldRequest], running: Sequence[HeldRequest], most: int
) -> tuple[HeldRequest, ...]:
    """Return the requests before the first one with which more adapters are in use than the engine allows.

    All running requests count, including those outside this step, because they are computed later beside the
    new one.
    """
    used = {lora for held in running if (lora := _lora(held))}
    for at, held in enumerate(start):
        lora = _lora(held)
        if lora:
            used.add(lora)
        if len(used) > most:
            return tuple(start[:at])
    return tuple(start)


def with_a_lora_in_use(
    waiting: Sequence[HeldRequest], running: Sequence[HeldRequest], most: int
) -> Sequence[HeldRequest]:
    """Return the requests whose adapters allow a start: all while another adapter fits, else those in use.

    Policies do not see the others, because a policy that starts only such a request would wait forever.
    """
    used = {lora for held in running if (lora := _lora(held))}
    if len(used) < most:
        return waiting
    return [held for held in waiting if _lora(held) in used or not _lora(held)]


def _lora(held: HeldRequest) -> int:
    lora = held.request.lora_request
    return int(lora.lora_int_id) if lora is not None else 0
