"""Iterations that are the one before once more, at the cost of a few numbers each.

While everybody who runs decodes and nobody waits, a policy says of its step that it stands
(`Step.stands_blocks`), and an iteration differs from the next by one token of each. So the policy is not
asked again, and jobs are not moved on at every end: ends are noted, and jobs are brought up to date when
somebody looks at them, or when something else happens to one of them. What comes out is the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from penstock_core.domain.request import Job, RequestId, after_each

from penstock_simulator.batch_shape import BatchShape
from penstock_simulator.iteration import Iteration, Seat


@dataclass(slots=True, eq=False)
class Standing:
    """A stretch of such iterations.

    iteration: each of them. least_blocks: that have to be free before it.
    left: how many may still begin before one that is news to somebody (`Seat.news_tokens`).
    context_tokens: that the next one reads.
    at_border: seats that take a block in an iteration, by its turn modulo a block's tokens.
    turns: iterations begun.
    jobs: as they were before the first of `ends_s`.
    ends_s: of iterations that jobs have not been told of.
    """

    iteration: Iteration
    least_blocks: int
    left: int
    context_tokens: int
    at_border: list[int]
    jobs: tuple[Job, ...]
    brought: dict[RequestId, int]
    turns: int = 0
    ends_s: list[float] = field(default_factory=list)

    def begin(self) -> int:
        """One more iteration: how many blocks it takes."""
        blocks = self.at_border[self.turns % len(self.at_border)]
        self.turns += 1
        self.left -= 1
        return blocks

    def shape(self) -> BatchShape:
        """Of the iteration that has just begun."""
        decodes = len(self.jobs)
        return BatchShape(decodes=decodes, context_tokens=self.context_tokens + self.turns * decodes)

    def jobs_later(self) -> Callable[[], tuple[Job, ...]]:
        """The jobs as they are now, worked out when they are asked for."""
        jobs, ends_s, ended = self.jobs, self.ends_s, len(self.ends_s)
        return lambda: tuple(after_each(jobs, ends_s[:ended])) if ended else jobs

    def settle(self, block_tokens: int, *, under_way: bool) -> None:
        """Bring jobs and blocks up to now. under_way: an iteration has begun and not ended."""
        if self.ends_s:
            self.jobs, self.ends_s = tuple(after_each(self.jobs, self.ends_s)), []
        for seat, job in zip(self.iteration.decodes, self.jobs, strict=True):
            seat.job = job
            seat.blocks = max(seat.blocks, -(-(job.computed_tokens + under_way) // block_tokens))


def standing(seats: Sequence[Seat], least_blocks: int, block_tokens: int) -> Standing | None:
    """The stretch that these decodes, all who run, can begin; None where there is none."""
    left = min([seat.news_tokens - seat.job.generated_tokens for seat in seats], default=0) - 1
    rooms = [seat.blocks * block_tokens - seat.job.computed_tokens for seat in seats]
    if left < 1 or not 0 <= min(rooms) <= max(rooms) < block_tokens:
        return None
    at_border = [0] * block_tokens
    for room in rooms:
        at_border[room] += 1
    jobs = tuple([seat.job for seat in seats])
    return Standing(
        iteration=Iteration(list(seats)),
        least_blocks=least_blocks,
        left=left,
        context_tokens=sum([job.computed_tokens for job in jobs]),
        at_border=at_border,
        jobs=jobs,
        brought=dict.fromkeys([job.request.id for job in jobs], 1),
    )
