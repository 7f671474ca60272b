"""Search for the best order and batches by simulated annealing [annealing, §4.3, Algorithm 1].

There are two initial plans, both in full batches: the given order, and ascending predicted latency. If every
request meets its SLO in the second, it is the result. Otherwise the better one is changed move by move: a
request is squeezed into the previous batch, or delayed into the next, or two are swapped. A better plan is
always accepted, a worse one with a probability that falls with the temperature, from 500 to 20 by a twentieth
per level, with 100 moves per level. The best plan seen is the result.

Two errors of the paper are corrected. Its rule accepts worse plans more readily the worse they are (the sign
and the comparison are both reversed); here it is `exp((f_new − f) / T)`. And its temperatures are far above
any G, so every plan would be accepted; here they are thousandths of the best G seen, so at 500 a loss of half
of it is accepted with probability 1/e, and at 20 a loss of a fiftieth.

A sweep sometimes ends in a local optimum, and the plan that meets every SLO may have larger batches than
latency favours. For up to `EXACT_REQUESTS` requests, branch and bound from the better initial plan
(`exhaustive_search`) has neither problem and takes a third of the time. So few requests get the optimal plan,
and annealing is used for more.

Compiled: a sweep is 6,300 moves. A move costs a few operations per request, because it reads only two tables
(`plan_tables`). Random numbers are xorshift's, 32 bits in 64, so that they never overflow.
"""

from math import exp
from typing import NamedTuple

import numpy as np

from penstock_core.compilation.arrays import Ints
from penstock_core.compilation.jit import FLOAT, INT, INTS, compiled, part, results
from penstock_core.policies.annealing.exhaustive_search import improve
from penstock_core.policies.annealing.plan_tables import PLAN_TABLES_TYPE, PlanTables

HOTTEST, COLDEST, COOLING, MOVES_A_LEVEL = 500.0, 20.0, 0.95, 100
TEMPERATURE_PER_BEST = 1000.0
"""Temperatures are in units of the best G seen, divided by this number."""

EXACT_REQUESTS = 8
"""Most requests for which the result is the optimum."""

LOW_BITS = 0xFFFFFFFF
ALL_BITS = 2.0**32


class BatchSequence(NamedTuple):
    """An order of requests in batches.

    order: requests by column, first served first. sizes: batch sizes, in the same order.
    value: its G. moves: annealing moves made to find it; 0 without annealing.
    """

    order: tuple[int, ...]
    sizes: tuple[int, ...]
    value: float
    moves: int


def best_plan(tables: PlanTables, seed: int, exact_requests: int = EXACT_REQUESTS) -> BatchSequence:
    """Return the best plan found for at least one request, the same for the same seed.

    exact_requests: up to this many requests it is the optimum; with 0 annealing always decides.
    """
    count = tables.requests
    order = np.argsort(tables.exec_s[-1], kind="stable")
    ends = np.zeros(count + 2, dtype=np.int64)
    value, batches, moves = search(tables, order, ends, seeded(seed), int(count <= exact_requests))
    return BatchSequence(tuple(order.tolist()), tuple(np.diff(ends[: batches + 1]).tolist()), value, moves)


def first_batch_s(tables: PlanTables, plan: BatchSequence) -> float:
    """Return the seconds from the start of a plan's first batch to the start of the next one."""
    row = plan.sizes[0] - 1
    return float(tables.next_start_share[row] * tables.exec_s[row, plan.order[: row + 1]].max())


def seeded(seed: int) -> int:
    """Return an initial state of the generator: 32 bits, not all zero, far apart for consecutive seeds."""
    return (seed * 0x9E3779B1 + 0x7F4A7C15 & LOW_BITS) or 1


@part
def next_random(state: int) -> int:
    """Return the next 32 bits (xorshift)."""
    state ^= (state << 13) & LOW_BITS
    state ^= state >> 17
    state ^= (state << 5) & LOW_BITS
    return state


@part
def objective(
    tables: PlanTables,
    order: Ints,
    ends: Ints,
    batches: int,
) -> tuple[float, int]:
    """Return G of a plan, and the number of met SLOs."""
    exec_s, latest_s, next_start_share = tables.exec_s, tables.latest_s, tables.next_start_share
    latency_s, met, wait_s = tables.base_s[ends[1] - 1], tables.base_met, 0.0
    for batch in range(batches):
        row = ends[batch + 1] - ends[batch] - 1
        longest_s = 0.0
        for place in range(ends[batch], ends[batch + 1]):
            request = order[place]
            own_s = exec_s[row, request]
            latency_s += wait_s + own_s
            met += wait_s <= latest_s[row, request]
            if own_s > longest_s:  # noqa: PLR1730 (`max` handles NaN, which takes longer)
                longest_s = own_s
        wait_s += next_start_share[row] * longest_s
    return met / latency_s, met


@part
def fill(ends: Ints, most: int) -> int:
    """Divide into full batches, the last one with the rest. Returns their number."""
    count, batches = len(ends) - 2, 0
    while ends[batches] < count:
        ends[batches + 1] = min(ends[batches] + most, count)
        batches += 1
    return batches


