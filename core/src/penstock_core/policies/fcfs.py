"""**fcfs.** One batch of requests after the other, in order of arrival, each served to its end.

Choose it as the floor of every comparison, or for offline work where order matters and latency does not: it
is how servers batched before requests could join a batch that runs (FasterTransformer's static batches),
and the order that the annealing paper starts from. The queue is cut where memory at everybody's predicted
last token, or seats, run out. A batch's prompts are computed whole, then all of it decodes together; who
ends early leaves, but nobody joins until the last has ended. Nobody is preempted while predictions hold.

Costs: a batch lasts as long as its longest answer, while seats and memory of the others stand empty, and
every arrival waits for its end. It knows no SLO and refuses nobody. One knob, the engine's: `limits.running`,
how many make a batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock_core.batch.ordered_batch import prompts_or_decodes
from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job, RequestId
from penstock_core.domain.verdict import Verdict
from penstock_core.policies.unconditional_admission import admit_everyone

Members = frozenset[RequestId]
"""The requests of the batch that is being served, those that have left included."""


@dataclass(frozen=True, slots=True)
class Fcfs:
    """Static batches, first come first served. Remembers who is in the batch."""

    def start(self) -> Members:
        """No batch."""
        return frozenset()

    def admit(self, view: ReplicaView, new: Sequence[Job]) -> list[Verdict]:
        """Everybody."""
        return admit_everyone(view, new)

    def step(self, view: ReplicaView, memory: Members) -> tuple[Step, Members]:
        """Prompts of the batch that are not computed, else its decodes; the next batch where it has ended."""
        waiting = [job for job in view.waiting if job.request.id in memory]
        if not view.running and not waiting:
            waiting = next_batch(view)
            memory = frozenset([job.request.id for job in waiting])
        return prompts_or_decodes(view, waiting).standing_step(), memory


def next_batch(view: ReplicaView) -> list[Job]:
    """The longest head of the queue that fits at everybody's last token; one request at least."""
    left_blocks, batch = view.kv.total_blocks, list[Job]()
    for job in view.waiting[: view.limits.running]:
        left_blocks -= view.kv.blocks_for(job.request.prompt_tokens + job.output_tokens)
        if batch and left_blocks < 0:
            break
        batch.append(job)
    return batch
