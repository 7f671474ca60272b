"""Selects the held requests that are sent to an external engine now, and their order.

An engine whose iterations cannot be planned serves first come first served. So the order is made before it,
as in the annealing paper's decoupled design [SLO-aware annealing, §4]: admitted requests are held outside and
released when the policy would give them tokens. The policy is asked for the next step as always, in the view
of the moment when the prompts inside are computed (`planning_view`). Held requests that this step computes
are released in its order, as far as there is capacity for their whole prompts (`capacity`), because such an
engine cannot be limited to a chunk. An admitted request is not overtaken for lack of capacity.

Then the policy is asked for the step after that, until the engine has work for an iteration and for the
transfer time. The other requests stay held, where the policy can still reorder them. An empty engine gets a
request whatever the policy decides.

Parts of a step that cannot be executed: draft tokens, chunks, and preemption of requests inside.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Generic, NamedTuple, TypeVar

from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import ReplicaView, with_promoted
from penstock_core.domain.request import Job, RequestId
from penstock_core.external_engine.capacity import ReleaseWindow, iteration_s, refusal
from penstock_core.external_engine.planning_view import EngineJobs, planning_view

Memory = TypeVar("Memory")

NextStep = Callable[[ReplicaView, Memory], tuple[Step, Memory]]


class Release(NamedTuple, Generic[Memory]):
    """Result of a decision.

    released: held jobs to send, in this order.
    promote: best-effort jobs that are admitted from now on.
    memory: the policy's memory.
    """

    released: tuple[RequestId, ...]
    promote: tuple[RequestId, ...]
    memory: Memory


def release(
    next_step: NextStep[Memory], view: ReplicaView, inside: EngineJobs, memory: Memory, window: ReleaseWindow
) -> Release[Memory]:
    """Return the jobs to release now. `view` has the held requests, `inside` those that were sent."""
    released: list[RequestId] = []
    promote: list[RequestId] = []
    while view.waiting and len(inside.jobs) < view.limits.running:
        ahead = planning_view(view, inside)
        enough_s = iteration_s(view, inside.decodes) + window.lead_s
        if ahead.busy_until_s - view.now_s > enough_s:
            break
        step, memory = next_step(replace(ahead, now_s=ahead.busy_until_s), memory)
        view, promote = with_promoted(view, step.promote), [*promote, *step.promote]
        chosen = _chosen(view, inside, step, window)
        if not chosen:
            break
        for job in chosen:
            inside = inside.joined_by(job, view.now_s)
        ids = [job.request.id for job in chosen]
        view = replace(view, waiting=tuple(job for job in view.waiting if job.request.id not in ids))
        released += ids
    return Release(tuple(released), tuple(promote), memory)


def in_order_of_arrival(view: ReplicaView, memory: Memory) -> tuple[Step, Memory]:
    """Return a step for a failed policy: all waiting jobs, the longest wait first."""
    return Step({job.request.id: job.pending_tokens for job in view.waiting}), memory


def _chosen(view: ReplicaView, inside: EngineJobs, step: Step, window: ReleaseWindow) -> list[Job]:
    """Return the step's held jobs for which there is capacity, in its order."""
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
