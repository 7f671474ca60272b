"""The requests to send: a trace with scaled times, renamed tiers, and open or closed loops."""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import takewhile
from math import inf
from pathlib import Path

from rich.console import Console

from penstock_cli.failure import Failure
from penstock_cli.traces import TraceRequest, TraceSummary, in_closed_loops, read_trace, summarise

MOONCAKE_BLOCK_TOKENS = 512
"""Tokens per hash id in Mooncake's traces."""


FEW_COVERED = 0.5
"""Share of the prompts' tokens below which hash ids are probably of larger blocks."""


MOST_STRETCHED_S = 1e9
"""Latest arrival of a stretched trace. Clocks resolve a tenth of a microsecond there."""


class Loop(StrEnum):
    """When the later requests of a session are sent."""

    RECORDED = "recorded"  # at their recorded times, but in a simulation after the previous answer
    OPEN = "open"  # at their recorded times, independent of answers
    CLOSED = "closed"  # after the previous answer and the think time


@dataclass(frozen=True, slots=True)
class Schedule:
    """A trace as it is replayed.

    stretch: factor on arrival times; in closed loops on the starts of sessions only.
    duration_s: only arrivals before this time, after scaling; None for all.
    tier: tier of requests that have none in the trace.
    renamed: the trace's tier names to the pool's.
    """

    trace: Path
    stretch: float = 1.0
    duration_s: float | None = None
    tier: str = ""
    renamed: Mapping[str, str] = field(default_factory=dict)
    loop: Loop = Loop.RECORDED

    def requests(self) -> Iterator[TraceRequest]:
        """Yield the requests in order. Raises TraceError.

        The trace is read lazily. For closed loops it is read as a whole first, and all requests of a session
        are yielded at its start.
        """
        recorded = read_trace(self.trace)
        planned = map(self._planned, in_closed_loops(recorded) if self.loop is Loop.CLOSED else recorded)
        until_s = self.duration_s
        return planned if until_s is None else takewhile(lambda r: r.arrival_s < until_s, planned)

    def _planned(self, request: TraceRequest) -> TraceRequest:
        return request._replace(
            arrival_s=request.arrival_s * self.stretch,
            tier=self.renamed.get(request.tier, request.tier) or self.tier,
            think_s=request.think_s if self.loop is Loop.CLOSED else None,
        )


@dataclass(frozen=True, slots=True)
class ScheduleOptions:
    """Options of the command line.

    rate_rps: mean rate to stretch the trace to; None keeps the trace's rate.
    closed_loop: whether sessions are closed loops; None: they are if the trace has think times.
    """

    trace: Path
    rate_rps: float | None = None
    duration_s: float | None = None
    tier: str = ""
    renamed: Mapping[str, str] = field(default_factory=dict)
    closed_loop: bool | None = None


def schedule_of(options: ScheduleOptions) -> tuple[Schedule, TraceSummary]:
    """Return the schedule and the trace's summary. Reads all of the trace. Raises TraceError, Failure."""
    summary = summarise(options.trace)
    loop = _loop(options, summary)
    stretch = 1.0
    if options.rate_rps is not None:
        span_s = summary.span_s
        if loop is Loop.CLOSED:
            _, span_s = requests_and_span_s(Schedule(options.trace, loop=loop))
        if span_s <= 0:
            raise Failure(f"--rate: all requests of {options.trace} start at the same time", bad_input=True)
        stretch = summary.requests / span_s / options.rate_rps
        last_s = min(span_s * stretch, options.duration_s or inf)
        if last_s > MOST_STRETCHED_S or stretch == inf:
            stretched = f"stretches {options.trace} to more than 30 years"
            raise Failure(f"--rate {options.rate_rps:g}: {stretched}", bad_input=True)
    schedule = Schedule(options.trace, stretch, options.duration_s, options.tier, options.renamed, loop)
    return schedule, summary


def requests_and_span_s(schedule: Schedule) -> tuple[int, float]:
    """Return the number of requests to send, and the seconds from the first to the last."""
    last = deque(enumerate(schedule.requests(), start=1), maxlen=1)
    requests, request = last[0]  # the first arrives at 0, so there is at least one
    return requests, request.arrival_s


def check_hash_ids(schedule: Schedule, hash_id_tokens: int, console: Console) -> None:
    """Raise Failure if a request has more hash ids than its prompt has blocks of this size.

    Prints a warning if they are blocks of less than half of all tokens.
    """
    tokens = covered_tokens = 0
    for request in schedule.requests():
        blocks, ids = -(-request.prompt_tokens // hash_id_tokens), len(request.prefix_blocks)
        if ids > blocks:
            raise Failure(
                f"{schedule.trace}: request {request.number + 1} by arrival has {ids} hash_ids, but its "
                f"{request.prompt_tokens} tokens are {blocks} blocks of {hash_id_tokens}; give "
                "--block-tokens N with the size of the trace's blocks",
                bad_input=True,
            )
        if ids:
            tokens += request.prompt_tokens
            covered_tokens += min(ids * hash_id_tokens, request.prompt_tokens)
    if covered_tokens < tokens * FEW_COVERED:
        console.print(
            f"warning: {schedule.trace}: with blocks of {hash_id_tokens} tokens the hash_ids are only "
            f"{100 * covered_tokens / tokens:.0f} % of the prompts; is --block-tokens right?"
        )


def _loop(options: ScheduleOptions, summary: TraceSummary) -> Loop:
    if options.closed_loop and not summary.has_sessions:
        raise Failure(f"--closed-loop: {options.trace} has no sessions", bad_input=True)
    if options.closed_loop is False and summary.untimed is not None:
        raise Failure(
            f"--open-loop: request {summary.untimed + 1} by arrival of {options.trace} has no recorded time, "
            "only a delay after the answer before",
            bad_input=True,
        )
    if options.closed_loop is None:
        return Loop.CLOSED if summary.has_think_times else Loop.RECORDED
    return Loop.CLOSED if options.closed_loop else Loop.OPEN
