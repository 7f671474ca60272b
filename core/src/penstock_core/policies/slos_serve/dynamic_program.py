"""The dynamic program of admission: which newcomers to take so that every prefill is in time.

Items are prefills in the order of their deadlines: `forced` ones of requests accepted before, and one for
each newcomer. The state is how many newcomers of each pace class were taken so far. Stored is the
earliest time C by which the prefills taken so far are done [SLOs-Serve, App. C, in its dual: the paper
stores the budget that is left at the deadline]. Taking an item moves C to

    C' = C + prefill time of the item beside the decodes of this state        feasible if C' + T ≤ deadline

and skipping leaves C alone, which is why no transition has to look back further than one item: O(items ·
states). At equal counts an earlier C is never worse: all that follows depends on the counts and grows
with C. So one C a state is enough while newcomers have equal values and memory does not bind.

Where it binds, or values differ, labels (C, value, blocks in each bucket, state) are kept instead of one
C: every one of them up to `EXACT_ITEMS` newcomers, which makes it exact; beyond, a beam of the labels
that for some value have the earliest C or the least memory. Memory is counted in the buckets that can
bind: those that all newcomers together would overfill.

Most calls are easier than that. If everybody fits, that is the answer. And a newcomer that would be late at
the best rate of any state, behind nothing but the forced prefills before it, is in no feasible set.

A forced item cannot be refused. It binds newcomers up to its deadline or up to when it would be done
without any, whichever is later: a request that is late already is not made later.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import numpy as np

from penstock_core.compilation.arrays import Bools, Floats, Ints
from penstock_core.forecast.decode_load import Rates, prefill_s

EXACT_ITEMS = 10
"""Newcomers up to which binding memory and unequal values are solved exactly; hopeless ones do not count."""

BEAM_LABELS = 64
"""Most labels beyond that."""


class Item(NamedTuple):
    """One prefill to be done.

    due_s: its first (or next) token's deadline.
    tokens, lines_s: its work, as `decode_load.prefill_s` takes it.
    newcomer: which newcomer it is, or None if it is forced. stride: how far taking it moves the state.
    """

    due_s: float
    tokens: int
    lines_s: tuple[float, ...]
    newcomer: int | None = None
    stride: int = 0


@dataclass(frozen=True, slots=True)
class Program:
    """One admission to decide.

    start_s: when the engine is free. items: by deadline.
    at: rates beside the decodes of each state. allowed: states whose decodes and seats fit.
    values: of each newcomer.
    claims: blocks of each newcomer per bucket. room: blocks that are left per bucket.
    """

    start_s: float
    items: Sequence[Item]
    at: Rates
    allowed: Bools
    values: Sequence[float]
    claims: Ints
    room: Ints


def solve(program: Program) -> frozenset[int]:
    """The newcomers worth most together; of equally good sets the one whose prefills end first."""
    base_s = without(program)
    if all_possible(program, base_s):
        return frozenset(range(len(program.values)))
    hopeful = _hopeful(program)
    if not hopeful:
        return hopeful
    items = [
        (item, alone_s)
        for item, alone_s in zip(program.items, base_s, strict=True)
        if item.newcomer is None or item.newcomer in hopeful
    ]
    binding = program.claims[sorted(hopeful)].sum(axis=0) > program.room
    if not binding.any() and len({program.values[i] for i in hopeful}) == 1:
        return _one_per_state(program, items)
    return _labels(program, items, binding, BEAM_LABELS if len(hopeful) > EXACT_ITEMS else 1 << EXACT_ITEMS)


def all_possible(program: Program, base_s: Sequence[float]) -> bool:
    """Whether every newcomer can be taken. `base_s`: see `without`."""
    if not (program.claims.sum(axis=0) <= program.room).all():
        return False
    state, now_s = 0, program.start_s
    rate = program.at.beside(state)
    for item, alone_s in zip(program.items, base_s, strict=True):
        now_s += rate.prefill_s(item.lines_s, item.tokens)
        in_time = now_s + rate.period_s <= item.due_s
        if item.newcomer is None:
            if not (in_time or now_s <= alone_s):
                return False
            continue
        state += item.stride
        if not in_time or now_s == inf or not program.allowed[state]:
            return False
        rate = program.at.beside(state)
    return True


def without(program: Program) -> list[float]:
    """When each item is passed if no newcomer is taken."""
    rate = program.at.beside(0)
    now_s, passed = program.start_s, []
    for item in program.items:
        if item.newcomer is None:
            now_s += rate.prefill_s(item.lines_s, item.tokens)
        passed.append(now_s)
    return passed


def _hopeful(program: Program) -> frozenset[int]:
    """Newcomers that some feasible set may contain: alone they fit, at rates that no state exceeds."""
    best, now_s = program.at.best(), program.start_s
    fits: list[bool] = np.all(program.claims <= program.room, axis=1).tolist()
    hopeful: set[int] = set()
    for item in program.items:
        done_s = now_s + best.prefill_s(item.lines_s, item.tokens)
        if item.newcomer is None:
            now_s = done_s
        elif fits[item.newcomer] and done_s < inf and done_s + best.period_s <= item.due_s:
            hopeful.add(item.newcomer)
    return frozenset(hopeful)


def _one_per_state(program: Program, items: Sequence[tuple[Item, float]]) -> frozenset[int]:
    """The earliest C of every state; states beyond `reached` have none yet."""
    done_s = np.full(len(program.allowed), inf)
    done_s[0], reached = program.start_s, 1
    at = program.at.first(reached)
    taken_at: list[tuple[Item, Bools]] = []
    for item, base_s in items:
        here_s = done_s[:reached]
        then_s = here_s + prefill_s(at, item.lines_s, item.tokens)
        in_time = then_s + at.period_s <= item.due_s
        if item.newcomer is None:
            here_s[:] = np.where(in_time | (then_s <= base_s), then_s, inf)
            continue
        targets = slice(item.stride, item.stride + reached)
        better = (then_s < done_s[targets]) & in_time & program.allowed[targets]
        taken = np.flatnonzero(better)
        if len(taken):
            np.copyto(done_s[targets], then_s, where=better)
            taken_at.append((item, better))
            reached = max(reached, int(taken[-1]) + item.stride + 1)
            at = program.at.first(reached)
    return _walk_back(_best_state(program, done_s[:reached]), taken_at)


def _best_state(program: Program, done_s: Floats) -> int:
    """The state of most newcomers; of those the one done first."""
    reached = done_s < inf
    reached[0] = True  # nobody taken
    states = np.flatnonzero(reached)
    count, rest = np.zeros_like(states), states
    for stride in sorted({item.stride for item in program.items if item.newcomer is not None}, reverse=True):
        more, rest = np.divmod(rest, stride)
        count += more
    return int(states[np.lexsort((done_s[states], -count))[0]])


def _walk_back(state: int, taken_at: list[tuple[Item, Bools]]) -> frozenset[int]:
    """Who was taken on the way to a state. `taken_at`: from which states it was better to take an item."""
    taken: set[int] = set()
    for item, better in reversed(taken_at):
        before = state - item.stride
        if item.newcomer is not None and 0 <= before < len(better) and better[before]:
            taken.add(item.newcomer)
            state = before
    return frozenset(taken)


class _Labels(NamedTuple):
    """Sets still in the running, one row each.

    sums: what every newcomer taken adds to: the state, the set as bits, blocks of each binding bucket.
    """

    sums: Ints
    value: Floats
    done_s: Floats

    @property
    def state(self) -> Ints:
        return self.sums[:, 0]

    @property
    def blocks(self) -> Ints:
        return self.sums[:, 2:]

    def rows(self, chosen: Ints) -> "_Labels":
        return _Labels(self.sums[chosen], self.value[chosen], self.done_s[chosen])

    def beside(self, more: "_Labels") -> "_Labels":
        return _Labels(*[np.concatenate(both) for both in zip(self, more, strict=True)])


def _labels(
    program: Program, items: Sequence[tuple[Item, float]], binding: Bools, most: int
) -> frozenset[int]:
    """Past `most` labels the better half is kept. `binding`: the buckets in which memory is counted."""
    room, count = program.room[binding], len(program.values)
    claims = [(1 << i, *row) for i, row in enumerate(program.claims[:, binding].tolist())]
    labels = _Labels(
        np.zeros((1, 2 + len(room)), np.int64), np.zeros(1), np.array([program.start_s], np.float64)
    )
    for item, base_s in items:
        at = program.at.of(labels.state)
        then_s = labels.done_s + prefill_s(at, item.lines_s, item.tokens)
        able = then_s + at.period_s <= item.due_s
        if item.newcomer is None:
            labels = labels._replace(done_s=then_s).rows(np.flatnonzero(able | (then_s <= base_s)))
            continue
        sums = labels.sums + np.array((item.stride, *claims[item.newcomer]))
        able &= program.allowed[sums[:, 0]] & (then_s < inf)
        if len(room):
            able &= (sums[:, 2:] <= room).all(axis=1)
        value = labels.value + program.values[item.newcomer]
        labels = labels.beside(_Labels(sums, value, then_s).rows(np.flatnonzero(able)))
        if len(labels.value) > most:
            labels = labels.rows(_beam(labels, room, most // 2))
    members = int(labels.sums[np.lexsort((labels.done_s, -labels.value))[0], 1])
    return frozenset(i for i in range(count) if members >> i & 1)


def _beam(labels: _Labels, room: Ints, count: int) -> Ints:
    """For every value the label done first and the one that fills memory least, best values first."""
    orders = [labels.done_s]
    if len(room):
        orders.append((labels.blocks / np.maximum(room, 1)).max(axis=1))
    kept = np.zeros(len(labels.value), dtype=bool)
    kept[0] = True  # nobody taken: always feasible
    for second in orders:
        order = np.lexsort((second, -labels.value))
        value = labels.value[order]
        first = np.concatenate(([True], value[1:] != value[:-1]))
        kept[order[first][: count // len(orders)]] = True
    return np.flatnonzero(kept)
