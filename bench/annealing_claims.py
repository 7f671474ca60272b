"""Compares the annealer with its paper's claims: time and quality of a search, and the benefit of its plans.

    .venv/bin/python bench/annealing_claims.py [--instances N] [--seed N]

Requests are the paper's mix, half code (e2e in 30 s), half chat (first token in 10 s, 50 ms a token), on its
engine (Qwen2.5-7B on two V100, the predictor's coefficients of its Table 2). Instead of its two data
sets, lengths are drawn from distributions below 2k: code 90 ± 60 prompt and 170 ± 80 answer tokens, chat
log-normal with medians of 200 and 180.

Times are CPU times of this process. `exhaustive` is the paper's search: every order with every division into
batches, in Python. Plans use predicted lengths and are judged by true lengths, in batches run one after the
other.
"""

import argparse
import time
from collections.abc import Iterator
from itertools import permutations
from math import inf
from random import Random
from statistics import fmean
from typing import NamedTuple

import numpy as np
from penstock_core.policies.annealing.latency import QWEN_7B_2XV100
from penstock_core.policies.annealing.lengths import Gaussian
from penstock_core.policies.annealing.plan_tables import PlanInput, PlanTables, plan_tables
from penstock_core.policies.annealing.search import EXACT_REQUESTS, BatchSequence, best_plan, objective

PAPER_MS = {4: (0.23, 1.2), 6: (0.32, 39.0), 8: (0.43, 88_200.0), 10: (0.48, 287_000.0)}
LONGEST_TOKENS = 2000


def code_or_chat(random: Random, tight: float = 1.0) -> PlanInput:
    """Return a request of one of the paper's two kinds."""
    if random.random() < 0.5:
        return PlanInput(clipped(random.gauss(90, 60)), clipped(random.gauss(170, 80)), e2e_s=30 * tight)
    prompt, answer = random.lognormvariate(5.3, 1.0), random.lognormvariate(5.2, 0.9)
    return PlanInput(clipped(prompt), clipped(answer), ttft_s=10 * tight, tpot_s=0.05)


def clipped(tokens: float) -> int:
    return int(min(max(tokens, 5), LONGEST_TOKENS))


def mix(random: Random, count: int, most: int, tight: float) -> PlanTables:
    return plan_tables(QWEN_7B_2XV100, [code_or_chat(random, tight) for _ in range(count)], most)


def timed(tables: PlanTables, seed: int, exact_requests: int) -> float:
    """Return the time of one search, in ms."""
    start_s = time.thread_time()
    best_plan(tables, seed, exact_requests)
    return (time.thread_time() - start_s) * 1e3


def time_of_all(tables: PlanTables) -> float:
    """Return the time of the exhaustive search, in ms."""
    start_s = time.thread_time()
    exhaustive(tables)
    return (time.thread_time() - start_s) * 1e3


def search_times(instances: int, seed: int) -> None:
    print("\nms of CPU a search, p50 / p99; at most one request a batch, as the paper's Table 1, and four")
    head = f"{'requests':>8} {'batch':>5} {'search':>15} {'annealing':>15} {'exhaustive':>11}"
    print(f"{head}  paper: annealing, exhaustive")
    for count, (paper_ms, paper_all_ms) in PAPER_MS.items():
        for most in (1, 4):
            tables = [mix(Random(seed + i), count, most, 0.1) for i in range(instances)]
            found = [timed(tables[i], i, EXACT_REQUESTS) for i in range(instances)]
            moved = [i for i in range(instances) if best_plan(tables[i], i, 0).moves]
            annealed = [timed(tables[i], i, 0) for i in moved]
            few = most == 1 or count <= 6
            all_ms = f"{time_of_all(tables[0]):11.1f}" if few else f"{'-':>11}"
            paper = f"{paper_ms:8.2f} {paper_all_ms:8.1f}" if most == 1 else ""
            print(f"{count:8} {most:5} {spread(found)} {spread(annealed)} {all_ms} {paper}", flush=True)


def spread(values_ms: list[float]) -> str:
    p50, p99 = np.quantile(values_ms, (0.5, 0.99))
    return f"{p50:7.3f} {p99:7.3f}"


def exhaustive(tables: PlanTables) -> float:
    """Return the best G of all orders and all divisions into batches."""
    most, count = tables.exec_s.shape
    exec_s, latest_s = tables.exec_s.tolist(), tables.latest_s.tolist()
    sizes = list(cuts(count, most))
    return max(
        value_of(exec_s, latest_s, order, cut) for order in permutations(range(count)) for cut in sizes
    )


def cuts(count: int, most: int) -> Iterator[tuple[int, ...]]:
    if count == 0:
        yield ()
    for first in range(1, min(count, most) + 1):
        for rest in cuts(count - first, most):
            yield (first, *rest)


def value_of(
    exec_s: list[list[float]], latest_s: list[list[float]], order: tuple[int, ...], sizes: tuple[int, ...]
) -> float:
    wait_s, met, latency_s, place = 0.0, 0, 0.0, 0
    for size in sizes:
        longest_s = 0.0
        for job in order[place : place + size]:
            own_s = exec_s[size - 1][job]
            latency_s += wait_s + own_s
            met += wait_s <= latest_s[size - 1][job]
            longest_s = max(longest_s, own_s)
        wait_s += longest_s
        place += size
    return met / latency_s


