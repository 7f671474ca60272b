"""**orca.** Iteration-level batching with memory reserved up to the longest answer that a request allows.

Choose it if a running request must never lose its memory: no request is preempted. Requests join and leave at
every iteration, whole prompts beside decodes, in order of arrival. A new request starts when the KV cache
could hold it and all running ones at their longest (`max_tokens`), and a slot is free [Orca, Algorithm 1].

Costs: most answers end long before their limit, so most reserved memory stays unused and few requests run at
once; a whole prompt stops all decodes while it is computed. It ignores SLOs and rejects no request. Knobs are
the engine's: `limits.running`, its slots (AccelGen's comparison uses 8), and `limits.batch_tokens`, beyond
which a prompt is computed in chunks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock_core.batch.open_batch import OpenBatch
from penstock_core.batch.ordered_batch import run_on, start
from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job
from penstock_core.domain.verdict import Verdict
from penstock_core.policies.unconditional_admission import admit_all


@dataclass(frozen=True, slots=True)
class Orca:
    """First come first served, with reservations. Stateless."""

    def start(self) -> None:
        """Return no state."""

    def admit(self, view: ReplicaView, new: Sequence[Job]) -> list[Verdict]:
        """Admit all candidates."""
        return admit_all(view, new)

    def step(self, view: ReplicaView, memory: None) -> tuple[Step, None]:
        """Return the next batch."""
        batch = OpenBatch(view)
        run_on(batch, view.running)
        start(batch, _reserved(view), whole=True)
        return batch.repeatable_step(), None


def _reserved(view: ReplicaView) -> Iterator[Job]:
    """Yield waiting jobs by arrival, until the first whose longest answer does not fit beside the others'."""
    left_blocks = view.kv.total_blocks - sum([_longest_blocks(view, job) for job in view.running])
    for job in view.waiting:
        left_blocks -= _longest_blocks(view, job)
        if left_blocks < 0:
            return
        yield job


def _longest_blocks(view: ReplicaView, job: Job) -> int:
    """Return the blocks at its last token, at most all there are, because alone every request may run."""
    longest_tokens = job.request.prompt_tokens + job.request.max_output_tokens
    return min(view.kv.blocks_for(longest_tokens), view.kv.total_blocks)
