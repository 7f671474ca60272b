"""**orca.** Iteration-level batching with memory reserved to the last token that a request may ask for.

Choose it where a request must never lose its memory once it runs: nobody is preempted, ever. Requests join
and leave at every iteration, whole prompts beside decodes, in order of arrival. A newcomer starts when the
KV cache could hold it and everybody running at their longest (`max_tokens`), and a slot is free [Orca,
Algorithm 1].

Costs: most answers end long before their limit, so most of the memory is reserved for nothing and few
requests run at once; a whole prompt stops all decodes while it is computed. It knows no SLO and refuses
nobody. Knobs are the engine's: `limits.running`, its slots (AccelGen's comparison gives it 8), and
`limits.batch_tokens`, beyond which a prompt goes in chunks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock_core.batch.open_batch import OpenBatch
from penstock_core.batch.ordered_batch import run_on, start
from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job
from penstock_core.domain.verdict import Verdict
from penstock_core.policies.unconditional_admission import admit_everyone


@dataclass(frozen=True, slots=True)
class Orca:
    """First come first served, with reservations. Remembers nothing between steps."""

    def start(self) -> None:
        """Nothing to remember."""

    def admit(self, view: ReplicaView, new: Sequence[Job]) -> list[Verdict]:
        """Everybody."""
        return admit_everyone(view, new)

    def step(self, view: ReplicaView, memory: None) -> tuple[Step, None]:
        """The next batch."""
        batch = OpenBatch(view)
        run_on(batch, view.running)
        start(batch, _reserved(view), whole=True)
        return batch.standing_step(), None


def _reserved(view: ReplicaView) -> Iterator[Job]:
    """Waiting jobs in order of arrival, until the first whose longest does not fit beside all others'."""
    left_blocks = view.kv.total_blocks - sum([_longest_blocks(view, job) for job in view.running])
    for job in view.waiting:
        left_blocks -= _longest_blocks(view, job)
        if left_blocks < 0:
            return
        yield job


def _longest_blocks(view: ReplicaView, job: Job) -> int:
    """Blocks at its last token, and no more than there are: alone, everybody may run."""
    longest_tokens = job.request.prompt_tokens + job.request.max_output_tokens
    return min(view.kv.blocks_for(longest_tokens), view.kv.total_blocks)
