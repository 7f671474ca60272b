"""Who is preempted where blocks or seats run out, one after the other.

Best effort gives way first, what was started last first. Then, for a job that runs already, accepted jobs
that are due later, the one that can wait longest first.

Within one step nobody becomes eligible who was not: a job in the batch stays in it, and who is preempted
stays so. Each is therefore looked at once, however many are in need.
"""

from collections.abc import Sequence
from functools import cached_property

from penstock_core.batch.open_batch import OpenBatch
from penstock_core.domain.request import Job, deadline_order


class GivingWay:
    """Those who can give way to accepted jobs of one batch. `surplus`: in the order they were started."""

    def __init__(self, surplus: Sequence[Job], accepted: Sequence[Job]) -> None:
        self._everyone = accepted
        self._best_effort = [job for job in surplus if job.computed_tokens]

    @cached_property
    def _accepted(self) -> list[Job]:
        """By deadline; sorted only where somebody gets this far."""
        return sorted([job for job in self._everyone if job.computed_tokens], key=deadline_order)

    def make_room(self, batch: OpenBatch, job: Job, blocks: int, seats: int) -> bool:
        """Preempt for this job until so much is free or nobody is left for it; whether it is free.

        A job that runs is among the accepted and not due later than itself, so that queue never runs dry.
        """
        while not batch.has_room(blocks, seats):
            if self._best_effort:
                batch.preempt_idle(self._best_effort.pop())
            elif job.computed_tokens and deadline_order(self._accepted[-1]) > deadline_order(job):
                batch.preempt_idle(self._accepted.pop())
            else:
                return False
        return True
