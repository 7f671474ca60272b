"""**fcfs.** Static batches in order of arrival, each served to its end.

Choose it as the lower bound of comparisons, or for offline work where order matters and latency does not: it
is how servers batched before requests could join a running batch (FasterTransformer's static batches), and
the order from which the annealing paper starts. The queue is cut where memory at all predicted last tokens,
or slots, run out. A batch's prompts are computed whole, then all of it decodes together. Requests that end
early leave, but none joins until the last has ended. Without wrong predictions no request is preempted.

Costs: a batch lasts as long as its longest answer, while slots and memory of finished requests are idle, and
every arrival waits for its end. It ignores SLOs and rejects no request. One knob, the engine's:
`limits.running`, the size of a batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock_core.batch.ordered_batch import prompts_or_decodes
from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job, RequestId
from penstock_core.domain.verdict import Verdict
from penstock_core.policies.unconditional_admission import admit_all

Members = frozenset[RequestId]
"""Requests of the present batch, including those that have left."""


@dataclass(frozen=True, slots=True)
class Fcfs:
    """Static batches, first come first served. The state is the set of the batch's requests."""

    def start(self) -> Members:
        """Return the initial state: no batch."""
        return frozenset()

    def admit(self, view: ReplicaView, new: Sequence[Job]) -> list[Verdict]:
        """Admit all candidates."""
        return admit_all(view, new)

    def step(self, view: ReplicaView, memory: Members) -> tuple[Step, Members]:
        """Compute the batch's prompts, else its decodes; start the next batch if it has ended."""
        waiting = [job for job in view.waiting if job.request.id in memory]
        if not view.running and not waiting:
            waiting = next_batch(view)
            memory = frozenset([job.request.id for job in waiting])
        return prompts_or_decodes(view, waiting).repeatable_step(), memory


def next_batch(view: ReplicaView) -> list[Job]:
    """Return the longest prefix of the queue that fits at all last tokens; at least one request."""
    left_blocks, batch = view.kv.total_blocks, list[Job]()
    for job in view.waiting[: view.limits.running]:
        left_blocks -= view.kv.blocks_for(job.request.prompt_tokens + job.output_tokens)
        if batch and left_blocks < 0:
            break
        batch.append(job)
    return batch
