"""Validation of a policy's step.

All checks run before any change. New requests must fit the free blocks, because starting them is the policy's
choice. Growth of running requests is not checked here: `preemption` makes room for it.
"""

from collections.abc import Mapping, Sequence

from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import KvCache, Limits
from penstock_core.domain.request import RequestId

from penstock_simulator.engine.iteration import ActiveRequest, Grant, InvalidStep, Iteration
from penstock_simulator.engine.preemption import blocks_freed, growth_blocks

Entries = Mapping[RequestId, ActiveRequest]


def checked_iteration(
    step: Step, running: Entries, waiting: Entries, limits: Limits, kv: KvCache
) -> Iteration:
    """Return the step as an iteration. Raises InvalidStep."""
    decodes: list[ActiveRequest] = []
    grants: list[Grant] = []
    for job_id, tokens in step.tokens.items():
        entry = running.get(job_id)
        if entry is not None and entry.decoding and tokens == 1 and job_id not in step.drafts:
            decodes.append(entry)
        else:
            grants.append(_grant(job_id, entry or waiting.get(job_id), tokens, step.drafts.get(job_id, 0)))
    _check_batch(step, limits)
    _check_preempted(step, running)
    _check_promoted(step, running, waiting)
    new = [grant for grant in grants if grant.entry.blocks == 0]
    if new:
        _check_new(new, [running[job_id] for job_id in step.preempt], len(running), limits, kv)
    return Iteration(decodes, grants, step.preempt)


def _grant(job_id: RequestId, entry: ActiveRequest | None, tokens: int, drafts: int) -> Grant:
    if entry is None:
        raise InvalidStep(f"{job_id} is unknown")
    if not 0 < tokens <= entry.job.pending_tokens:
        raise InvalidStep(f"{job_id} has {entry.job.pending_tokens} tokens pending, not {tokens}")
    if drafts < 0 or (drafts and not entry.decoding):
        raise InvalidStep(f"{job_id} cannot have {drafts} draft tokens")
    return Grant(entry, tokens, drafts)


def _check_batch(step: Step, limits: Limits) -> None:
    batch_tokens = sum(step.tokens.values()) + sum(step.drafts.values())
    if batch_tokens > limits.batch_tokens:
        raise InvalidStep(f"{batch_tokens} tokens in a batch of at most {limits.batch_tokens}")
    if not step.drafts.keys() <= step.tokens.keys():
        raise InvalidStep("draft tokens for a job that is not in the batch")


def _check_preempted(step: Step, running: Entries) -> None:
    for job_id in step.preempt:
        if job_id not in running or job_id in step.tokens:
            raise InvalidStep(f"{job_id} cannot be preempted: it is not running, or is in the batch")
    if len(set(step.preempt)) < len(step.preempt):
        raise InvalidStep("a job is listed twice for preemption")


def _check_promoted(step: Step, running: Entries, waiting: Entries) -> None:
    for job_id in step.promote:
        entry = running.get(job_id) or waiting.get(job_id)
        if entry is None or not entry.job.best_effort:
            raise InvalidStep(f"{job_id} cannot be promoted: it is unknown, or not best effort")


def _check_new(
    new: Sequence[Grant], preempted: Sequence[ActiveRequest], running: int, limits: Limits, kv: KvCache
) -> None:
    running += len(new) - len(preempted)
    if running > limits.running:
        raise InvalidStep(f"{running} requests would run, of at most {limits.running}")
    free_blocks = kv.free_blocks + sum(blocks_freed(entry, kv) for entry in preempted)
    needed_blocks = sum(growth_blocks(grant.entry, grant.kv_tokens, kv) for grant in new)
    if needed_blocks > free_blocks:
        raise InvalidStep(f"new requests need {needed_blocks} blocks, {free_blocks} are free")
