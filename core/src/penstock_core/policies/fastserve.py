"""**fastserve.** Serves the requests with the least service time first: multi-level feedback queues.

Choose it if answers differ much in length, lengths cannot be predicted, and mean latency counts. Requests
sink through five queues as they use time; a long prompt starts in a lower queue; upper queues are served
first, at every iteration [FastServe, §4; five queues as in AccelGen's comparison]. If memory runs out,
requests of the lowest queues are preempted for those of upper ones.

Costs: a preempted request is computed again here, whereas FastServe swaps it to the host, so beyond capacity
much work is done twice. A request in a low queue is served irregularly and misses its TPOT target. It ignores
SLOs and rejects no request. Knobs: `queues`; `aging_s`, time without service after which a request moves to
the top queue; the engine's `limits.batch_tokens`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock_core.batch.open_batch import OpenBatch
from penstock_core.batch.ordered_batch import run_on, starting_tokens
from penstock_core.domain.policy import Knobs, Step
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job
from penstock_core.domain.verdict import Verdict
from penstock_core.policies.feedback_queues import QueuePosition, QueuePositions, Queues, queues_of
from penstock_core.policies.unconditional_admission import admit_all


@dataclass(frozen=True, slots=True)
class FastServe:
    """Skip-join feedback queues. The state is the queue and service time of each served request."""

    queues: int = 5
    aging_s: float = Knobs().aging_s

    def start(self) -> QueuePositions:
        """Return the initial state."""
        return {}

    def admit(self, view: ReplicaView, new: Sequence[Job]) -> list[Verdict]:
        """Admit all candidates."""
        return admit_all(view, new)

    def step(self, view: ReplicaView, memory: QueuePositions) -> tuple[Step, QueuePositions]:
        """Return the next batch, and the state after it."""
        queues = queues_of(view.model, self.queues, self.aging_s, view.now_s)
        by_queue = _by_queue(view, queues, memory)
        step = _form(view, by_queue).step()
        return step, _after(view, queues, memory, step)


def _by_queue(view: ReplicaView, queues: Queues, memory: QueuePositions) -> list[tuple[list[Job], list[Job]]]:
    """Return for each queue, from the top, its running jobs and its waiting ones, in order."""
    by_queue: list[tuple[list[Job], list[Job]]] = [([], []) for _ in queues.quanta_s]
    for i, jobs in enumerate((view.running, view.waiting)):
        for job in jobs:
            by_queue[queues.position_of(job, memory).queue][i].append(job)
    return by_queue


def _form(view: ReplicaView, by_queue: Sequence[tuple[list[Job], list[Job]]]) -> OpenBatch:
    """Fill the batch queue by queue. Behind a new request that does not fit, no other starts."""
    batch, starting = OpenBatch(view), True
    victims = reversed([job for running, _ in by_queue for job in running])
    for running, waiting in by_queue:
        run_on(batch, running, victims)
        for job in waiting:
            starting = starting and batch.left_tokens > 0 and _started(batch, job, victims)
    return batch


def _started(batch: OpenBatch, job: Job, victims: Iterator[Job]) -> bool:
    """Start a new request by preempting running jobs outside the batch, if that suffices.

    Those are all in lower queues, because running jobs of its own queue and of upper ones were served before
    it.
    """
    blocks = batch.blocks_wanted(job, job.pending_tokens)
    if not batch.has_room(blocks, 1) and not _enough_idle(batch, blocks):
        return False
    batch.make_room(blocks, 1, victims)
    batch.add(job, starting_tokens(batch, job, whole=False))
    return True


def _enough_idle(batch: OpenBatch, blocks: int) -> bool:
    """Return whether a slot and this many blocks are free without running jobs outside the batch."""
    idle_blocks = [
        batch.blocks_freed(job)
        for job in batch.view.running
        if job.request.id not in batch.tokens and job.request.id not in batch.preempted
    ]
    return batch.has_room(blocks - sum(idle_blocks), 1 - len(idle_blocks))


def _after(view: ReplicaView, queues: Queues, memory: QueuePositions, step: Step) -> QueuePositions:
    """Return the state after the step, without jobs that have left."""
    after: dict[str, QueuePosition] = {}
    for jobs in (view.running, view.waiting):
        for job in jobs:
            job_id = job.request.id
            if job_id in step.tokens:
                after[job_id] = queues.served(queues.position_of(job, memory), step.duration_s)
            elif job_id in memory:
                after[job_id] = memory[job_id]
    return after
