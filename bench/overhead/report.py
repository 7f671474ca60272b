"""The report: a column for each way, the costs by process, and the goals."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from overhead import fleet
from overhead.load import percentile
from overhead.measures import Measurements
from overhead.ways import AUTHZ, ROUTER, ROUTER_DIRECT

PEER = "vllm-router"


class MeasureRow(NamedTuple):
    """A measure by way. digits: after the decimal point."""

    what: str
    by_way: Mapping[str, float]
    digits: int


class Goal(NamedTuple):
    """A bound on one way's figure. factor: of another way's figure, if the bound is relative."""

    way: str
    what: str
    bound: float
    at_least: bool = False
    of: str = ""


def machine() -> str:
    """Return a description of this machine."""
    model = next(
        (line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name")),
        "unknown CPU",
    )
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    return f"{model}, {os.cpu_count()} cores, Python {sys.version}; load average at start {load}"


def _cpuinfo() -> list[str]:
    return Path("/proc/cpuinfo").read_text().splitlines()


LATENCY = {
    "JSON answer": "latencies_s",
    "stream's first byte": "first_bytes_s",
}
COSTS = {
    "CPU a JSON request, us": ("request_cpu_us", 0),
    "CPU a one-token stream, us": ("stream_cpu_us", 0),
    "CPU a token, few streams, us": ("few_token_cpu_us", 1),
    "CPU a token, us": ("token_cpu_us", 1),
}
"""Field and digits of each measurement."""
OPEN, IDLE = "memory, 1,000 open streams, MiB", "memory, idle, MiB"
JSON_PER_S = "JSON requests/s on one core"


def rows(results: Mapping[str, Measurements]) -> list[MeasureRow]:
    """Return the rows of ways in front of one replica, for all processes of a way together."""
    between = {name: one for name, one in results.items() if one.request_cpu_us}
    lines = [*_latency_rows(results)]
    lines.append(MeasureRow(JSON_PER_S, {n: median(one.requests_per_s) for n, one in between.items()}, 0))
    lines.append(
        MeasureRow(
            "one-token streams/s on one core", {n: median(one.streams_per_s) for n, one in between.items()}, 0
        )
    )
    for what, (field, digits) in COSTS.items():
        lines.append(
            MeasureRow(what, {n: sum(_of(one, field).values()) for n, one in between.items()}, digits)
        )
    lines.append(MeasureRow(IDLE, {n: sum(one.idle_mib.values()) for n, one in between.items()}, 0))
    lines.append(
        MeasureRow(OPEN, {n: sum(one.open_mib.values()) for n, one in between.items() if one.open_mib}, 0)
    )
    return lines


def fleet_rows(results: Mapping[str, fleet.FleetMeasurements]) -> list[MeasureRow]:
    """Return the rows of ways in front of several replicas."""
    return [MeasureRow(what, by_way, 2) for what, by_way in fleet.figures(results).items()]


def added(answer: str, share: float) -> str:
    """Return the name of the row of an added latency."""
    return f"added latency, {answer}, p{100 * share:.0f}, ms"


def _latency_rows(results: Mapping[str, Measurements]) -> list[MeasureRow]:
    lines = []
    for answer, field in LATENCY.items():
        for share in (0.5, 0.99):
            at_ms = {name: 1000 * percentile(getattr(one, field), share) for name, one in results.items()}
            direct_ms = at_ms.pop("direct")
            lines.append(MeasureRow(added(answer, share), {n: ms - direct_ms for n, ms in at_ms.items()}, 2))
    return lines


def _of(one: Measurements, field: str) -> dict[str, float]:
    """Return medians over rounds, by process."""
    return {process: median(values) for process, values in getattr(one, field).items()}


def table(lines: Sequence[MeasureRow], columns: Sequence[str]) -> str:
    """Return a table with a line for each measurement."""
    body = [
        [row.what, *(f"{row.by_way[c]:.{row.digits}f}" if c in row.by_way else "-" for c in columns)]
        for row in lines
    ]
    return _aligned([["medians over rounds", *columns], *body])


def by_process(results: Mapping[str, Measurements]) -> str:
    """Return a line for each process of ways with several."""
    head = [
        "medians over rounds, by process",
        "request us",
        "stream us",
        "token us, few",
        "token us",
        "idle MiB",
        "open MiB",
    ]
    body = []
    for name, one in results.items():
        costs = [(_of(one, field), digits) for field, digits in COSTS.values()]
        costs += [(one.idle_mib, 0), (one.open_mib, 0)]
        if len(one.idle_mib) > 1:
            body += [
                [f"{name}: {process}", *(f"{values[process]:.{digits}f}" for values, digits in costs)]
                for process in one.idle_mib
            ]
    return _aligned([head, *body])


GOALS = (
    *(
        Goal(way, added(answer, share), bound)
        for way in (ROUTER, AUTHZ)
        for answer in LATENCY
        for share, bound in ((0.5, 0.6), (0.99, 2.0))
    ),
    Goal(AUTHZ, JSON_PER_S, 6000, at_least=True),
    Goal(AUTHZ, JSON_PER_S, 0.7, at_least=True, of=PEER),
    Goal(ROUTER, "CPU a JSON request, us", 150),
    Goal(ROUTER, "CPU a token, few streams, us", 26),
    Goal(ROUTER, "CPU a token, us", 26),
    Goal(ROUTER, OPEN, 250),
    *(
        Goal(ROUTER_DIRECT, what, bound, of=of)
        for what in ("CPU a token, few streams, us", "CPU a token, us")
        for bound, of in ((15, ""), (1, PEER))
    ),
    Goal(AUTHZ, OPEN, 250),
    *(Goal(way, fleet.HOP, 0.5) for way in (ROUTER, AUTHZ)),
    *(Goal(way, fleet.at_rate(0.95), 5) for way in (ROUTER, AUTHZ)),
)


def goals(lines: Sequence[MeasureRow]) -> str:
    """Return a line for each goal whose ways were measured."""
    by_name = {row.what: row for row in lines}
    body = []
    for goal in GOALS:
        row = by_name[goal.what]
        if goal.way not in row.by_way or (goal.of and goal.of not in row.by_way):
            continue
        value, bound = row.by_way[goal.way], goal.bound * (row.by_way[goal.of] if goal.of else 1)
        met = value >= bound if goal.at_least else value <= bound
        sign = ">=" if goal.at_least else "<="
        bound_text = f"{sign} {bound:g}" if not goal.of else f"{sign} {goal.bound:g} x {goal.of}"
        body.append(
            [f"{goal.way}: {goal.what}", bound_text, f"{value:.{row.digits}f}", "met" if met else "not met"]
        )
    return _aligned([["goals", "", "measured", ""], *body])


def _aligned(cells: Sequence[Sequence[str]]) -> str:
    """Return aligned cells, the first to the left and the others to the right."""
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    text = [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))]
        )
        for row in cells
    ]
    return "\n".join(line.rstrip() for line in [text[0], "-" * len(text[0]), *text[1:]])
