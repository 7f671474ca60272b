"""**accelgen.** Sizes every iteration by the tightest TPOT target, and fills tokens and KV memory together.

Choose it if prompts of a few hundred tokens and of many thousands share a replica, TPOT targets of tiers
differ widely, and no request may be rejected. The token budget of a batch follows its tightest decode, up to
where throughput saturates. Requests that are about to miss a target come first; among those with similar
remaining time it selects prompts that together use up tokens and KV blocks. One long prompt at a time is cut
into chunks, so it ends sooner and short ones overtake it.

Costs: rejects no request, and requests that can no longer meet their SLO stay first in the queue. KV blocks
are allocated when free, without a forecast, so growing answers preempt one another under load. A tier with a
very tight TPOT makes every batch small while one of its requests decodes.

Knobs: `gamma_s`, difference of remaining times that counts as equal; `reading_tbt_s`, TPOT of requests
without a target; `aging_s`, TTFT of those without one, and how long best effort waits for its turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock_core.batch.best_effort import fill_surplus, oldest_waiting_too_long
from penstock_core.batch.forced_progress import force_oldest_progress
from penstock_core.batch.open_batch import OpenBatch
from penstock_core.batch.ordered_batch import add_all_decodes
from penstock_core.domain.policy import Knobs, Step
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job
from penstock_core.domain.verdict import Verdict
from penstock_core.policies.accelgen.batch import select, serve_urgent
from penstock_core.policies.accelgen.remaining_time import (
    LEARNING_RATE,
    Claim,
    IterationSpeed,
    PreemptionHistory,
    claim,
    preemptions_after,
)
from penstock_core.policies.accelgen.token_budget import READING_TBT_S, budget
from penstock_core.policies.unconditional_admission import admit_all


class AccelGenState(NamedTuple):
    """State between steps: mean tokens of a prompt's chunk, 0 before the first; preemptions."""

    chunk_tokens: float = 0.0
    preemptions: PreemptionHistory = PreemptionHistory()


@dataclass(frozen=True, slots=True)
class AccelGen:
    """Dynamic chunking and batching on two resources [AccelGen]."""

    gamma_s: float = 0.75
    reading_tbt_s: float = READING_TBT_S
    aging_s: float = Knobs().aging_s

    def start(self) -> AccelGenState:
        """Return the initial state."""
        return AccelGenState()

    def admit(self, view: ReplicaView, new: Sequence[Job]) -> list[Verdict]:
        """Admit all candidates."""
        return admit_all(view, new)

    def step(self, view: ReplicaView, memory: AccelGenState) -> tuple[Step, AccelGenState]:
        """Apply token budget, order, then both algorithms; best effort uses the rest."""
        served, best_effort = self._partitioned(view)
        decodes = [job for job in served if job.decoding]
        room = budget(view, decodes, self.reading_tbt_s)
        preemptions = preemptions_after(memory.preemptions, view, len(decodes))
        speed = IterationSpeed(
            memory.chunk_tokens or max(room.tokens, 1), room.longest_s, preemptions.per_token_s
        )
        prompts = [self._claim(job, view, speed) for job in served if not job.decoding]
        batch = OpenBatch(view)
        if any(claim.urgent for claim in prompts) or not add_all_decodes(batch, decodes):
            all_jobs = [*(self._claim(job, view, speed) for job in decodes), *prompts]
            serve_urgent(batch, all_jobs, room, best_effort)
        select(batch, prompts, room, self.gamma_s)
        fill_surplus(batch, best_effort, min(room.longest_s, room.limit_s))
        force_oldest_progress(batch)
        return batch.step(), AccelGenState(_mean_chunk(memory.chunk_tokens, batch), preemptions)

    def _claim(self, job: Job, view: ReplicaView, speed: IterationSpeed) -> Claim:
        return claim(job, view.now_s, speed, self.reading_tbt_s, self.aging_s)

    def _partitioned(self, view: ReplicaView) -> tuple[list[Job], list[Job]]:
        """Return the jobs to serve, with the oldest best-effort job once it is overdue, and the rest."""
        oldest = oldest_waiting_too_long(view, self.aging_s)
        all_jobs = (*view.running, *view.waiting)
        best_effort = [job for job in all_jobs if job.best_effort and not _is_same(job, oldest)]
        return [job for job in all_jobs if not job.best_effort or _is_same(job, oldest)], best_effort


def _is_same(job: Job, other: Job | None) -> bool:
    return other is not None and job.request.id == other.request.id


def _mean_chunk(mean: float, batch: OpenBatch) -> float:
    """Return L_c after this batch. A chunk of a single token counts as a decode."""
    chunks = [tokens for tokens in batch.tokens.values() if tokens > 1]
    if not chunks:
        return mean
    observed = sum(chunks) / len(chunks)
    return mean + LEARNING_RATE * (observed - mean) if mean else observed
