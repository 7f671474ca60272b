"""A policy's step, turned into what vLLM's scheduler must do, or refused before anything has changed.

vLLM computes of each running request all that is pending, then starts who waits, as far as its budget goes. A
plan differs from that by the order of its lists, by how many tokens it may give to each (`caps`), by how many
drafts it finds to verify, and by who waits at all. `caps` is None where everybody who runs computes all that
is pending: most steps, and the cheapest.
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job, RequestId

from penstock_vllm.ledger import Held

Caps = Mapping[str, int]
"""Most tokens of each request in a step, drafts included, by vLLM's ids. Who is not in it has no cap."""


class ImpossibleStep(Exception):
    """A policy asked for what no engine could do. Nothing has been changed."""


class Plan(NamedTuple):
    """What vLLM must do in a step.

    preempt: running requests that lose their KV before it.
    order: running requests that compute, in this order; None where that is everybody in vLLM's own order.
    start: waiting requests that start, in this order.
    caps: see above; those who run in vLLM's own order have none.
    drafts: most drafts of each by job id; who is not in it verifies none.
    promote: jobs that have a promise from here on.
    stands_blocks: as the policy's step says.
    """

    preempt: tuple[Held, ...]
    order: tuple[Held, ...] | None
    start: tuple[Held, ...]
    caps: Caps | None
    drafts: Mapping[RequestId, int]
    promote: tuple[Held, ...]
    stands_blocks: int | None = None


def plan_of(step: Step, view: ReplicaView, held: Mapping[RequestId, Held]) -> Plan:
    """What to do for this step. Raises ImpossibleStep."""
    if _is_everybody(step, view.running):
        return _of_everybody(step, view, held)
    running = {job.request.id: job for job in view.running}
    waiting = {job.request.id: job for job in view.waiting}
    _check(step, view, running, waiting)
    order = tuple([held[job_id] for job_id in step.tokens if job_id in running])
    start = tuple([held[job_id] for job_id in step.tokens if job_id not in running])
    caps = {held[job_id].request.request_id: 0 for job_id in running}
    for job_id, tokens in step.tokens.items():
        caps[held[job_id].request.request_id] = tokens + step.drafts.get(job_id, 0)
    return Plan(
        preempt=tuple([held[job_id] for job_id in step.preempt]),
        order=order,
        start=start,
        caps=caps,
        drafts=step.drafts,
        promote=tuple([held[job_id] for job_id in step.promote]),
    )


def _is_everybody(step: Step, running: Sequence[Job]) -> bool:
    """Whether every running job computes its one pending token, first and in vLLM's order.

    Newcomers may follow. Nothing else may happen.
    """
    everybody = len(running)
    if step.preempt or step.promote or len(step.tokens) < everybody:
        return False
    decodes = [request.id for request, done, out, *_ in running if request.prompt_tokens + out - done == 1]
    if len(step.tokens) == everybody:
        return decodes == list(step.tokens) and not any([tokens > 1 for tokens in step.tokens.values()])
    first = list(islice(step.tokens.items(), everybody))
    return first == [(job_id, 1) for job_id in decodes]


def _of_everybody(step: Step, view: ReplicaView, held: Mapping[RequestId, Held]) -> Plan:
    """Of those who run nothing has to be said. Raises ImpossibleStep for newcomers."""
    if len(step.tokens) == len(view.running):
        return Plan((), None, (), None, step.drafts, (), step.stands_blocks)
    newcomers = dict(islice(step.tokens.items(), len(view.running), None))
    waiting = {job.request.id: job for job in view.waiting if job.request.id in newcomers}
    _check_tokens(newcomers, {}, waiting)
    _check_batch(step, view)
    caps = {
        held[job_id].request.request_id: tokens
        for job_id, tokens in newcomers.items()
        if tokens < waiting[job_id].pending_tokens
    }
    return Plan((), None, tuple([held[job_id] for job_id in newcomers]), caps or None, step.drafts, ())


def _check(step: Step, view: ReplicaView, running: Mapping[str, Job], waiting: Mapping[str, Job]) -> None:
    _check_tokens(step.tokens, running, waiting)
    for job_id, drafts in step.drafts.items():
        if job_id not in step.tokens or drafts < 0 or (drafts and not running[job_id].decoding):
            raise ImpossibleStep(f"{job_id} cannot draft {drafts} tokens")
    _check_batch(step, view)
    if any(job_id not in running or job_id in step.tokens for job_id in step.preempt):
        raise ImpossibleStep("preempts who does not run, or is in the batch")
    if len(set(step.preempt)) < len(step.preempt):
        raise ImpossibleStep("preempts a job twice")
    if any(job_id not in running and job_id not in waiting for job_id in step.promote):
        raise ImpossibleStep("promotes who is not here")


def _check_tokens(
    tokens_of: Mapping[RequestId, int], running: Mapping[str, Job], waiting: Mapping[str, Job]
) -> None:
    for job_id, tokens in tokens_of.items():
        job = running.get(job_id) or waiting.get(job_id)
        if job is None:
            raise ImpossibleStep(f"{job_id} is not here, or cannot be computed now")
        if not 0 < tokens <= job.pending_tokens:
            raise ImpossibleStep(f"{job_id} has {job.pending_tokens} tokens pending, not {tokens}")


def _check_batch(step: Step, view: ReplicaView) -> None:
    batch_tokens = sum(step.tokens.values()) + sum(step.drafts.values())
    if batch_tokens > view.limits.batch_tokens:
        raise ImpossibleStep(f"{batch_tokens} tokens in a batch of at most {view.limits.batch_tokens}")


def within_loras(start: Sequence[Held], running: Sequence[Held], most: int) -> tuple[Held, ...]:
    """Those of them up to the first with whom more adapters would be in use than the engine has room for.

    Every running request counts, also one that rests in this step: it will be computed beside the newcomer.
    """
    used = {lora for held in running if (lora := _lora(held))}
    for at, held in enumerate(start):
        lora = _lora(held)
        if lora:
            used.add(lora)
        if len(used) > most:
            return tuple(start[:at])
    return tuple(start)


def with_a_lora_in_use(waiting: Sequence[Held], running: Sequence[Held], most: int) -> Sequence[Held]:
    """Who could start by their adapters: everybody while there is room for another one.

    The others are not there for policies. One that waits for a newcomer would wait for ever.
    """
    used = {lora for held in running if (lora := _lora(held))}
    if len(used) < most:
        return waiting
    return [held for held in waiting if _lora(held) in used or not _lora(held)]


def _lora(held: Held) -> int:
    lora = held.request.lora_request
    return int(lora.lora_int_id) if lora is not None else 0
