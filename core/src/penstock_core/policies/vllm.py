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

from penstock_core.open_batch import OpenBatch
from penstock_core.policy import Step
from penstock_core.replica_view import ReplicaView
from penstock_core.request import Job
from penstock_core.time_model import BatchWork, chunk_work
from penstock_core.verdict import Admitted, BestEffort, Verdict


@dataclass(frozen=True, slots=True)
class Vllm:
    """vLLM's V1 scheduler, without its prefix cache. Remembers nothing between steps."""

    def start(self) -> None:
        """Nothing to remember."""

    def admit(self, view: ReplicaView, new: Sequence[Job]) -> list[Verdict]:
        """Everybody, with a prediction of when the queue before each is done; no promise is behind it."""
        queue = [job for job in (*view.running, *view.waiting) if not job.decoding]
        decodes = [job for job in view.running if job.decoding]
        verdicts: list[Verdict] = []
        for job in new:
            queue.append(job)
            if job.best_effort:
                verdicts.append(BestEffort())
                continue
            context = sum(other.computed_tokens + 1 for other in decodes)
            pace_s = view.model.seconds(BatchWork(len(decodes) + len(queue), context))
            verdicts.append(Admitted(_first_token_s(view, queue, len(decodes), context), pace_s))
        return verdicts

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


def _first_token_s(view: ReplicaView, queue: Sequence[Job], decodes: int, context_tokens: int) -> float:
    """From now until the last of the queue is computed, in full batches beside the decodes."""
    tokens = sum(job.pending_tokens for job in queue)
    attention = sum(chunk_work(job.pending_tokens, job.computed_tokens) for job in queue)
    a_batch = max(view.limits.batch_tokens - decodes, 1)
    full, rest = divmod(tokens, a_batch)
    sizes = [a_batch] * full + [rest] * (rest > 0)
    waited_s = max(view.busy_until_s - view.now_s, 0.0)
    return waited_s + sum(
        view.model.seconds(BatchWork(decodes + size, context_tokens, attention * size / tokens))
        for size in sizes
    )
