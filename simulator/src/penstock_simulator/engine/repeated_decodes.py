"""Iterations that repeat the previous one, in constant time.

While all running requests decode and none waits, consecutive steps are equal, which a policy states with
`Step.repeatable_blocks`. Then the policy is not called again and jobs are not advanced at each iteration:
only the iteration's end time is recorded. Jobs are advanced when they are read, or when an event ends the
repetition. The results are the same as without it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from penstock_core.domain.request import Job, RequestId, after_each

from penstock_simulator.engine.iteration import ActiveRequest, Iteration
from penstock_simulator.engine_timing.batch_shape import BatchShape


@dataclass(slots=True, eq=False)
class RepeatedDecodes:
    """A sequence of equal iterations.

    iteration: each of them. least_blocks: blocks that must be free before each.
    left: how many may still begin before an event of a request (`ActiveRequest.next_event_tokens`).
    context_tokens: context that the first one reads, without the tokens that it computes.
    growing: requests that need a block in an iteration, indexed by `begun` modulo a block's tokens.
    first_tokens: KV entries of each request in the first one.
    begun: iterations begun.
    jobs: as they were before the first of `ends_s`.
    ends_s: end times of iterations that are not yet applied to the jobs.
    """

    iteration: Iteration
    least_blocks: int
    left: int
    context_tokens: int
    growing: list[list[ActiveRequest]]
    first_tokens: dict[RequestId, int]
    jobs: tuple[Job, ...]
    tokens_out: dict[RequestId, int]
    begun: int = 0
    ends_s: list[float] = field(default_factory=list)

    def begin(self) -> list[tuple[ActiveRequest, int]]:
        """Begin one more iteration. Returns the requests that need a block, with their KV entries then."""
        growing = self.growing[self.begun % len(self.growing)]
        needed = [(entry, self.first_tokens[entry.job.request.id] + self.begun) for entry in growing]
        self.begun += 1
        self.left -= 1
        return needed

    def shape(self) -> BatchShape:
        """Return the shape of the iteration that has just begun."""
        decodes = len(self.jobs)
        return BatchShape(decodes=decodes, context_tokens=self.context_tokens + self.begun * decodes)

    def lazy_jobs(self) -> Callable[[], tuple[Job, ...]]:
        """Return a function that computes the jobs at the time of this call."""
        jobs, ends_s, ended = self.jobs, self.ends_s, len(self.ends_s)
        return lambda: tuple(after_each(jobs, ends_s[:ended])) if ended else jobs

    def settle(self, block_tokens: int, *, in_progress: bool) -> None:
        """Apply all ended iterations to jobs and blocks. in_progress: whether one has begun and not ended."""
        if self.ends_s:
            self.jobs, self.ends_s = tuple(after_each(self.jobs, self.ends_s)), []
        for entry, job in zip(self.iteration.decodes, self.jobs, strict=True):
            entry.job = job
            entry.blocks = max(entry.blocks, -(-(job.computed_tokens + in_progress) // block_tokens))


def repeated_decodes(
    entries: Sequence[ActiveRequest], least_blocks: int, block_tokens: int
) -> RepeatedDecodes | None:
    """Return the repetition of a batch of all running requests, which decode; None if it cannot repeat."""
    left = min([entry.next_event_tokens - entry.job.generated_tokens for entry in entries], default=0) - 1
    rooms = [entry.blocks * block_tokens - entry.job.computed_tokens for entry in entries]
    if left < 1 or not 0 <= min(rooms) <= max(rooms) < block_tokens:
        return None
    growing: list[list[ActiveRequest]] = [[] for _ in range(block_tokens)]
    for entry, room in zip(entries, rooms, strict=True):
        growing[room].append(entry)
    jobs = tuple([entry.job for entry in entries])
    return RepeatedDecodes(
        iteration=Iteration(list(entries)),
        least_blocks=least_blocks,
        left=left,
        context_tokens=sum([job.computed_tokens for job in jobs]),
        growing=growing,
        first_tokens={job.request.id: job.computed_tokens + 1 for job in jobs},
        jobs=jobs,
        tokens_out=dict.fromkeys([job.request.id for job in jobs], 1),
    )
