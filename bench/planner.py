"""Measures the planner's times: admission at the largest and at usual sizes, one step, and one snapshot.

    .venv/bin/python bench/planner.py [--calls N] [--seed N]

Every call has its own seeded random replica, so percentiles are over instances, not repetitions. Garbage is
collected as in the processes, except that of generating replicas.
"""

import argparse
import gc
import time
from collections.abc import Callable
from dataclasses import replace
from random import Random

import numpy as np
from penstock_core.domain.replica_view import KvCache, Limits, ReplicaView
from penstock_core.domain.request import Job, Request, advance, new_job, with_cached_prefix
from penstock_core.domain.shared_prefixes import SharedPrefixes
from penstock_core.domain.slo import Judge, Targets
from penstock_core.forecast.snapshot import snapshot
from penstock_core.policies.slos_serve.policy import SlosServe
from penstock_core.policies.vllm import Vllm
from penstock_core.timing.builtin_models import builtin
from penstock_core.timing.speculation import Speculation
from penstock_runtime.serving import YOUNG_OBJECTS

PACES_S = (0.05, 0.075, 0.1)
MODEL = builtin("llama-3-8b-a100").model


def new_request(random: Random, name: str, now_s: float, values: bool = False) -> Job:
    prompt = random.randint(20, 1500)
    ttft_s = 0.2 + random.uniform(3, 10) * MODEL.prefill_seconds(prompt)
    targets = Targets(ttft_s, random.choice(PACES_S), None, random.choice(list(Judge)))
    value = random.choice((1.0, 2.0, 5.0)) if values else 1.0
    request = Request(name, "tier", now_s - random.uniform(0, 0.02), prompt, 4096, targets, value)
    return new_job(request, random.randint(2, 500), best_effort=False)


def decode(random: Random, name: str, now_s: float) -> Job:
    job = new_request(random, name, now_s - 60)
    job = advance(job, job.request.prompt_tokens, 1, now_s - 0.01)
    for _ in range(random.randint(0, 40)):
        job = advance(job, 1, 1, now_s - 0.01)
    return job._replace(output_tokens=job.generated_tokens + random.randint(1, 400))


def replica(random: Random, decodes: int, prefills: int, kv_share: float) -> ReplicaView:
    """Return a replica. kv_share: number of blocks, as a multiple of those that running requests hold."""
    now_s = 100.0
    running = [decode(random, f"d{i}", now_s) for i in range(decodes)]
    waiting = [new_request(random, f"w{i}", now_s) for i in range(prefills)]
    held = sum(-(-(job.computed_tokens + 1) // 16) for job in running)
    kv = KvCache(int(held * kv_share), int(held * (kv_share - 1)), 16)
    return ReplicaView(now_s, now_s + 0.02, tuple(running), tuple(waiting), kv, Limits(running=512), MODEL)


Act = Callable[[], object]
Case = Callable[[Random], Act]
"""Draws a replica, and returns the call to time."""


def timed(calls: int, make: Case, seed: int) -> tuple[float, float, float]:
    random, taken_ms = Random(seed), []
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)
    for call in range(calls + 20):
        act = make(random)
        gc.collect()
        before = time.thread_time()
        act()
        if call >= 20:
            taken_ms.append((time.thread_time() - before) * 1e3)
    p50, p99, longest = (float(np.percentile(taken_ms, p)) for p in (50, 99, 100))
    return p50, p99, longest


def admission(
    decodes: int, prefills: int, new: int, kv_share: float, *, values: bool = False, patience_s: float = 0.0
) -> Case:
    """Return an admission case. patience_s: upper bound on the additional time to first token."""

    def make(random: Random) -> Act:
        view = replica(random, decodes, prefills, kv_share)
        jobs = [new_request(random, f"n{i}", view.now_s, values) for i in range(new)]
        jobs = [job._replace(due_s=job.due_s + random.uniform(0, patience_s)) for job in jobs]
        return lambda: SlosServe().admit(view, jobs)

    return make


def admission_beside_sharers(decodes: int, kv_share: float) -> Case:
    """Return a case of decodes with common prefixes, and a new request whose prefix one of them holds."""

    def make(random: Random) -> Act:
        view = replica(random, decodes, 2, kv_share)
        ids = [job.request.id for job in view.running]
        common = [0, *[random.randint(0, 40) for _ in ids[1:]]]
        view = replace(view, kv=replace(view.kv, shared_prefixes=SharedPrefixes(ids, common)))
        job = new_request(random, "n", view.now_s)
        cached = (job.request.prompt_tokens - 1) // 16
        job = with_cached_prefix(job, cached * 16, cached // 2, random.choice(ids))
        return lambda: SlosServe().admit(view, [job])

    return make


def step(policy: SlosServe | Vllm, decodes: int, prefills: int, drafts: int = 0) -> Case:
    """Return a case of one step. drafts: most draft tokens of the engine's drafter; 0 without one."""

    def make(random: Random) -> Act:
        view = replica(random, decodes, prefills, 3.0)
        view = replace(view, speculation=Speculation(drafts, 0.7) if drafts else None)
        return lambda: policy.step(view, None)

    return make


def snapshot_of(decodes: int, prefills: int) -> Case:
    def make(random: Random) -> Act:
        view = replica(random, decodes, prefills, 3.0)
        return lambda: snapshot(view)

    return make


CASES = {
    "admit 32 of 3 classes, 200 running, memory free": admission(195, 5, 32, 20.0),
    "admit 32 of 3 classes, 200 running, half of them fit": admission(195, 5, 32, 20.0, patience_s=2.0),
    "admit 32 of 3 classes, 200 running, all of them fit": admission(195, 5, 32, 20.0, patience_s=40.0),
    "admit 32 of 3 classes, 200 running, memory binds": admission(195, 5, 32, 1.15, patience_s=4.0),
    "admit 32, unequal values, 200 running": admission(195, 5, 32, 20.0, values=True),
    "admit 8 of 3 classes, 200 running, memory binds": admission(195, 5, 8, 1.15, patience_s=4.0),
    "admit 1, 200 running": admission(198, 2, 1, 20.0),
    "admit 1, 200 running, memory binds": admission(198, 2, 1, 1.15),
    "admit 1, 200 running with common prefixes": admission_beside_sharers(198, 20.0),
    "admit 1, 45 running": admission(44, 1, 1, 2.0),
    "step, 256 decodes": step(SlosServe(), 256, 0),
    "step, 250 decodes and 6 prefills": step(SlosServe(), 250, 6),
    "step, 200 decodes": step(SlosServe(), 200, 0),
    "step, 200 decodes, drafts": step(SlosServe(), 200, 0, 5),
    "step, 200 decodes and 6 prefills, drafts": step(SlosServe(), 200, 6, 5),
    "step vllm, 256 decodes": step(Vllm(), 256, 0),
    "snapshot, 250 decodes and 6 prefills": snapshot_of(250, 6),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Planner times in milliseconds per call: p50, p99 and max over random replicas."
    )
    parser.add_argument("--calls", type=int, default=500, help="calls per case (default 500)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the replicas (default 1)")
    options = parser.parse_args()
    print(f"{'CPU ms per call':<52}{'p50':>8}{'p99':>8}{'max':>8}")
    for name, make in CASES.items():
        p50, p99, most = timed(options.calls, make, options.seed)
        print(f"{name:<52}{p50:8.3f}{p99:8.3f}{most:8.3f}")


if __name__ == "__main__":
    main()
