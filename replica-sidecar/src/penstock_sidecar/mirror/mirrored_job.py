"""A job that this replica has accepted, with its state by reports."""

from collections.abc import Callable
from dataclasses import dataclass

from penstock_core.domain.request import Job, thinking_ended
from penstock_core.forecast.overdue import Where

from penstock_sidecar.mirror.report_rows import Row
from penstock_sidecar.mirror.reported_job import (
    advanced,
    with_cached,
    with_longer_prediction,
    with_prompt,
    without_cached_prefix,
)


@dataclass(slots=True, eq=False)
class MirroredJob:
    """A job of this replica, as the last reports show it.

    last_report: number of the last report that has it, 0 for none.
    thinking_tokens: length of its thinking, once the answer proper has begun.
    times_s: when each of its tokens was reported; None where these times are not needed.
    last_running_report: number of the last report in which it held memory, 0 for none.
    progressed_s: when it was sent, or last made progress.
    planned_s: earliest time at which the engine could have begun it, as admission plans: at its acceptance,
        or at the end of the step in progress. reached_s, generated_s: times of the first report of it, and of
        the first one with output. None while unknown.
    """

    job: Job
    last_report: int = 0
    passed_tokens: int = 0
    prompt_known: bool = False
    thinking_tokens: int = 0
    times_s: list[float] | None = None
    last_running_report: int = 0
    progressed_s: float = 0.0
    planned_s: float | None = None
    reached_s: float | None = None
    generated_s: float | None = None

    def report(self, row: Row, number: int, now_s: float, longer: Callable[[Job], int]) -> None:
        """Apply its row of the report with this number."""
        self.last_report = number
        if self.reached_s is None:
            self.reached_s = now_s
        if self.generated_s is None and row.generated_tokens:
            self.generated_s = now_s
        job = self.job = without_cached_prefix(self.job)  # cached tokens are set again below
        known = job.computed_tokens, job.generated_tokens, job.best_effort
        if known != (row.computed_tokens, row.generated_tokens, row.best_effort):
            self.job = with_longer_prediction(advanced(job, row, now_s), longer)
            self.progressed_s = now_s
            if self.times_s is not None:
                self.times_s += [now_s] * (row.generated_tokens - len(self.times_s))
        if row.thinking_tokens:
            self.end_thinking(row.thinking_tokens, now_s)
        if row.cached_tokens:
            self.job = with_cached(self.job, row)

    def end_thinking(self, thinking_tokens: int, now_s: float) -> None:
        """Switch to the answer's TPOT target. Has an effect only once."""
        if not self.thinking_tokens:
            self.job = thinking_ended(self.job, now_s)
        self.thinking_tokens = thinking_tokens

    def reveal_prompt(self) -> int:
        """Set the exact length of its prompt from its first report with output. Return the length."""
        self.prompt_known = True
        prompt_tokens = max(self.job.computed_tokens + 1 - self.job.generated_tokens, 1)
        self.job = with_prompt(self.job, prompt_tokens)
        return prompt_tokens

    def delivery_s(self, shown_s: float) -> float | None:
        """Return the time that it took outside of iterations: to the scheduler, and from it to its reader.

        shown_s: when its reader had its first output. None if reports did not show it all.
        """
        if self.planned_s is None or self.reached_s is None or self.generated_s is None:
            return None
        return max(self.reached_s - self.planned_s, 0.0) + max(shown_s - self.generated_s, 0.0)

    def where_reported(self, last: int, *, lists_all_waiting: bool) -> Where:
        """Return where the job is, by reports.

        last: number of the last one. lists_all_waiting: whether that had room for all that wait.
        """
        if not self.last_report:
            return Where.COMING if lists_all_waiting else Where.QUEUED
        reported, decodes = self.last_report == last, self.job.generated_tokens > 0
        queued = reported and not (self.last_running_report == last and decodes)
        return Where.QUEUED if queued else Where.RUNNING  # a job that is no longer reported is about to end

    def where_inferred(self, *, shows_output: bool) -> Where:
        """Return where the job is, by the tokens that were forwarded."""
        if not shows_output:
            return Where.UNSEEN
        return Where.RUNNING if self.job.generated_tokens else Where.QUEUED
