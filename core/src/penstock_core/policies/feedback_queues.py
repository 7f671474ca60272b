"""Skip-join multi-level feedback queues [FastServe, §4].

They approximate shortest job first with unknown lengths: a job that has used much time is likely to need
more, so it sinks from queue to queue, and upper queues are served first. A queue's quantum is the time that a
job may use in it before it sinks; the first queue's is the shortest possible iteration, each further one's is
doubled.

Starting in the first queue would make every long prompt sink before its first token. Its length is known, so
a new request *skips* to the first queue whose quantum covers its prefill. A job without service for
`starvation_s` moves to the first queue.
"""

from bisect import bisect_left
from collections.abc import Mapping
from typing import NamedTuple

from penstock_core.domain.request import Job, RequestId
from penstock_core.timing.time_model import BatchWork, TimeModel


class QueuePosition(NamedTuple):
    """A job's position: its queue, the time used in it, and its last service."""

    queue: int
    used_s: float
    served_s: float


QueuePositions = Mapping[RequestId, QueuePosition]
"""Positions of jobs that have been served; the others are where they would join."""


class Queues(NamedTuple):
    """The queues at one moment.

    quanta_s: one per queue. prompt_tokens: the longest prompt that joins each queue but the last.
    """

    quanta_s: tuple[float, ...]
    prompt_tokens: tuple[int, ...]
    starvation_s: float
    now_s: float

    def position_of(self, job: Job, positions: QueuePositions) -> QueuePosition:
        """Return the present position of a job."""
        known = positions.get(job.request.id)
        if known is None:
            queue, used_s = bisect_left(self.prompt_tokens, job.pending_tokens), 0.0
            known = QueuePosition(queue, used_s, job.request.arrival_s)
        if self.now_s - known.served_s >= self.starvation_s:
            return QueuePosition(0, 0.0, self.now_s)
        return known

    def served(self, position_of: QueuePosition, duration_s: float) -> QueuePosition:
        """Return the position after an iteration of this duration with the job."""
        queue, used_s = position_of.queue, position_of.used_s + duration_s
        if used_s >= self.quanta_s[queue] and queue + 1 < len(self.quanta_s):
            queue, used_s = queue + 1, 0.0
        return QueuePosition(queue, used_s, self.now_s + duration_s)


def queues_of(model: TimeModel, count: int, starvation_s: float, now_s: float) -> Queues:
    """Return `count` queues for an engine of this speed."""
    shortest_s = model.seconds(BatchWork(1))
    quanta_s = tuple([shortest_s * 2**i for i in range(count)])
    prompt_tokens = tuple([model.tokens_within(quantum_s) for quantum_s in quanta_s[:-1]])
    return Queues(quanta_s, prompt_tokens, starvation_s, now_s)
