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
that for some value have the earliest C or the least memory.

A forced item cannot be refused. It binds newcomers up to its deadline or up to when it would be done
without any, whichever is later: a request that is late already is not made later.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock_core.decode_load import Floats, Rates, prefill_s
from penstock_core.kv_peak import Ints

EXACT_ITEMS = 10
"""Newcomers up to which binding memory and unequal values are solved exactly."""

BEAM_LABELS = 32
"""Labels kept per item beyond that."""


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
    allowed: NDArray[np.bool_]
    values: Sequence[float]
    claims: Ints
    room: Ints


@dataclass(frozen=True, slots=True)
class Path:
    """A set of newcomers carried out: the state it ends in, and when each item taken is done."""

    state: int
    done_s: dict[int, float]
    end_s: float


def solve(program: Program) -> frozenset[int]:
    """The newcomers worth most together; of equally good sets the one whose prefills end first."""
    if not program.values:
        return frozenset()
    alike = min(program.values) == max(program.values)
    if alike and bool((program.claims.sum(axis=0) <= program.room).all()):
        return _one_per_state(program)
    return _labels(program)


def walk(program: Program, taken: frozenset[int], base_s: Sequence[float]) -> Path | None:
    """Carry out one set; None where it is not feasible. `base_s`: see `without`."""
    if not (program.claims[sorted(taken)].sum(axis=0) <= program.room).all():
        return None
    at, state, now_s = program.at, 0, program.start_s
    done_s: dict[int, float] = {}
    for item, alone_s in zip(program.items, base_s, strict=True):
        if item.newcomer is not None and item.newcomer not in taken:
            continue
        now_s += item_s(at, item, state)
        limit_s = item.due_s - float(at.period_s[state])
        if item.newcomer is None:
            limit_s = max(limit_s, alone_s)
        if not now_s <= limit_s or (item.newcomer is not None and not np.isfinite(now_s)):
            return None
        if item.newcomer is not None:
            done_s[item.newcomer] = now_s
            state += item.stride
            if not program.allowed[state]:
                return None
    return Path(state, done_s, now_s)


def without(program: Program) -> list[float]:
    """When each item is passed if no newcomer is taken."""
    now_s, passed = program.start_s, []
    for item in program.items:
        now_s += item_s(program.at, item, 0) if item.newcomer is None else 0.0
        passed.append(now_s)
    return passed


def item_s(at: Rates, item: Item, state: int) -> float:
    """How long one item takes beside the decodes of one state."""
    lines = (float(p[state]) * s for p, s in zip(at.per_second, item.lines_s, strict=True))
    return max(float(at.per_token[state]) * item.tokens, *lines)


def _one_per_state(program: Program) -> frozenset[int]:
    done = np.array([program.start_s])
    chosen: list[NDArray[np.bool_] | None] = []
    for item, base_s in zip(program.items, without(program), strict=True):
        reached = len(done)
        at = program.at.first(reached)
        then = done + prefill_s(at, item.lines_s, item.tokens)
        in_time = then + at.period_s <= item.due_s
        if item.newcomer is None:
            done = np.where(in_time | (then <= base_s), then, np.inf)
            chosen.append(None)
            continue
        taken = np.full(reached + item.stride, np.inf)
        in_time &= program.allowed[item.stride : item.stride + reached]
        taken[item.stride :] = np.where(in_time, then, np.inf)
        skipped = np.full(reached + item.stride, np.inf)
        skipped[:reached] = done
        done = np.minimum(taken, skipped)
        chosen.append(taken < skipped)
    return _walk_back(program, _best_state(program, done), chosen)


def _best_state(program: Program, done: Floats) -> int:
    """The state of most newcomers; of those the one done first."""
    reached = np.flatnonzero(np.isfinite(done))
    if len(reached) == 0:
        return 0
    count, rest = np.zeros_like(reached), reached
    for stride in sorted({item.stride for item in program.items if item.newcomer is not None}, reverse=True):
        count, rest = count + rest // stride, rest % stride
    return int(reached[np.lexsort((done[reached], -count))[0]])


