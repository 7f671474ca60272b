"""A policy's step, turned into an iteration or refused.

Everything is looked at before anything is changed. Growth of running requests is no concern here: that is
made room for (`making_room`), while newcomers are a policy's free choice and have to fit what is free.
"""

from collections.abc import Mapping, Sequence

from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import KvCache, Limits
from penstock_core.domain.request import RequestId

from penstock_simulator.iteration import Grant, ImpossibleStep, Iteration, Seat

Seats = Mapping[RequestId, Seat]


def checked(step: Step, running: Seats, waiting: Seats, limits: Limits, kv: KvCache) -> Iteration:
    """The step as an iteration. Raises ImpossibleStep."""
    decodes: list[Seat] = []
    grants: list[Grant] = []
    for job_id, tokens in step.tokens.items():
        seat = running.get(job_id)
        if seat is not None and seat.decoding and tokens == 1 and job_id not in step.drafts:
            decodes.append(seat)
        else:
            grants.append(_grant(job_id, seat or waiting.get(job_id), tokens, step.drafts.get(job_id, 0)))
    _check_batch(step, limits)
    _check_preempted(step, running)
    _check_promoted(step, running, waiting)
    newcomers = [grant for grant in grants if grant.seat.blocks == 0]
    if newcomers:
        _check_newcomers(newcomers, [running[job_id] for job_id in step.preempt], len(running), limits, kv)
    return Iteration(decodes, grants, step.preempt)


def _grant(job_id: RequestId, seat: Seat | None, tokens: int, drafts: int) -> Grant:
    if seat is None:
        raise ImpossibleStep(f"{job_id} is not here")
    if not 0 < tokens <= seat.job.pending_tokens:
        raise ImpossibleStep(f"{job_id} has {seat.job.pending_tokens} tokens pending, not {tokens}")
    if drafts < 0 or (drafts and not seat.decoding):
        raise ImpossibleStep(f"{job_id} cannot draft {drafts} tokens")
    return Grant(seat, tokens, drafts)


def _check_batch(step: Step, limits: Limits) -> None:
    batch_tokens = sum(step.tokens.values()) + sum(step.drafts.values())
    if batch_tokens > limits.batch_tokens:
        raise ImpossibleStep(f"{batch_tokens} tokens in a batch of at most {limits.batch_tokens}")
    if not step.drafts.keys() <= step.tokens.keys():
        raise ImpossibleStep("drafts for a job that is not in the batch")


def _check_preempted(step: Step, running: Seats) -> None:
    for job_id in step.preempt:
        if job_id not in running or job_id in step.tokens:
            raise ImpossibleStep(f"{job_id} cannot be preempted: it is not running, or is in the batch")
    if len(set(step.preempt)) < len(step.preempt):
        raise ImpossibleStep("a job is preempted twice")


def _check_promoted(step: Step, running: Seats, waiting: Seats) -> None:
    for job_id in step.promote:
        seat = running.get(job_id) or waiting.get(job_id)
        if seat is None or not seat.job.best_effort:
            raise ImpossibleStep(f"{job_id} cannot be promoted: it is not here, or not best effort")


def _check_newcomers(
    newcomers: Sequence[Grant], preempted: Sequence[Seat], running: int, limits: Limits, kv: KvCache
) -> None:
    running += len(newcomers) - len(preempted)
    if running > limits.running:
        raise ImpossibleStep(f"{running} running, at most {limits.running} may")
    free_blocks = kv.free_blocks + sum(seat.blocks for seat in preempted)
    needed_blocks = sum(kv.blocks_for(grant.kv_tokens) for grant in newcomers)
    if needed_blocks > free_blocks:
        raise ImpossibleStep(f"newcomers need {needed_blocks} blocks, {free_blocks} are free")
