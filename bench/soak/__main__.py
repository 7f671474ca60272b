"""A soak test of real processes under random faults: `make bench-soak MINUTES=30`.

Three replicas and two routers serve known requests, while faults are drawn from a seed, one at a time: kill
-9, SIGSTOP and SIGTERM of processes, a full disk, and delay, low bandwidth, small packets, half-open
connections, resets and cuts by a proxy between them. Each answer is checked token for token.

Prints faults by kind, requests by outcome, wrong answers, cut streams, and the longest pauses in complete
streams at clients. Exit code 1 if an answer was wrong, or if a stream was cut without the loss of its router.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from live.fault_proxy import FaultProxy
from live.pool import LivePool

from soak.faults import FAULTS, FaultInjector, possible_faults, small_disk, start
from soak.traffic import SoakTraffic, TrafficResults

ROUTERS = ("main", "second")


def main() -> int:
    """Run the soak test, and return the exit code."""
    parser = argparse.ArgumentParser(description="A soak of real processes under random faults.")
    parser.add_argument(
        "--minutes", type=float, default=30, help="duration of the run (default: %(default)s)"
    )
    parser.add_argument("--rate", type=float, default=1.0, help="requests a second (default: %(default)s)")
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of requests and faults (default: %(default)s)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-soak-") as name, small_disk(Path(name)):
        return _soak(Path(name), options)


def _soak(folder: Path, options: argparse.Namespace) -> int:
    proxy = FaultProxy(folder / "toxiproxy.log")
    engine = {"silenceTimeout": "10s"}
    pool = LivePool(
        folder, 3, start=start, through=proxy.address_through_proxy, engine=engine, routing={"maxMoves": 4}
    )
    try:
        pool.open()
        pool.start_router("second")
        traffic = SoakTraffic(pool, ROUTERS, options.rate, Random(options.seed))
        injector = FaultInjector(pool, proxy, traffic, Random(options.seed + 1))
        began_s = time.monotonic()
        asyncio.run(_run(traffic, injector, began_s + options.minutes * 60))
        _print(options, traffic.results, injector, time.monotonic() - began_s)
        return 1 if traffic.results.wrong or traffic.results.cut else 0
    except AssertionError:
        for name, text in pool.logs():
            print(f"--- log of {name}\n{text[-3000:]}", file=sys.stderr)
        raise
    finally:
        pool.close()
        proxy.close()


async def _run(traffic: SoakTraffic, injector: FaultInjector, until_s: float) -> None:
    stop = asyncio.Event()
    running = asyncio.create_task(traffic.run(stop))
    try:
        await injector.run(until_s)
    finally:
        stop.set()
        await running


def _print(
    options: argparse.Namespace, results: TrafficResults, injector: FaultInjector, took_s: float
) -> None:
    load = " ".join(f"{each:.1f}" for each in os.getloadavg())
    print(f"{took_s / 60:.1f} minutes, seed {options.seed}, {options.rate:g} requests/s, load {load}")
    print(f"faults: {sum(injector.counts.values())}")
    for kind, count in sorted(injector.counts.items()):
        print(f"  {kind:28} {count}")
    print(
        *(f"  {kind:28} not possible here" for kind in FAULTS.keys() - possible_faults(injector.pool.folder)),
        sep="\n",
    )
    print(f"requests: {results.outcomes.total()}, {results.tokens} tokens")
    for outcome, count in sorted(results.outcomes.items()):
        print(f"  {outcome:28} {count}")
    silences_s = sorted(results.silences_s) or [0.0]
    shares = ", ".join(f"p{share} {silences_s[len(silences_s) * share // 100]:.2f}" for share in (50, 90, 99))
    print(f"longest pause of a whole stream: {shares}, most {silences_s[-1]:.2f} s")
    print(f"wrong answers: {len(results.wrong)}")
    print(*(f"  {line}" for line in results.wrong), sep="\n", end="\n" if results.wrong else "")
    print(f"streams cut without the loss of their router: {len(results.cut)}")
    print(*(f"  {line}" for line in results.cut), sep="\n", end="\n" if results.cut else "")


if __name__ == "__main__":
    sys.exit(main())
