"""**vllm.** Today's vLLM: everybody is admitted, first come first served, prompts in chunks beside decodes.

Choose it as the yardstick, or where load stays below capacity: nothing is refused, and nothing is
planned. Each step spends a token budget on running requests in the order they were started, decodes and
unfinished prompts alike, then on waiting ones in order of arrival. When blocks run out the request
started last is preempted, to be computed again from its tokens.

Costs: knows no SLO. A burst makes everybody late, tight and loose tiers alike, and best effort takes the
same turns as the rest. The budget is also the longest pause between two tokens. One knob, the engine's:
`limits.batch_tokens`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock_core.everyone import admit_everyone
from penstock_core.open_batch import OpenBatch
from penstock_core.policy import Step
from penstock_core.replica_view import ReplicaView
from penstock_core.request import Job
from penstock_core.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Vllm:
    """vLLM's V1 scheduler, without its prefix cache. Remembers nothing between steps."""

    def start(self) -> None:
        """Nothing to remember."""

    def admit(self, view: ReplicaView, new: Sequence[Job]) -> list[Verdict]:
        """Everybody."""
        return admit_everyone(view, new)

    def step(self, view: ReplicaView, memory: None) -> tuple[Step, None]:
        """The next batch: running requests, then waiting ones while nobody had to be preempted."""
        batch = OpenBatch(view)
        enough = len(view.running) <= min(batch.left_tokens, batch.free_blocks)
        if enough and all([job.decoding for job in view.running]):
            batch.add_decodes(view.running)
        else:
            _run_on(batch)
        if not batch.preempted:
            _start_waiting(batch)
        return batch.step(), None


def _run_on(batch: OpenBatch) -> None:
    """Running requests in their order; out of blocks, those behind give way, then the request itself."""
    running = batch.view.running
    for i, job in enumerate(running):
        if job.request.id in batch.preempted or not batch.left_tokens:
            continue
        tokens = min(job.pending_tokens, batch.left_tokens)
        if batch.make_room(batch.blocks_wanted(job, tokens), 0, reversed(running[i + 1 :])):
            batch.add(job, tokens)
        else:
            batch.preempt(job)


def _start_waiting(batch: OpenBatch) -> None:
    """Waiting requests in their order, until the first that does not fit."""
    for job in batch.view.waiting:
        tokens = min(job.pending_tokens, batch.left_tokens)
        if not tokens or not batch.free_seats or batch.blocks_wanted(job, tokens) > batch.free_blocks:
            return
        batch.add(job, tokens)
