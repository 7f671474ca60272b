"""**sjf.** Shortest job first: of those waiting, the one with the least predicted work starts next.

Choose it where the mean latency counts, answers differ much in length, and their lengths can be predicted:
many short requests then need not wait for a few long ones [the SJF of SOLA, §6.1]. A job's work is the time
that it would take alone: its prompt, and its predicted answer one token a batch. Who runs is not
interrupted.

Costs: long requests wait as long as shorter ones keep arriving, which past capacity is for ever. A wrong
length is a wrong place. It knows no SLO and refuses nobody. One knob, the engine's: `limits.batch_tokens`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop

from penstock_core.batch.open_batch import OpenBatch
from penstock_core.batch.ordered_batch import decodes_first, run_on, start
from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job
from penstock_core.domain.verdict import Verdict
from penstock_core.policies.unconditional_admission import admit_everyone
from penstock_core.timing.time_model import BatchWork, TimeModel

USUAL_PROMPT_TOKENS = 1024
"""The size at which the cost of one more prompt token is taken from the time model."""


@dataclass(frozen=True, slots=True)
class Sjf:
    """Decodes, then chunks, newcomers by predicted work. Remembers nothing between steps."""

    def start(self) -> None:
        """Nothing to remember."""

    def admit(self, view: ReplicaView, new: Sequence[Job]) -> list[Verdict]:
        """Everybody."""
        return admit_everyone(view, new)

    def step(self, view: ReplicaView, memory: None) -> tuple[Step, None]:
        """The next batch."""
        batch = OpenBatch(view)
        run_on(batch, decodes_first(view.running))
        if not batch.preempted:
            start(batch, shortest_first(view.waiting, view.model))
        return batch.standing_step(), None


def shortest_first(jobs: Sequence[Job], model: TimeModel) -> Iterator[Job]:
    """Jobs by the time that each would take alone; ties in their order. Those never asked for cost little."""
    decode_s = model.seconds(BatchWork(1))
    prompt_token_s = (model.seconds(BatchWork(USUAL_PROMPT_TOKENS)) - decode_s) / USUAL_PROMPT_TOKENS
    heap = [
        (prompt_token_s * job.pending_tokens + decode_s * job.output_tokens_left, place)
        for place, job in enumerate(jobs)
    ]
    heapify(heap)
    while heap:
        yield jobs[heappop(heap)[1]]
