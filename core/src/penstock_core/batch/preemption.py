"""Which running jobs are preempted for admitted ones, where blocks or slots run out.

Best-effort jobs first, the one that was started last first. Then, for a job that runs already, admitted jobs
that are due later, the one with the latest deadline first.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property

from penstock_core.domain.request import Job, deadline_order


class Victims:
    """The jobs of one step that may be preempted; each is offered once (`OpenBatch.make_room`)."""

    def __init__(self, best_effort: Sequence[Job], admitted: Sequence[Job]) -> None:
        """`best_effort`: in the order they were started."""
        self._best_effort = [job for job in best_effort if job.computed_tokens]
        self._all_admitted = admitted

    @cached_property
    def _admitted(self) -> list[Job]:
        """By deadline; sorted only when it is needed."""
        return sorted([job for job in self._all_admitted if job.computed_tokens], key=deadline_order)

    def of(self, job: Job) -> Iterator[Job]:
        """Jobs to preempt for this one. A running job is itself admitted, so `_admitted` never runs empty."""
        while self._best_effort:
            yield self._best_effort.pop()
        while job.computed_tokens and deadline_order(self._admitted[-1]) > deadline_order(job):
            yield self._admitted.pop()
