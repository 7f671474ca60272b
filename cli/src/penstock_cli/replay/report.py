"""The report of a replay: a table, a summary line, and JSON."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from penstock_cli.replay.outcome import RequestEnding
from penstock_cli.replay.tally import ReplayTally, TierTally, percentile

LATE_P99_S = 0.010
"""If the 99th percentile of the client's delays is higher, the report says that the result is distorted."""


@dataclass(frozen=True, slots=True)
class PlannerTimes:
    """Planning times of admissions over the replay."""

    p50_ms: float | None = None
    p99_ms: float | None = None
    max_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """A finished replay.

    span_s: seconds from the first arrival to the last, by the schedule; of closed loops, of their starts.
    more: further fields of the JSON.
    """

    policy: str | None
    replicas: int | None
    span_s: float
    tally: ReplayTally
    planner: PlannerTimes = PlannerTimes()
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rate_rps(self) -> float | None:
        """Offered rate in requests per second."""
        return self.tally.requests / self.span_s if self.span_s > 0 else None

    @property
    def goodput_rps(self) -> float | None:
        """Rate of requests that met every target of their tier, until the last one was sent."""
        sent_s = max(self.span_s, self.tally.last_arrival_s)
        return self.tally.all.met / sent_s if sent_s > 0 else None

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return {
            "policy": self.policy,
            "replicas": self.replicas,
            "rate": self.rate_rps,
            "requests": self.tally.requests,
            "attainment": self.tally.all.attainment,
            "admitted_attainment": self.tally.all.admitted_attainment,
            "goodput_rps": self.goodput_rps,
            "tiers": {name: _tier_json(tier) for name, tier in worst_first(self.tally)},
            "planner_ms": {
                "p50": self.planner.p50_ms,
                "p99": self.planner.p99_ms,
                "max": self.planner.max_ms,
            },
            "requests_with_targets": self.tally.all.requests,
            "attained_admitted": self.tally.all.attained_admitted,
            "attained_promoted": self.tally.all.attained_promoted,
            **_prefix_json(self.tally),
            **self.more,
        }


def _tier_json(tier: TierTally) -> dict[str, Any]:
    ttft_s, tpot_s = sorted(tier.ttft_s), sorted(tier.tpot_s)
    return {
        "requests": tier.requests,
        "attainment": tier.attainment,
        "ttft_p50_s": percentile(ttft_s, 0.5),
        "ttft_p99_s": percentile(ttft_s, 0.99),
        "tpot_p50_s": percentile(tpot_s, 0.5),
        "tpot_p99_s": percentile(tpot_s, 0.99),
        "best_effort": tier.endings[RequestEnding.BEST_EFFORT],
        "rejected": tier.endings[RequestEnding.REJECTED],
        "attained_admitted": tier.attained_admitted,
        "attained_promoted": tier.attained_promoted,
    }


def _prefix_json(tally: ReplayTally) -> dict[str, Any]:
    """Return the fields about prefix caches and about turns of sessions, if there are any."""
    found: dict[str, Any] = {}
    if tally.cached_share is not None:
        found["cached_share"] = tally.cached_share
        if tally.time_model is not None:
            found["saved_prefill_s"] = tally.saved_prefill_s
    if tally.later_turns.requests:
        found["turns"] = {"first": _turns_json(tally.first_turns), "later": _turns_json(tally.later_turns)}
    return found


def _turns_json(turns: TierTally) -> dict[str, Any]:
    ttft_s = sorted(turns.ttft_s)
    return {
        "requests": turns.requests,
        "attainment": turns.attainment,
        "ttft_p50_s": percentile(ttft_s, 0.5),
        "ttft_p99_s": percentile(ttft_s, 0.99),
        "cached_share": turns.cached_share,
    }


def worst_first(tally: ReplayTally) -> list[tuple[str, TierTally]]:
    """Return tiers by attainment, the lowest first and those without targets last."""
    return sorted(
        tally.tiers.items(),
        key=lambda item: (item[0] in tally.without_targets, item[1].attainment or 0.0, item[0]),
    )


HEADS = (
    "tier",
    "requests",
    "attained\n%",
    "promoted\n%",
    "of admitted\n%",
    "TTFT\np50 s",
    "TTFT\np99 s",
    "TPOT\np50 ms",
    "TPOT\np99 ms",
    "rejected",
    "best\neffort",
    "failed",
    "hops",
)

NARROWEST = 130
"""Characters in a line of the widest table. A narrower terminal wraps them."""


def console_for_tables(stderr: bool = False) -> Console:
    """Return a console that is wide enough for tables."""
    return Console(stderr=stderr, width=max(Console(stderr=stderr).width, NARROWEST))


