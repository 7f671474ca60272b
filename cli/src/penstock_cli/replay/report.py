"""What a replay found: a table for people, JSON for programs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from penstock_cli.replay.outcome import Ending
from penstock_cli.replay.tally import Tally, TierTally, percentile

LATE_P99_S = 0.010
"""A client later than this is part of what it measures, and says so."""


@dataclass(frozen=True, slots=True)
class PlannerTimes:
    """Time the planner took for a call, over the replay."""

    p50_ms: float | None = None
    p99_ms: float | None = None
    max_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """A finished replay.

    span_s: from its first arrival to its last.
    more: figures that only some runs have, for programs.
    """

    policy: str | None
    replicas: int | None
    span_s: float
    tally: Tally
    planner: PlannerTimes = PlannerTimes()
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rate_rps(self) -> float | None:
        """Requests offered a second."""
        return self.tally.requests / self.span_s if self.span_s > 0 else None

    @property
    def goodput_rps(self) -> float | None:
        """Requests a second that met every target of their tier."""
        return self.tally.all.met / self.span_s if self.span_s > 0 else None

    def as_json(self) -> dict[str, Any]:
        """The replay for programs."""
        return {
            "policy": self.policy,
            "replicas": self.replicas,
            "rate": self.rate_rps,
            "requests": self.tally.requests,
            "attainment": self.tally.all.attainment,
            "admitted_attainment": self.tally.all.admitted_attainment,
            "goodput_rps": self.goodput_rps,
            "tiers": {
                name: _tier_json(tier, name not in self.tally.without_targets)
                for name, tier in worst_first(self.tally)
            },
            "planner_ms": {
                "p50": self.planner.p50_ms,
                "p99": self.planner.p99_ms,
                "max": self.planner.max_ms,
            },
            "requests_with_targets": self.tally.all.requests,
            "attained_admitted": self.tally.all.attained_admitted,
            "attained_promoted": self.tally.all.attained_promoted,
            **self.more,
        }


def _tier_json(tier: TierTally, targeted: bool) -> dict[str, Any]:
    ttft_s, tpot_s = sorted(tier.ttft_s), sorted(tier.tpot_s)
    return {
        "requests": tier.requests,
        "attainment": tier.attainment if targeted else None,
        "ttft_p50_s": percentile(ttft_s, 0.5),
        "ttft_p99_s": percentile(ttft_s, 0.99),
        "tpot_p50_s": percentile(tpot_s, 0.5),
        "tpot_p99_s": percentile(tpot_s, 0.99),
        "best_effort": tier.endings[Ending.BEST_EFFORT],
        "rejected": tier.endings[Ending.REJECTED],
        "attained_admitted": tier.attained_admitted if targeted else None,
        "attained_promoted": tier.attained_promoted if targeted else None,
    }


def worst_first(tally: Tally) -> list[tuple[str, TierTally]]:
    """Tiers by attainment, the lowest first; last those without targets."""
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
"""Columns that the widest table needs. A narrower terminal wraps its lines, which loses nothing."""


def console_for_tables(stderr: bool = False) -> Console:
    """The terminal, or what stands in its place, without cutting tables off."""
    console = Console(stderr=stderr)
    return console if console.width >= NARROWEST else Console(stderr=stderr, width=NARROWEST)


def cells(name: str, tier: TierTally, targeted: bool = True) -> list[str]:
    """One tier's line, under `HEADS`. targeted: whether the tier sets a target."""
    shares = (tier.attainment, tier.attained_promoted, tier.admitted_attainment) if targeted else [None] * 3
    ttft_s, tpot_s = sorted(tier.ttft_s), sorted(tier.tpot_s)
    return [
        name or "(none)",
        str(tier.requests),
        *(number(share, 100, 1) for share in shares),
        number(percentile(ttft_s, 0.5), 1, 3),
        number(percentile(ttft_s, 0.99), 1, 3),
        number(percentile(tpot_s, 0.5), 1000, 1),
        number(percentile(tpot_s, 0.99), 1000, 1),
        str(tier.endings[Ending.REJECTED]),
        str(tier.endings[Ending.BEST_EFFORT]),
        str(tier.endings[Ending.FAILED]),
        number(tier.mean_hops, 1, 2),
    ]


def number(value: float | None, scale: float, digits: int) -> str:
    """A figure for a table; a dash where there is none."""
    return "–" if value is None else f"{value * scale:.{digits}f}"


def aligned(title: str, heads: Iterable[str], lines: Iterable[list[str]], left: int = 1) -> Table:
    """A table with its figures to the right. left: how many columns of names stand to the left."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for index, head in enumerate(heads):
        table.add_column(head, justify="left" if index < left else "right", no_wrap=True)
    for line in lines:
        table.add_row(*line)
    return table


def table(report: Report, title: str) -> Table:
    """Every tier, the worst first, and all that have targets together where there are several tiers."""
    tally = report.tally
    lines = [cells(name, tier, name not in tally.without_targets) for name, tier in worst_first(tally)]
    if len(lines) > 1 and tally.all.requests:
        lines.append(cells(all_label(tally), tally.all))
    return aligned(title, HEADS, lines)


def all_label(tally: Tally) -> str:
    """The name of the line that counts all tiers: it says so where it leaves some out."""
    return "all with targets" if tally.without_targets & tally.tiers.keys() else "all"


def meaning(report: Report) -> str:
    """One line that says what the table means."""
    tally = report.tally
    if not tally.all.requests:
        return f"At {number(report.rate_rps, 1, 2)} requests/s {tally.requests} requests; none has a target."
    worst_name, worst = worst_first(tally)[0]
    rate, attained = number(report.rate_rps, 1, 2), number(tally.all.attainment, 100, 1)
    requests = f"{tally.all.requests} requests{all_label(tally).removeprefix('all')}"
    kept = f"{attained} % of {requests} got what their tier promises"
    if len(tally.tiers) == 1:
        return f"At {rate} requests/s {kept}."
    return (
        f"At {rate} requests/s {kept}; {worst_name} fares worst, with {number(worst.attainment, 100, 1)} %."
    )


def lateness(tally: Tally) -> str:
    """How late the client itself was, and whether that spoils the figures."""
    late_s = sorted(tally.late_s)
    p50, p99, most = (number(percentile(late_s, share), 1000, 1) for share in (0.5, 0.99, 1.0))
    spoiled = (percentile(late_s, 0.99) or 0.0) > LATE_P99_S
    verdict = (
        "it could not hold the trace's schedule: take the figures as a lower bound" if spoiled else "fine"
    )
    return f"This client sent p50 {p50}, p99 {p99}, at most {most} ms late: {verdict}."
