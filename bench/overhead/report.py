"""The table that a person reads: every figure beside its goal and the peer's."""

import os
import platform
from pathlib import Path
from statistics import median

from overhead.load import percentile
from overhead.measures import Seen

PEER = "vllm-router"


def machine() -> str:
    """Where this was measured."""
    model = next(
        (line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name")),
        "unknown CPU",
    )
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    return (
        f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}; load average at start {load}"
    )


def _cpuinfo() -> list[str]:
    return Path("/proc/cpuinfo").read_text().splitlines()


def rows(seen: dict[str, Seen]) -> list[tuple[str, str, str, str, str]]:
    """(what, goal, penstock, vllm-router, ratio) for everything measured."""
    return [*_latency_rows(seen), *_rate_rows(seen), *_cost_rows(seen), *_memory_rows(seen)]


def table(title: str, lines: list[tuple[str, str, str, str, str]]) -> str:
    """Aligned, with a head."""
    head = (title, "goal", "penstock", PEER, "ratio")
    cells = [head, *lines]
    widths = [max(len(row[column]) for row in cells) for column in range(5)]
    text = [
        "  ".join([row[0].ljust(widths[0]), *(row[i].rjust(widths[i]) for i in range(1, 5))]).rstrip()
        for row in cells
    ]
    return "\n".join([text[0], "-" * len(text[0]), *text[1:]])


def _row(
    what: str, goal: str, ours: float, peer: float | None, digits: int
) -> tuple[str, str, str, str, str]:
    if peer is None:
        return (what, goal, f"{ours:.{digits}f}", "-", "-")
    ratio = f"{ours / peer:.2f}" if peer > 0 else "-"
    return (what, goal, f"{ours:.{digits}f}", f"{peer:.{digits}f}", ratio)


def _latency_rows(seen: dict[str, Seen]) -> list[tuple[str, str, str, str, str]]:
    lines = []
    for what, values in (
        ("JSON answer", {name: one.latencies_s for name, one in seen.items()}),
        ("stream's first byte", {name: one.first_bytes_s for name, one in seen.items()}),
    ):
        for share, goal in ((0.5, "1"), (0.99, "5")):
            at_ms = {name: 1000 * percentile(them, share) for name, them in values.items()}
            peer = at_ms[PEER] - at_ms["direct"] if PEER in at_ms else None
            label = f"added latency, {what}, p{share * 100:.0f}, ms (direct: {at_ms['direct']:.2f})"
            lines.append(_row(label, f"<= {goal}", at_ms["penstock"] - at_ms["direct"], peer, 2))
    return lines


def _rate_rows(seen: dict[str, Seen]) -> list[tuple[str, str, str, str, str]]:
    lines = []
    for what, rates in (
        ("JSON requests/s, all its processes on one core", {n: s.requests_per_s for n, s in seen.items()}),
        ("one-token streams/s, all its processes on one core", {n: s.streams_per_s for n, s in seen.items()}),
    ):
        peer = median(rates[PEER]) if PEER in rates else None
        lines.append(_row(what, "", median(rates["penstock"]), peer, 0))
    router_us = median(seen["penstock"].request_cpu_us["router"])
    peer_us = median(seen[PEER].request_cpu_us[PEER]) if PEER in seen else None
    peer_rate = 1e6 / peer_us if peer_us else None
    lines.append(
        _row("JSON requests/s a core, router alone (by CPU)", ">= 5000", 1e6 / router_us, peer_rate, 0)
    )
    return lines


def _cost_rows(seen: dict[str, Seen]) -> list[tuple[str, str, str, str, str]]:
    lines = []
    for what, goal, field, digits in (
        ("CPU per JSON request, us", "", "request_cpu_us", 0),
        ("CPU per one-token stream, us", "", "stream_cpu_us", 0),
        ("CPU per streamed token, us", "<= 20", "token_cpu_us", 1),
    ):
        ours: dict[str, list[float]] = getattr(seen["penstock"], field)
        peer = median(getattr(seen[PEER], field)[PEER]) if PEER in seen else None
        alone = {name: median(values) for name, values in ours.items()}
        lines += [
            _row(f"{what}, router", goal, alone["router"], peer, digits),
            _row(f"{what}, sidecar", "", alone["sidecar"], peer, digits),
            _row(f"{what}, router + sidecar", "", sum(alone.values()), peer, digits),
        ]
    return lines


def _memory_rows(seen: dict[str, Seen]) -> list[tuple[str, str, str, str, str]]:
    lines = []
    for what, field in (("idle", "idle_mib"), ("1,000 open streams", "open_mib")):
        ours: dict[str, float] = getattr(seen["penstock"], field)
        peer = getattr(seen[PEER], field)[PEER] if PEER in seen else None
        lines += [_row(f"memory, {what}, {name}, MiB", "", mib, peer, 0) for name, mib in ours.items()]
    return lines