def search_quality(instances: int, seed: int) -> None:
    print("\nG against the optimum (branch and bound; equal to the exhaustive search where that was run)")
    print(f"{'requests':>8} {'annealing: mean':>16} {'worst':>7} {'within 1 %':>11} {'search: worst':>14}")
    for count in (4, 6, 8, 10):
        annealed, found = [], []
        for i in range(instances):
            random = Random(1000 * seed + i)
            tables = mix(random, count, random.choice((1, 2, 4)), random.choice((0.1, 0.3, 0.5, 1.0)))
            best = best_plan(tables, i, exact_requests=count).value
            if i < 5 and count <= 6:
                assert abs(best - exhaustive(tables)) < 1e-9
            if best > 0:
                annealed.append(best_plan(tables, i, 0).value / best)
                found.append(best_plan(tables, i).value / best)
        within = fmean(share > 0.99 for share in annealed)
        print(f"{count:8} {fmean(annealed):16.4f} {min(annealed):7.3f} {within:11.1%} {min(found):14.4f}")
    print(f"search is exact up to {EXACT_REQUESTS} requests and anneals more")


class Worth(NamedTuple):
    """The result of a plan under true lengths."""

    attainment: float
    latency_s: float
    value: float


def worth_of(tables: PlanTables, order: tuple[int, ...], sizes: tuple[int, ...]) -> Worth:
    ends = np.zeros(tables.requests + 2, dtype=np.int64)
    ends[1 : len(sizes) + 1] = np.cumsum(sizes)
    value, met = objective(tables, np.array(order), ends, len(sizes))
    latency_s = met / value / tables.requests if met else inf
    return Worth(met / tables.requests, latency_s, value)


def profile(random: Random) -> dict[bool, Gaussian]:
    """Return Gaussians of answer lengths for code and chat, fitted to 200 finished answers."""
    kinds = {True: Gaussian(), False: Gaussian()}
    for _ in range(200):
        requested = code_or_chat(random)
        kinds[requested.e2e_s < inf] = kinds[requested.e2e_s < inf].observe(requested.decode_tokens)
    return kinds


def plan_worth(instances: int, seed: int) -> None:
    print("\nAll requests at once, against first come first served in full batches; means over instances,")
    print("and the largest gain of any. Lengths known, or drawn from Gaussians of each task as in the paper.")
    head = f"{'requests':>8} {'batch':>5} {'lengths':>8} {'attainment':>15} {'latency s':>15}"
    print(f"{head} {'latency':>8} {'G':>8} {'most: att.':>10} {'lat.':>7} {'G':>7}")
    kinds = profile(Random(seed))
    for most, counts in ((1, (10, 20, 40)), (2, (10, 20, 40)), (4, (10, 20, 40))):
        for count in counts:
            for known in (True, False):
                rows = [
                    compare(Random(seed + i), count, most, None if known else kinds) for i in range(instances)
                ]
                row = f"{count:8} {most:5} {'known' if known else 'drawn':>8}"
                print(f"{row} {gains(rows)}", flush=True)


def compare(random: Random, count: int, most: int, kinds: dict[bool, Gaussian] | None) -> tuple[Worth, Worth]:
    inputs = [code_or_chat(random) for _ in range(count)]
    truth = plan_tables(QWEN_7B_2XV100, inputs, most)
    full = tuple(min(most, count - place) for place in range(0, count, most))
    plan = planned(inputs, most, kinds, random.randrange(1 << 30))
    return worth_of(truth, tuple(range(count)), full), worth_of(truth, plan.order, plan.sizes)


def planned(
    inputs: list[PlanInput], most: int, kinds: dict[bool, Gaussian] | None, seed: int
) -> BatchSequence:
    if kinds is not None:
        drawn = [kinds[one.e2e_s < inf].draw(seed + i) for i, one in enumerate(inputs)]
        inputs = [
            one._replace(decode_tokens=clipped(tokens)) for one, tokens in zip(inputs, drawn, strict=True)
        ]
    return best_plan(plan_tables(QWEN_7B_2XV100, inputs, most), seed)


def gains(rows: list[tuple[Worth, Worth]]) -> str:
    fcfs, ours = (
        Worth(*(fmean(part) for part in zip(*side, strict=True))) for side in zip(*rows, strict=True)
    )
    most_met = max(after.attainment / before.attainment for before, after in rows if before.attainment)
    most_saved = min(after.latency_s / before.latency_s for before, after in rows if before.attainment)
    most_value = max(after.value / before.value for before, after in rows if before.value)
    met = f"{fcfs.attainment:6.1%} {ours.attainment:8.1%}"
    latency = f"{fcfs.latency_s:7.1f} {ours.latency_s:7.1f} {ours.latency_s / fcfs.latency_s - 1:+8.1%}"
    value = f"{ours.value / fcfs.value - 1:+8.1%}"
    return f"{met} {latency} {value} {most_met:9.2f}x {most_saved - 1:+7.1%} {most_value - 1:+7.0%}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--instances", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    search_times(options.instances, options.seed)
    search_quality(options.instances, options.seed)
    plan_worth(options.instances, options.seed)
