"""Order in which running jobs are preempted for admitted ones when blocks or slots run out.

Best-effort jobs come first, the one started last first. For a job that already runs, admitted jobs with later
deadlines follow, the latest deadline first.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property

from penstock_core.domain.request import Job, deadline_order


class Victims:
    """The jobs of one step that may be preempted; each is offered once (`OpenBatch.make_room`)."""

    def __init__(self, best_effort: Sequence[Job], admitted: Sequence[Job]) -> None:
        """Take the best-effort jobs in the order they were started."""
        self._best_effort = [job for job in best_effort if job.computed_tokens]
        self._all_admitted = admitted

    @cached_property
    def _admitted(self) -> list[Job]:
        """Admitted jobs by deadline, sorted on first use."""
        return sorted([job for job in self._all_admitted if job.computed_tokens], key=deadline_order)

    def of(self, job: Job) -> Iterator[Job]:
        """Yield jobs to preempt for this one.

        A running job is itself admitted, so `_admitted` is never empty.
        """
        while self._best_effort:
            yield self._best_effort.pop()
        while job.computed_tokens and deadline_order(self._admitted[-1]) > deadline_order(job):
            yield self._admitted.pop()