def _walk_back(program: Program, state: int, chosen: list[NDArray[np.bool_] | None]) -> frozenset[int]:
    taken: set[int] = set()
    for item, better in zip(reversed(program.items), reversed(chosen), strict=True):
        if item.newcomer is not None and better is not None and better[state]:
            taken.add(item.newcomer)
            state -= item.stride
    return frozenset(taken)


class _Labels(NamedTuple):
    """Sets still in the running, one row each. `sets` are their newcomers as bits."""

    state: Ints
    done_s: Floats
    value: Floats
    blocks: Ints
    sets: NDArray[np.uint64]

    def rows(self, chosen: Ints | NDArray[np.bool_]) -> "_Labels":
        return _Labels(
            self.state[chosen],
            self.done_s[chosen],
            self.value[chosen],
            self.blocks[chosen],
            self.sets[chosen],
        )

    def beside(self, others: "_Labels") -> "_Labels":
        return _Labels(
            np.concatenate((self.state, others.state)),
            np.concatenate((self.done_s, others.done_s)),
            np.concatenate((self.value, others.value)),
            np.concatenate((self.blocks, others.blocks)),
            np.concatenate((self.sets, others.sets)),
        )


def _labels(program: Program) -> frozenset[int]:
    at = program.at
    labels = _Labels(
        np.zeros(1, np.int64),
        np.array([program.start_s]),
        np.zeros(1),
        np.zeros((1, len(program.room)), np.int64),
        np.zeros(1, np.uint64),
    )
    width = BEAM_LABELS if len(program.values) > EXACT_ITEMS else 1 << EXACT_ITEMS
    for item, base_s in zip(program.items, without(program), strict=True):
        now = Rates(
            at.period_s[labels.state],
            at.fits,
            tuple(p[labels.state] for p in at.per_second),
            at.per_token[labels.state],
        )
        then = labels.done_s + prefill_s(now, item.lines_s, item.tokens)
        in_time = then + now.period_s <= item.due_s
        if item.newcomer is None:
            labels = labels._replace(done_s=then).rows(in_time | (then <= base_s))
            continue
        more = _take(program, item, item.newcomer, labels._replace(done_s=then), in_time)
        labels = labels.beside(more)
        if len(labels.state) > width:
            labels = labels.rows(_beam(labels, program.room, width))
    best = int(np.lexsort((labels.done_s, -labels.value))[0])
    members = int(labels.sets[best])
    return frozenset(i for i in range(len(program.values)) if members >> i & 1)


def _take(
    program: Program, item: Item, newcomer: int, labels: _Labels, in_time: NDArray[np.bool_]
) -> _Labels:
    """The labels with this newcomer taken, where that is possible."""
    able = labels.rows(in_time & np.isfinite(labels.done_s))
    able = able._replace(
        state=able.state + item.stride,
        value=able.value + program.values[newcomer],
        blocks=able.blocks + program.claims[newcomer],
        sets=able.sets | np.uint64(1 << newcomer),
    )
    fits: NDArray[np.bool_] = program.allowed[able.state] & (able.blocks <= program.room).all(axis=1)
    return able.rows(fits)


def _beam(labels: _Labels, room: Ints, width: int) -> Ints:
    """For every value the label done first and the one that fills memory least, best values first."""
    fullest = (labels.blocks / np.maximum(room, 1)).max(axis=1)
    kept: list[Ints] = [np.zeros(1, np.int64)]
    for second in (labels.done_s, fullest):
        order = np.lexsort((second, -labels.value))
        first = np.ones(len(order), dtype=bool)
        first[1:] = np.diff(labels.value[order]) != 0
        kept.append(order[first][: width // 2])
    return np.unique(np.concatenate(kept))
