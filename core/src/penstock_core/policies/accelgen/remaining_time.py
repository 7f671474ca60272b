"""AccelGen's order: how long a request can still wait [AccelGen, §4.3].

A request's remaining time is its target minus the wait so far and the remaining work:

    T_r = SLO − T_w − T_e        T_e = N_ck · T_max        N_ck = ⌈S_r / L_c⌉, 1 for a decode

With deadlines that is `due − now − T_e`. A decode's deadline follows its tier's judge, so one that is judged
by a mean may wait as long as it is ahead.

A target for the whole job is spread evenly over its N_ck chunks and S_g tokens:

    T_e = N_ck · T_max + S_g · (T_max + P_max · P)        T_r = (SLO_JCT − T_e) / (N_ck + S_g)

Time that an iteration saves or exceeds is carried over to the next in full. So a job has a fixed schedule,
and needs no state: iteration j must start by arrival + (j + 1) · SLO_JCT / (N_ck + S_g) minus its own
duration.

P_max · P is the time lost to preemption per token: the longest duration of one, times their frequency.
"""

from collections.abc import Mapping
from math import ceil, inf
from typing import NamedTuple

from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job, RequestId
from penstock_core.domain.slo import next_token_due_s

LEARNING_RATE = 0.05
"""Weight of a new observation in the means of chunks and preemptions: twenty iterations, about a second."""


class PreemptionHistory(NamedTuple):
    """Observed preemptions. A waiting request with generated tokens counts as preempted.

    since: when each preempted request was first observed as preempted. longest_s: P_max.
    share: P, preemptions per generated token.
    """

    since: Mapping[RequestId, float] = {}
    longest_s: float = 0.0
    share: float = 0.0

    @property
    def per_token_s(self) -> float:
        """Return P_max · P."""
        return self.longest_s * self.share


class IterationSpeed(NamedTuple):
    """Expected duration of a job's own work.

    chunk_tokens: L_c. iteration_s: T_max. preempted_s: P_max · P, time lost to preemption per token.
    """

    chunk_tokens: float
    iteration_s: float
    preempted_s: float = 0.0

    def chunks(self, tokens: int) -> int:
        """Return N_ck of this many prompt tokens."""
        return ceil(tokens / self.chunk_tokens)


class Claim(NamedTuple):
    """A request with its remaining time T_r, by which the queue is ordered.

    urgent: it meets its target only if it is in the next iteration.
    recompute_s: time to compute all its chunks again after a preemption.
    """

    remaining_s: float
    urgent: bool
    recompute_s: float
    job: Job


def claim(job: Job, now_s: float, speed: IterationSpeed, reading_s: float, patience_s: float) -> Claim:
    """Return the request with its remaining time.

    reading_s: TPOT of a decode without a target. patience_s: TTFT of a prompt without a target.
    """
    targets = job.request.targets
    chunks = 1 if job.decoding else speed.chunks(job.pending_tokens)
    if targets.e2e_s is None:
        due_s = _due_s(job, reading_s, patience_s)
        remaining_s = due_s - now_s - chunks * speed.iteration_s
    else:
        due_s = job.request.arrival_s + targets.e2e_s
        remaining_s = _jct_remaining_s(job, targets.e2e_s, now_s, speed)
        if targets.ttft_s is not None or targets.tpot_s is not None:
            remaining_s = min(remaining_s, job.due_s - now_s - chunks * speed.iteration_s)
    recompute_s = speed.iteration_s * speed.chunks(job.request.prompt_tokens + job.generated_tokens)
    return Claim(remaining_s, due_s > now_s and remaining_s <= speed.iteration_s, recompute_s, job)


def _due_s(job: Job, reading_s: float, patience_s: float) -> float:
    if job.due_s < inf:
        return job.due_s
    if job.anchor is None:
        return job.request.arrival_s + patience_s
    return next_token_due_s(job.anchor, job.generated_tokens, reading_s)


def _jct_remaining_s(job: Job, jct_s: float, now_s: float, speed: IterationSpeed) -> float:
    """Return the remaining time by the schedule of the whole job, as made at its arrival."""
    prompt_chunks = speed.chunks(job.request.prompt_tokens)
    chunks_done = prompt_chunks if job.decoding else prompt_chunks - speed.chunks(_prompt_tokens_left(job))
    iterations = prompt_chunks + max(job.output_tokens, 1)
    own_s = speed.iteration_s + (speed.preempted_s if job.decoding else 0.0)
    start_by_s = (chunks_done + job.generated_tokens + 1) * jct_s / iterations - own_s
    return job.request.arrival_s + start_by_s - now_s


def _prompt_tokens_left(job: Job) -> int:
    return max(job.request.prompt_tokens - job.computed_tokens, 0)


def preemptions_after(history: PreemptionHistory, view: ReplicaView, tokens: int) -> PreemptionHistory:
    """Return the preemptions after this view, in which `tokens` are decoded."""
    preempted = [job.request.id for job in view.waiting if job.generated_tokens > 0]
    new = len([job_id for job_id in preempted if job_id not in history.since])
    return PreemptionHistory(
        {job_id: history.since.get(job_id, view.now_s) for job_id in preempted},
        max([history.longest_s, *[view.now_s - at_s for at_s in history.since.values()]]),
        history.share + LEARNING_RATE * (min(new / max(tokens, 1), 1.0) - history.share),
    )
