"""Who of those held before an engine that is not ours goes in now, and in which order.

An engine that cannot be told what each iteration computes serves first come first served. So the order is
made before it, as in the annealing paper's decoupled design [SLO-aware annealing, §4]: everybody who was
admitted is held outside, and let in when the policy would have given tokens to it. The policy is asked what
it is always asked, for the next step, in the picture of the moment when the prompts inside are done
(`outlook`). Those of the held that this step computes go in, in its order, as far as there is room
for all of their prompt at once (`capacity`): the step may have meant a chunk, but no such engine can be
told that. Nobody with a promise is overtaken for want of room.

Then it is asked again, for the step after that, until the engine has enough to go on with: an iteration,
and the time of the way to it. What more there is stays where the policy can still change its mind. An
engine with nothing inside gets somebody whatever the policy says.

Of a policy's steps, what cannot be carried out is: drafts, chunks, and preemption of what is inside.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Generic, NamedTuple, TypeVar

from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job, RequestId, promoted
from penstock_core.external_engine.capacity import Window, iteration_s, refusal
from penstock_core.external_engine.outlook import Inside, outlook

Memory = TypeVar("Memory")

NextStep = Callable[[ReplicaView, Memory], tuple[Step, Memory]]


class Release(NamedTuple, Generic[Memory]):
    """What is decided.

    let_in: of the held jobs, in the order in which they go in.
    promote: best-effort jobs that are promised their targets from here on.
    memory: what the policy remembers.
    """

    let_in: tuple[RequestId, ...]
    promote: tuple[RequestId, ...]
    memory: Memory


def release(
    next_step: NextStep[Memory], view: ReplicaView, inside: Inside, memory: Memory, window: Window
) -> Release[Memory]:
    """Whom to let in now. In `view` wait those who are held; of what is inside, `inside` tells."""
    let_in: list[RequestId] = []
    promote: list[RequestId] = []
    while view.waiting and len(inside.jobs) < view.limits.running:
        ahead = outlook(view, inside)
        enough_s = iteration_s(view, inside.decodes) + window.lead_s
        if ahead.busy_until_s - view.now_s > enough_s:
            break
        step, memory = next_step(replace(ahead, now_s=ahead.busy_until_s), memory)
        view, promote = _with_promoted(view, step.promote), [*promote, *step.promote]
        chosen = _chosen(view, inside, step, window)
        if not chosen:
            break
        for job in chosen:
            inside = inside.joined_by(job, view.now_s)
        ids = [job.request.id for job in chosen]
        view = replace(view, waiting=tuple(job for job in view.waiting if job.request.id not in ids))
        let_in += ids
    return Release(tuple(let_in), tuple(promote), memory)


def in_order_of_arrival(view: ReplicaView, memory: Memory) -> tuple[Step, Memory]:
    """A step for where the policy has failed: everybody, who waits longest first."""
    return Step({job.request.id: job.pending_tokens for job in view.waiting}), memory


def _with_promoted(view: ReplicaView, ids: Sequence[RequestId]) -> ReplicaView:
    if not ids:
        return view
    return replace(
        view, waiting=tuple(promoted(job) if job.request.id in ids else job for job in view.waiting)
    )


def _chosen(view: ReplicaView, inside: Inside, step: Step, window: Window) -> list[Job]:
    """Those of the step's held jobs that there is room for, in its order."""
    held = {job.request.id: job for job in view.waiting}
    asked = [held[job_id] for job_id in step.tokens if job_id in held]
    if not inside.jobs and not asked:
        return [view.waiting[0]]
    chosen: list[Job] = []
    for job in asked:
        refused = refusal(view, inside, job, window) if inside.jobs else None
        if refused is None:
            chosen.append(job)
            inside = inside.joined_by(job, view.now_s)
        elif not refused.passed_over:
            break
    return chosen