def cells(name: str, tier: TierTally) -> list[str]:
    """Return one tier's line, under `HEADS`."""
    shares = tier.attainment, tier.attained_promoted, tier.admitted_attainment
    ttft_s, tpot_s = sorted(tier.ttft_s), sorted(tier.tpot_s)
    return [
        name or "(none)",
        str(tier.requests),
        *(number(share, 100, 1) for share in shares),
        number(percentile(ttft_s, 0.5), 1, 3),
        number(percentile(ttft_s, 0.99), 1, 3),
        number(percentile(tpot_s, 0.5), 1000, 1),
        number(percentile(tpot_s, 0.99), 1000, 1),
        str(tier.endings[RequestEnding.REJECTED]),
        str(tier.endings[RequestEnding.BEST_EFFORT]),
        str(tier.endings[RequestEnding.FAILED]),
        number(tier.mean_hops, 1, 2),
    ]


def number(value: float | None, scale: float, digits: int) -> str:
    """Format a number for a table; a dash for None."""
    return "–" if value is None else f"{value * scale:.{digits}f}"


def aligned(title: str, heads: Iterable[str], lines: Iterable[list[str]], left: int = 1) -> Table:
    """Return a table with right-aligned figures. left: number of left-aligned columns of names."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for index, head in enumerate(heads):
        table.add_column(head, justify="left" if index < left else "right", no_wrap=True)
    for line in lines:
        table.add_row(*line)
    return table


def table(report: Report, title: str) -> Table:
    """Return a table of every tier, the worst first, and of all tiers with targets together."""
    tally = report.tally
    lines = [cells(name, tier) for name, tier in worst_first(tally)]
    if len(lines) > 1 and tally.all.requests:
        lines.append(cells(all_label(tally), tally.all))
    return aligned(title, HEADS, lines)


def all_label(tally: ReplayTally) -> str:
    """Return the name of the line of all tiers, which says whether tiers without targets are excluded."""
    return "all with targets" if tally.without_targets & tally.tiers.keys() else "all"


def summary_line(report: Report) -> str:
    """Return a line that summarises the table."""
    tally = report.tally
    if not tally.all.requests:
        return f"{tally.requests} requests at {number(report.rate_rps, 1, 2)} requests/s; none has a target."
    worst_name, worst = worst_first(tally)[0]
    rate, attained = number(report.rate_rps, 1, 2), number(tally.all.attainment, 100, 1)
    requests = f"{tally.all.requests} requests{all_label(tally).removeprefix('all')}"
    kept = f"{attained} % of {requests} met their tier's SLO"
    if len(tally.tiers) == 1:
        return f"At {rate} requests/s {kept}."
    return f"At {rate} requests/s {kept}; lowest: {worst_name} with {number(worst.attainment, 100, 1)} %."


def prefix_lines(tally: ReplayTally) -> list[str]:
    """Return lines about prefix caches and about first and later turns, if there are any."""
    lines = []
    if tally.cached_share is not None:
        saved = "" if tally.time_model is None else _saved(tally)
        share = number(tally.cached_share, 100, 1)
        lines.append(f"{share} % of prompt tokens were found in prefix caches{saved}")
    if tally.later_turns.requests:
        first, later = map(_turn_words, (tally.first_turns, tally.later_turns))
        lines.append(f"First turns of sessions: {first}; later turns: {later}.")
    return lines


def _saved(tally: ReplayTally) -> str:
    return f", which saved {number(tally.saved_prefill_s, 1, 1)} s of prefill"


def _turn_words(turns: TierTally) -> str:
    ttft_s = sorted(turns.ttft_s)
    p50, p99 = (number(percentile(ttft_s, share), 1, 3) for share in (0.5, 0.99))
    cached = "" if turns.cached_share is None else f", {number(turns.cached_share, 100, 1)} % cached"
    return f"{turns.requests}, TTFT p50 {p50}, p99 {p99} s{cached}"


def lateness(tally: ReplayTally) -> str:
    """Return a line about the client's own delay, and whether it distorts the figures."""
    late_s = sorted(tally.late_s)
    p50, p99, most = (number(percentile(late_s, share), 1000, 1) for share in (0.5, 0.99, 1.0))
    too_late = (percentile(late_s, 0.99) or 0.0) > LATE_P99_S
    verdict = (
        "it could not keep the trace's schedule: take the figures as a lower bound" if too_late else "fine"
    )
    return f"This client sent p50 {p50}, p99 {p99}, at most {most} ms late: {verdict}."
