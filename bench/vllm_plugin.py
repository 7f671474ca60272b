"""Measures the CPU time of a policy's steps inside vLLM, compared with vLLM's own scheduler in the same run.

    make vllm-env
    .venv/bin/python bench/vllm_plugin.py [--running 200] [--steps 2000] [--policies slos-serve,sola]

Real vLLM schedulers run in virtual time: a fixed number of requests decodes, with arrivals or without, and no
model runs. The bench measures the thread's CPU time in `schedule` and `update_from_output`, with the plug-in
and without. Each scheduler has its own process, as an engine has: two kinds in one process would disturb
Python's caches of both. They take turns step by step. Another process reads the reports. A thread of the
plug-in makes and sends them while an engine waits for its device; its time is the last column and is not in
the others.

The overhead is the time of the calls outside of vLLM's own methods, less the cost of measuring, which is the
same time without the plug-in. Its mean is also given as a share of a step of 30 ms. This difference is
accurate even on a busy machine, which may slow one process down more than the other. It does not include the
`caps` that vLLM requests in some steps; only the two totals show them.
"""

import argparse
import gc
import multiprocessing
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import fmean, quantiles
from time import process_time, thread_time
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "vllm_plugin"))

from virtual import vllm_at
from virtual.engine import Engine, Kind

PROCESSES = multiprocessing.get_context("fork")  # forks have the imported modules
STEP_MS = 30.0
FIELDS = {"penstock_tier": "chat", "penstock_ttft_s": 1.0, "penstock_tpot_s": 0.05, "penstock_best_effort": 0}


class StepTimes(NamedTuple):
    """CPU times of steps, in ms."""

    mean: float
    p50: float
    p99: float


def step_times(seconds: list[float]) -> StepTimes:
    cuts = quantiles([1e3 * one for one in seconds], n=100)
    return StepTimes(1e3 * fmean(seconds), cuts[49], cuts[98])


@contextmanager
def reader(path: Path) -> Iterator[None]:
    """Run a process that reads reports as a sidecar does, while the block runs."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(path))
        process = PROCESSES.Process(target=read, args=(receiver,), daemon=True)
        process.start()
    try:
        yield
    finally:
        process.terminate()
        process.join()


def read(receiver: socket.socket) -> None:
    while True:
        receiver.recv(1 << 20)


class SchedulerTimer:
    """Sums the CPU times of a scheduler's calls, and of vLLM's own methods within them."""

    def __init__(self, scheduler: Any) -> None:
        self.all_s = self.own_s = 0.0
        (own,) = [kind for kind in type(scheduler).__mro__ if kind.__name__ == "Scheduler"]
        for name in ("schedule", "update_from_output"):
            setattr(own, name, self._timed(getattr(own, name), "own_s"))
            setattr(scheduler, name, self._timed(getattr(scheduler, name), "all_s"))

    def _timed(self, call: Callable[..., Any], where: str) -> Callable[..., Any]:
        def timed(*given: Any) -> Any:
            began_s = thread_time()
            result = call(*given)
            setattr(self, where, getattr(self, where) + thread_time() - began_s)
            return result

        return timed

    def taken(self) -> tuple[float, float]:
        """Return the seconds since the previous call: in total, and outside of vLLM's own methods."""
        seconds = self.all_s, self.all_s - self.own_s
        self.all_s = self.own_s = 0.0
        return seconds


def serve(turns: Connection, kind: Kind, running: int, every: int) -> None:
    """Run an engine with `running` decodes: make a step at every turn, and send its times."""
    engine = Engine(kind)
    for number in range(running):
        engine.add(f"r{number}", 200, 10**6, fields={**FIELDS, "penstock_id": f"p{number}"})
    while sum(request.num_output_tokens > 0 for request in engine.scheduler.running) < running:
        engine.step()
    timer = SchedulerTimer(engine.scheduler)
    gc.collect()
    gc.disable()
    others_s = process_time() - thread_time()
    for step in iter(turns.recv, None):
        if every and step % every == 0:
            engine.add(f"more{step}", 800, 2, fields={**FIELDS, "penstock_id": f"more{step}"})
        engine.step()
        turns.send(timer.taken())
    turns.send(process_time() - thread_time() - others_s)
    turns.send(engine.scheduler.faults.counted if kind.steered else {})


def both(kind: Kind, running: int, count: int, every: int) -> tuple[list[list[tuple[float, float]]], float]:
    """Return the times of each step without and with the plug-in, and its thread's time per step, in seconds.

    every: steps from one prompt to the next; 0 for none.
    """
    lines, engines = [], []
    for steered in (False, True):
        ours, theirs = PROCESSES.Pipe()
        given = (theirs, replace(kind, steered=steered), running, every)
        engines.append(PROCESSES.Process(target=serve, args=given, daemon=True))
        engines[-1].start()
        lines.append(ours)
    step_times: list[list[tuple[float, float]]] = [[], []]
    for step in range(count):
        for at in (0, 1) if step % 2 else (1, 0):
            lines[at].send(step)
            step_times[at].append(lines[at].recv())
    beside_s = 0.0
    for line, engine in zip(lines, engines, strict=True):
        line.send(None)
        beside_s = line.recv() / count
        if faults := line.recv():
            raise SystemExit(f"the policy failed: {faults}")
        engine.join()
    return step_times, beside_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--running", type=int, default=200)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--policies", default="slos-serve,sola,vllm")
    parser.add_argument("--drafts", type=int, default=3, help="of the cases that draft")
    options = parser.parse_args()
    vllm_at.load()
    load = ", ".join(f"{one:.0f}" for one in os.getloadavg())
    print(f"{options.running} requests decode; ms a step, mean / p50 / p99 of {options.steps} steps")
    print(f"{os.cpu_count()} cores; load average of the machine {load}")
    print(
        "| policy | engine | vLLM's own | with the plug-in | overhead | its mean, of a 30 ms step | reports |"
    )
    print("|---|---|---:|---:|---:|---:|---:|")
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
                (own, ours), beside_s = both(kind, options.running, options.steps, every)
                without, with_it = (shown(step_times([all_s for all_s, _ in one])) for one in (own, ours))
                clock_s = fmean(outside_s for _, outside_s in own)
                more = step_times([outside_s - clock_s for _, outside_s in ours])
                print(
                    f"| {policy} | {what} | {without} | {with_it} | {shown(more)} "
                    f"| {100 * more.mean / STEP_MS:.2f} % | {1e3 * beside_s:.3f} |",
                    flush=True,
                )


CASES = (
    ("decodes", 0, False, 0),
    ("a prompt every 5 steps", 0, False, 5),
    ("drafts", 1, False, 0),
    ("decodes, planned ahead", 0, True, 0),
)
"""Name, draft tokens, whether steps are planned ahead, and steps from prompt to prompt."""


def shown(step_times: StepTimes) -> str:
    return f"{step_times.mean:.3f} / {step_times.p50:.3f} / {step_times.p99:.3f}"


if __name__ == "__main__":
    main()
