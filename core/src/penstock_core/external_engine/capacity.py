"""Checks whether an engine that schedules by itself can take one more request.

Four conditions are checked:

- A slot, so that no request waits in the engine's own queue, where no policy applies.
- KV memory at the future peak of all requests inside (`kv_forecast`): an engine that runs out of blocks
  preempts.
- The TPOT of the decodes inside. The engine computes the prompt as fast as it can, and until then each of its
  iterations takes as long as a full batch. Tokens that are due meanwhile must still be in time; the slack of
  decodes that are ahead of their deadlines is used. Decodes that cannot meet their TPOT anyway are ignored.
- For best effort, a share of slots and memory: a request inside cannot be paused when one with an SLO
  arrives.

The third condition has exceptions. A request whose own first token can only just be in time is released,
because its SLO counts as much. So is a request that has waited for `patience_s`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job
from penstock_core.external_engine.planning_view import EngineJobs, prefill_forecast
from penstock_core.forecast.kv_forecast import forecast_jobs
from penstock_core.timing.time_model import BatchWork


@dataclass(frozen=True, slots=True)
class ReleaseWindow:
    """Limits on what is sent to an external engine.

    lead_s: seconds, besides one iteration, by which the next prompt is sent before those inside are computed:
        the transfer time to the engine, so that it is not idle while requests wait.
    best_effort_share: largest share of slots and memory that best effort may hold inside.
    patience_s: seconds from its arrival for which a request is held back to protect the TPOT of others.
    """

    lead_s: float = 0.02
    best_effort_share: float = 0.5
    patience_s: float = 10.0


class Refusal(NamedTuple):
    """The decision to hold a request. passed_over: whether later requests may be released before it."""

    passed_over: bool


def refusal(view: ReplicaView, inside: EngineJobs, job: Job, window: ReleaseWindow) -> Refusal | None:
    """Return why this job is held now; None if it may be released."""
    jobs = (*inside.jobs, job)
    if job.best_effort and not _shared(view, [one for one in jobs if one.best_effort], window):
        return Refusal(passed_over=True)
    if len(jobs) > view.limits.running or forecast_jobs(jobs, view.kv).peak_blocks > view.kv.total_blocks:
        return Refusal(passed_over=False)
    if _in_time(view, inside, job, window):
        return None
    return Refusal(passed_over=job.best_effort)


def iteration_s(view: ReplicaView, decodes: Sequence[Job]) -> float:
    """Return the seconds of an iteration of these decodes alone."""
    context_tokens = sum(job.computed_tokens + 1 for job in decodes)
    return view.model.seconds(BatchWork(len(decodes), context_tokens))


def _shared(view: ReplicaView, surplus: Sequence[Job], window: ReleaseWindow) -> bool:
    """Return whether this much best effort leaves the reserved share free. One may be inside in any case."""
    slots, blocks = view.limits.running, view.kv.total_blocks
    share = window.best_effort_share
    return len(surplus) == 1 or (
        len(surplus) <= share * slots and forecast_jobs(surplus, view.kv).peak_blocks <= share * blocks
    )


def _in_time(view: ReplicaView, inside: EngineJobs, job: Job, window: ReleaseWindow) -> bool:
    """Return whether decodes inside meet their TPOT despite this prompt, or the job cannot wait."""
    if view.now_s - job.request.arrival_s >= window.patience_s:
        return True
    alone_s = iteration_s(view, inside.decodes)
    prefills_done = prefill_forecast(view, inside.joined_by(job, view.now_s))
    last_call_s = prefills_done.done_s + alone_s + window.lead_s
    if prefills_done.done_s <= job.due_s < last_call_s:
        return True
    iterations = max(ceil((prefills_done.done_s - view.now_s) / prefills_done.iteration_s), 1)
    return all(
        _tpot_met(decode, decode.tpot_s, view.now_s, iterations, prefills_done.done_s)
        for decode in inside.decodes
        if decode.tpot_s is not None and not decode.best_effort and _can_meet(decode, view.now_s, alone_s)
    )


def _tpot_met(job: Job, tpot_s: float, now_s: float, iterations: int, done_s: float) -> bool:
    """Return whether each token of these iterations is in time; the first and the last decide."""
    first_s = now_s + (done_s - now_s) / iterations
    return first_s <= job.due_s and done_s <= job.due_s + (iterations - 1) * tpot_s


def _can_meet(job: Job, now_s: float, alone_s: float) -> bool:
    """Return whether a job's last token can still be in time if only decodes are computed from now on."""
    left = job.output_tokens_left
    return now_s + left * alone_s <= job.due_s + (left - 1) * (job.tpot_s or 0.0)