@part
def batch_of(ends: Ints, place: int) -> int:
    """Return the batch that contains this place in the order."""
    batch = 0
    while ends[batch + 1] <= place:
        batch += 1
    return batch


@part
def remove_batch(ends: Ints, batch: int, batches: int) -> int:
    """Remove an empty batch. Returns the new number of batches."""
    for later in range(batch, batches):
        ends[later] = ends[later + 1]
    return batches - 1


@part
def squeeze(order: Ints, ends: Ints, batches: int, place: int, most: int) -> int:
    """Move a request into the previous batch. Returns the new number of batches; 0 if impossible."""
    batch = batch_of(ends, place)
    if batch == 0 or ends[batch] - ends[batch - 1] == most:
        return 0
    first = ends[batch]
    order[place], order[first] = order[first], order[place]
    ends[batch] = first + 1
    return remove_batch(ends, batch, batches) if ends[batch] == ends[batch + 1] else batches


@part
def delay(order: Ints, ends: Ints, batches: int, place: int, most: int) -> int:
    """Move a request into the next batch, or a new one after the last. Returns as `squeeze`."""
    batch = batch_of(ends, place)
    last = ends[batch + 1] - 1
    if batch == batches - 1:
        if last == ends[batch]:
            return 0
        ends[batches + 1] = last + 1
        batches += 1
    elif ends[batch + 2] - ends[batch + 1] == most:
        return 0
    order[place], order[last] = order[last], order[place]
    ends[batch + 1] = last
    return remove_batch(ends, batch, batches) if last == ends[batch] else batches


@part
def random_move(order: Ints, ends: Ints, batches: int, most: int, random: int) -> int:
    """Apply one of the three moves at a place, both chosen by 32 random bits. Returns as `squeeze`."""
    count = len(order)
    drawn = random * 3
    move = drawn >> 32
    drawn = (drawn & LOW_BITS) * count
    place = drawn >> 32
    if move == 0:
        return squeeze(order, ends, batches, place, most)
    if move == 1:
        return delay(order, ends, batches, place, most)
    other = ((drawn & LOW_BITS) * count) >> 32
    order[place], order[other] = order[other], order[place]
    return batches if other != place else 0


@part
def copy(order: Ints, ends: Ints, to_order: Ints, to_ends: Ints, batches: int) -> None:
    """Copy a plan element by element, which is faster than slices for such short arrays."""
    for place in range(len(order)):
        to_order[place] = order[place]
    for batch in range(1, batches + 1):
        to_ends[batch] = ends[batch]


@part
def sweep(tables: PlanTables, order: Ints, ends: Ints, batches: int, random: int) -> tuple[float, int, int]:
    """Anneal from a plan. Writes the best one seen; returns its G, its number of batches, the moves made."""
    most = len(tables.exec_s)
    value = objective(tables, order, ends, batches)[0]
    best, best_batches = value, batches
    at_order, at_ends = order.copy(), ends.copy()
    new_order, new_ends = order.copy(), ends.copy()
    moves, temperature = 0, HOTTEST
    while temperature >= COLDEST:
        per_loss = TEMPERATURE_PER_BEST / (temperature * best) if best > 0 else 0.0
        for _ in range(MOVES_A_LEVEL):
            moves += 1
            random = next_random(random)
            new_batches = random_move(new_order, new_ends, batches, most, random)
            if new_batches == 0:
                continue
            new = objective(tables, new_order, new_ends, new_batches)[0]
            taken = new >= value
            if not taken:
                random = next_random(random)
                taken = random < exp((new - value) * per_loss) * ALL_BITS
            if not taken:
                copy(at_order, at_ends, new_order, new_ends, batches)
                continue
            value, batches = new, new_batches
            copy(new_order, new_ends, at_order, at_ends, batches)
            if value > best:
                best, best_batches = value, batches
                copy(new_order, new_ends, order, ends, batches)
        temperature *= COOLING
    return best, best_batches, moves


@compiled(results(FLOAT, INT, INT), PLAN_TABLES_TYPE, INTS, INTS, INT, INT)
def search(tables: PlanTables, order: Ints, ends: Ints, random: int, exact: int) -> tuple[float, int, int]:
    """Run Algorithm 1, or find the optimum if `exact` is not 0. Returns G, batches, moves; writes the plan.

    order: the requests by predicted latency. ends: zeros, two more than requests.
    """
    batches = fill(ends, len(tables.exec_s))
    value, met = objective(tables, order, ends, batches)
    if met == len(order) + tables.base_met and not exact:
        return value, batches, 0
    given = np.arange(len(order))
    given_value = objective(tables, given, ends, batches)[0]
    if value < given_value:
        value, order[:] = given_value, given
    if exact:
        value, batches = improve(tables, order, ends, value)
        return value, batches, 0
    return sweep(tables, order, ends, batches, random)
