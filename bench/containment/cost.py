"""Measures the cost of containment: CPU of router and sidecar per request and per token, with and without it.

Both versions run the whole time, each with its own engine, and take turns within one run. The figures are
the kernel's CPU times per request or token. The result is the ratio of each round's pair, because a busy
machine slows both.
"""

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from containment.report import GoalRow, row
from overhead import measures
from overhead.deployments import BIN, penstock
from overhead.load import interleave
from overhead.machine import EngineRoute, machine
from overhead.measures import Measurements

STEP_MS, STREAMS, WINDOW_S, BURST_S = 30.0, 192, 5.0, 2.0
GOAL = 1.03
KINDS = {
    "JSON request": "request_cpu_us",
    "one-token stream": "stream_cpu_us",
    "streamed token": "token_cpu_us",
}


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds of router and sidecar together in each round, for one kind of work."""

    before_us: list[float]
    now_us: list[float]

    @property
    def ratio(self) -> float:
        """Median of the rounds' ratios."""
        return median(self.ratios)

    @property
    def ratios(self) -> list[float]:
        """Ratio of each round's pair."""
        return [now / before for before, now in zip(self.before_us, self.now_us, strict=True)]


def measured(folder: Path, baseline: Path, rounds: int) -> list[GoalRow]:
    """Return a row for each kind of work. baseline: a checkout with its `.venv`."""
    with machine(folder) as host:
        running = {
            "before": penstock(host, STEP_MS, "before", baseline / ".venv" / "bin"),
            "now": penstock(host, STEP_MS, "now", BIN),
        }
        results = asyncio.run(_in_turns(running, rounds))
    return [_row(what, _cost(results, field)) for what, field in KINDS.items()] + _parts(results)


async def _in_turns(running: Mapping[str, EngineRoute], rounds: int) -> dict[str, Measurements]:
    results = {name: Measurements() for name in running}
    for way in running.values():
        await measures.warm_up(way)
    for number, name in interleave(rounds, list(running)):
        print(f"cost: round {number + 1} of {rounds}: {name}", file=sys.stderr, flush=True)
        await measures.throughput(running[name], results[name], BURST_S)
        await measures.tokens(running[name], results[name].token_cpu_us, STREAMS, WINDOW_S)
    return results


def _cost(
    results: Mapping[str, Measurements], field: str, parts: tuple[str, ...] = ("router", "sidecar")
) -> Cost:
    def of(name: str) -> list[float]:
        by_part: dict[str, list[float]] = getattr(results[name], field)
        return [sum(costs) for costs in zip(*(by_part[part] for part in parts), strict=True)]

    return Cost(of("before"), of("now"))


def _row(what: str, cost: Cost) -> GoalRow:
    output = (
        f"{cost.ratio:.3f} ({min(cost.ratios):.3f} to {max(cost.ratios):.3f} in {len(cost.ratios)} rounds; "
        f"{median(cost.before_us):.1f} → {median(cost.now_us):.1f} us)"
    )
    return row(f"CPU per {what}, as a ratio", f"≤ {GOAL}", output, cost.ratio <= GOAL)


def _parts(results: Mapping[str, Measurements]) -> list[GoalRow]:
    """Return the rows by process, which have no goal."""
    rows = []
    for what, field in KINDS.items():
        for part in ("router", "sidecar"):
            cost = _cost(results, field, (part,))
            output = f"{cost.ratio:.3f} ({median(cost.before_us):.1f} → {median(cost.now_us):.1f} us)"
            rows.append(row(f"of it the {part}, {what}", "", output, None))
    return rows
