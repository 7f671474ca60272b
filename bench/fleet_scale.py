"""Measures routers and pickers with many replicas: CPU per request and at rest, memory, snapshot traffic.

Four routers and four pickers are connected to the same replicas, as in a large pool. One of each is measured.
The replicas are fakes in one process (`overhead/fake_replicas.py`), so that 256 fit on a machine; they
send snapshots as often as busy sidecars do. The picker is called as Envoy calls it, by ext_authz.
"""

import argparse
import asyncio
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

import uvloop
from overhead import report
from overhead.deployments import BIN, POOL, fake_replicas, pool_file
from overhead.load import exchange_all, for_seconds
from overhead.machine import MEASURED_CORE, OTHER_CORE, Machine, Started, machine, wait_until_ready
from overhead.procfs import cpu_s, rss_mib

FRONTS = 4
CONNECTIONS = 16
PROGRAMS = {"router": ("--port", "address"), "picker": ("--ext-authz-port", "ext_authz")}
"""Flag of each program's port, and the key of its address in the log."""


@dataclass(frozen=True, slots=True)
class FrontCosts:
    """Figures of one front: microseconds per request, milliseconds of CPU per second at rest, memory."""

    request_us: float
    rest_ms: float
    mib: float


def main() -> None:
    options = parsed()
    os.sched_setaffinity(0, {OTHER_CORE})
    lines = [report.machine(), f"{FRONTS} routers and {FRONTS} pickers; order {options.order}", ""]
    lines.append(HEAD)
    print("\n".join(lines), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for replicas in options.replicas:
            lines += measured(replicas, options, Path(folder) / str(replicas))
            print("\n".join(lines[-len(PROGRAMS) :]), flush=True)
    if options.out:
        options.out.write_text("\n".join(lines) + "\n")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--replicas", type=int, nargs="+", default=[4, 64, 256])
    parser.add_argument("--order", default="best-fit", help="routing order of the pool (default %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="seconds of each measurement (default %(default)s)"
    )
    parser.add_argument("--out", type=Path, help="also write the output to this file")
    return parser.parse_args()


HEAD = (
    f"{'replicas':>8} {'front':8} {'CPU a request, us':>18} {'at rest, ms/s':>14} {'MiB':>6}"
    f" {'snapshots/s':>12} {'KiB/s':>7}"
)


def measured(replicas: int, options: argparse.Namespace, folder: Path) -> list[str]:
    with machine(folder) as host:
        fakes = fake_replicas(host, replicas)
        ports = fakes.wait_for(r"ready ([\d,]+)").split(",")
        pool = pool_file(host, "fleet", f"{POOL}  routing: {{order: {options.order}}}\n")
        lines = []
        fronts = {name: front(host, name, pool, ports) for name in PROGRAMS}
        per_s, kib_per_s = asyncio.run(traffic(fakes, options.seconds))
        for name, (started, url) in fronts.items():
            one = uvloop.run(costs(started, url, options.seconds))
            lines.append(
                f"{replicas:8} {name:8} {one.request_us:18.0f} {one.rest_ms:14.1f} {one.mib:6.0f}"
                f" {per_s:12.0f} {kib_per_s:7.1f}"
            )
        return lines


def front(host: Machine, name: str, pool: Path, ports: list[str]) -> tuple[Started, str]:
    """Start all fronts of a kind, and return the first with its URL when it is connected to all replicas."""
    flag, word = PROGRAMS[name]
    known = [text for n, port in enumerate(ports) for text in ("--replica", f"r{n}=127.0.0.1:{port}")]
    command: list[str | Path] = [BIN / f"penstock-{name}", "-f", pool, flag, "0", "--admin-port", "0", *known]
    started = [host.start(f"{name}-{number}", command, MEASURED_CORE) for number in range(FRONTS)]
    addresses = [
        dict(re.findall(r"\b(\w+)=(127\.0\.0\.1:\d+)", each.wait_for(r"(?m)^(.*\bevent=ready\b.*)$")))
        for each in started
    ]
    for address in addresses:
        wait_until_ready(f"http://{address['admin']}/ready")
    return started[0], f"http://{addresses[0][word]}"


async def costs(front: Started, url: str, duration_s: float) -> FrontCosts:
    await exchange_all(url, range(300), CONNECTIONS, stream=False)
    before_s = cpu_s(front.pid)
    answers = await exchange_all(url, for_seconds(duration_s), CONNECTIONS, stream=False)
    busy_s = cpu_s(front.pid)
    await asyncio.sleep(duration_s)
    rest_s = cpu_s(front.pid)
    return FrontCosts(
        (busy_s - before_s) / answers.requests * 1e6,
        (rest_s - busy_s) / duration_s * 1000,
        rss_mib(front.pid),
    )


async def traffic(fakes: Started, duration_s: float) -> tuple[float, float]:
    """Return the frames and KiB per second that one front receives from all replicas at rest."""
    before = sent(fakes)
    await asyncio.sleep(duration_s)
    sessions, frames, size = (now - was for now, was in zip(sent(fakes), before, strict=True))
    del sessions
    return frames / duration_s / (2 * FRONTS), size / duration_s / (2 * FRONTS) / 1024


def sent(fakes: Started) -> tuple[int, int, int]:
    """Return the last counts in the log: sessions, frames and bytes."""
    lines = re.findall(r"^sent (\d+) (\d+) (\d+)$", fakes.log.read_text(), re.MULTILINE)
    sessions, frames, size = map(int, lines[-1])
    return sessions, frames, size


if __name__ == "__main__":
    main()
