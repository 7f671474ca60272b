"""Optimal plan of few requests, starting from a good plan [annealing, §4.3, exhaustive search].

Branch and bound over batches: the first batch is every subset of the requests, the next every subset of the
rest, and so on; the order within a batch has no effect. The bound for the remaining requests assumes that all
start at once, each in its best batch size. If that is no better than the best known plan, the branch is cut.

Eight requests have 545,835 plans (ordered partitions of a set). Beginning with a plan ordered by latency, the
search tries some thousands of batches, in about 50 µs. With ten or more requests it may take many times as
long.
"""

import numpy as np

from penstock_core.compilation.arrays import Floats, Ints
from penstock_core.compilation.jit import part
from penstock_core.policies.annealing.plan_tables import PlanTables


@part
def take(tables: PlanTables, members: int, row: int, wait_s: float) -> tuple[float, int, float]:
    """Return the sum of latencies, the met SLOs and the longest execution of a batch.

    members: its requests, as a bitmask. row: its size minus one. wait_s: time until it starts.
    """
    exec_s, latest_s = tables.exec_s, tables.latest_s
    latency_s, met, longest_s = 0.0, 0, 0.0
    for request in range(exec_s.shape[1]):
        if members >> request & 1:
            latency_s += wait_s + exec_s[row, request]
            met += wait_s <= latest_s[row, request]
            longest_s = max(longest_s, exec_s[row, request])
    return latency_s, met, longest_s


@part
def ideal_of(tables: PlanTables) -> Floats:
    """Return for each request, over all sizes, its shortest execution and longest wait that meets its SLO."""
    ideal = np.stack((tables.exec_s[0], tables.latest_s[0]))
    for row in range(1, len(tables.exec_s)):
        ideal[0] = np.minimum(ideal[0], tables.exec_s[row])
        ideal[1] = np.maximum(ideal[1], tables.latest_s[row])
    return ideal


@part
def upper_bound(ideal: Floats, members: int, wait_s: float) -> tuple[float, int]:
    """Return the least sum of latencies and the most met SLOs of these requests (bitmask).

    Each starts after `wait_s`, in its best batch size.
    """
    latency_s, met = 0.0, 0
    for request in range(ideal.shape[1]):
        if members >> request & 1:
            latency_s += wait_s + ideal[0, request]
            met += wait_s <= ideal[1, request]
    return latency_s, met


@part
def size_of(members: int) -> int:
    """Return the number of set bits."""
    size = 0
    while members:
        members &= members - 1
        size += 1
    return size


@part
def write(batches_taken: Ints, order: Ints, ends: Ints) -> None:
    """Write the plan of these batches (bitmasks, empty ones at the end) as an order and ends."""
    place = 0
    for batch in range(len(batches_taken)):
        for request in range(len(order)):
            if batches_taken[batch] >> request & 1:
                order[place] = request
                place += 1
        ends[batch + 1] = place


@part
def improve(tables: PlanTables, order: Ints, ends: Ints, best: float) -> tuple[float, int]:
    """Search all plans that may be better than `best`, the objective G of the plan in `order` and `ends`.

    G is the number of met SLOs over the sum of latencies (`plan_tables`). Writes the best plan into `order`
    and `ends`. Returns its G and number of batches. For fewer than 63 requests.
    """
    most, count = tables.exec_s.shape
    ideal = ideal_of(tables)
    batches = 0
    while ends[batches] < count:
        batches += 1
    left, taken, met = np.zeros_like(order), np.zeros_like(order), np.zeros_like(order)
    wait_s, latency_s = np.zeros(count), np.zeros(count)
    left[0] = (1 << count) - 1
    taken[0] = left[0] + 1
    met[0] = tables.base_met
    depth = 0
    while depth >= 0:
        taken[depth] = (taken[depth] - 1) & left[depth]  # the next smaller subset
        size = size_of(taken[depth])
        if size == 0:
            depth -= 1
            continue
        if size > most:
            continue
        own_s, own_met, longest_s = take(tables, taken[depth], size - 1, wait_s[depth])
        sum_s = latency_s[depth] + own_s + (tables.base_s[size - 1] if depth == 0 else 0.0)
        sum_met = met[depth] + own_met
        next_wait_s = wait_s[depth] + tables.next_start_share[size - 1] * longest_s
        rest = left[depth] ^ taken[depth]
        rest_s, rest_met = upper_bound(ideal, rest, next_wait_s)
        if sum_met + rest_met <= best * (sum_s + rest_s):
            continue
        if rest == 0:
            best = sum_met / sum_s
            write(taken, order, ends)
            batches = depth + 1
            continue
        depth += 1
        left[depth], taken[depth] = rest, rest + 1
        met[depth], wait_s[depth], latency_s[depth] = sum_met, next_wait_s, sum_s
    return best, batches
