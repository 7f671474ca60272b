"""**sjf.** Shortest job first: the waiting request with the least predicted work starts next.

Choose it if mean latency counts, answers differ much in length, and lengths can be predicted: many short
requests then need not wait for a few long ones [the SJF of SOLA, §6.1]. A job's work is the time that it
would take alone: its prompt, and its predicted answer at one token per batch. Running requests are not
interrupted.

Costs: long requests wait as long as shorter ones keep arriving, beyond capacity without end. A wrong length
gives a wrong position. It ignores SLOs and rejects no request. One knob, the engine's: `limits.batch_tokens`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop

from penstock_core.batch.ordered_batch import decodes_first, running_then_new
from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job
from penstock_core.domain.verdict import Verdict
from penstock_core.policies.unconditional_admission import admit_all
from penstock_core.timing.time_model import BatchWork, TimeModel

USUAL_PROMPT_TOKENS = 1024
"""Batch size at which the marginal cost of a prompt token is taken from the time model."""


@dataclass(frozen=True, slots=True)
class Sjf:
    """Decodes, then chunks, new requests by predicted work. Stateless."""

    def start(self) -> None:
        """Return no state."""

    def admit(self, view: ReplicaView, new: Sequence[Job]) -> list[Verdict]:
        """Admit all candidates."""
        return admit_all(view, new)

    def step(self, view: ReplicaView, memory: None) -> tuple[Step, None]:
        """Return the next batch."""
        return running_then_new(
            view, decodes_first(view.running), shortest_first(view.waiting, view.model)
        ).repeatable_step(), None


def shortest_first(jobs: Sequence[Job], model: TimeModel) -> Iterator[Job]:
    """Yield jobs by the time that each would take alone; ties in order.

    Lazy: jobs not consumed cost little.
    """
    decode_s = model.seconds(BatchWork(1))
    prompt_token_s = (model.seconds(BatchWork(USUAL_PROMPT_TOKENS)) - decode_s) / USUAL_PROMPT_TOKENS
    heap = [
        (prompt_token_s * job.pending_tokens + decode_s * job.output_tokens_left, place)
        for place, job in enumerate(jobs)
    ]
    heapify(heap)
    while heap:
        yield jobs[heappop(heap)[1]]
