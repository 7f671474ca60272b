"""What a policy costs inside vLLM: CPU time a step, beside vLLM's own scheduler in the same run.

    make vllm-env
    .venv/bin/python bench/vllm_plugin.py [--running 200] [--steps 2000] [--policies slos-serve,sola]

A real vLLM scheduler in virtual time: so many requests decode, with arrivals or without, and no model runs.
Measured is the thread's own time in `schedule` and `update_from_output`, with the plug-in and without; the
difference of the two is the overhead, also given as a share of a step of 30 ms. Reports go to a socket that
somebody reads.
"""

import argparse
import gc
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean, quantiles
from time import thread_time
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "vllm_plugin"))

from virtual.engine import Engine, Kind

STEP_MS = 30.0
FIELDS = {"penstock_tier": "chat", "penstock_ttft_s": 1.0, "penstock_tpot_s": 0.05, "penstock_best_effort": 0}


class Took(NamedTuple):
    """Milliseconds of steps."""

    mean: float
    p50: float
    p99: float


def took(seconds: list[float]) -> Took:
    cuts = quantiles([1e3 * one for one in seconds], n=100)
    return Took(1e3 * fmean(seconds), cuts[49], cuts[98])


@contextmanager
def reader(path: Path) -> Iterator[None]:
    """Somebody who reads reports, as a sidecar does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(path))
        receiver.settimeout(0.2)
        stop = threading.Event()

        def read() -> None:
            while not stop.is_set():
                try:
                    receiver.recv(1 << 20)
                except TimeoutError:
                    continue

        thread = threading.Thread(target=read)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


class Timed:
    """Adds up the CPU time that calls of a scheduler take, until the sum is asked for."""

    def __init__(self, scheduler: Any) -> None:
        self.seconds = 0.0
        for name in ("schedule", "update_from_output"):
            setattr(scheduler, name, self._timed(getattr(scheduler, name)))

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any) -> Any:
            began_s = thread_time()
            result = call(*given)
            self.seconds += thread_time() - began_s
            return result

        return timed

    def taken(self) -> float:
        """Seconds since the last time."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


def steps(kind: Kind, running: int, count: int, every: int) -> list[float]:
    """Seconds of scheduling in each step. every: steps from one prompt to the next; 0 for none."""
    engine = Engine(kind)
    for number in range(running):
        engine.add(f"r{number}", 200, 10**6, fields={**FIELDS, "penstock_id": f"p{number}"})
    while sum(request.num_output_tokens > 0 for request in engine.scheduler.running) < running:
        engine.step()
    timed, seconds = Timed(engine.scheduler), []
    gc.collect()
    gc.disable()
    for step in range(count):
        if every and step % every == 0:
            name = f"more{step}"
            engine.add(name, 800, 2, fields={**FIELDS, "penstock_id": name})
        engine.step()
        seconds.append(timed.taken())
    gc.enable()
    if kind.steered and engine.scheduler.planning.failures:
        raise SystemExit(f"the policy failed: {engine.scheduler.planning.failures}")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--running", type=int, default=200)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--policies", default="slos-serve,sola,vllm")
    parser.add_argument("--drafts", type=int, default=3, help="of the cases that draft")
    options = parser.parse_args()
    print(f"{options.running} requests decode; ms a step, mean / p50 / p99 of {options.steps} steps")
    print("| policy | engine | vLLM's own | with the plug-in | overhead, mean | of a 30 ms step |")
    print("|---|---|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder, reader(Path(folder) / "reports.sock"):
        for policy in options.policies.split(","):
            for what, drafts, ahead, every in CASES:
                kind = Kind(
                    policy=policy,
                    blocks=200_000,
                    batch_tokens=2048,
                    running=options.running + 56,
                    drafts=options.drafts * drafts,
                    ahead=ahead,
                    more={"telemetry": f"{folder}/reports.sock"},
                )
                own = took(steps(replace(kind, steered=False), options.running, options.steps, every))
                ours = took(steps(kind, options.running, options.steps, every))
                more = ours.mean - own.mean
                print(
                    f"| {policy} | {what} | {shown(own)} | {shown(ours)} | {more:.3f} "
                    f"| {100 * more / STEP_MS:.2f} % |",
                    flush=True,
                )


CASES = (
    ("decodes", 0, False, 0),
    ("a prompt every 5 steps", 0, False, 5),
    ("drafts", 1, False, 0),
    ("decodes, planned ahead", 0, True, 0),
)
"""What is served, whether it drafts, whether it plans ahead, and steps from prompt to prompt."""


def shown(took: Took) -> str:
    return f"{took.mean:.3f} / {took.p50:.3f} / {took.p99:.3f}"


if __name__ == "__main__":
    main()
