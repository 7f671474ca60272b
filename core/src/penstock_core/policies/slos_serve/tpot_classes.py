"""A few classes of pace for the program, and what decodes of each class cost beside the others.

The program counts requests per class, so there may be only a few classes: paces are rounded down to one
that is kept, which promises more than was asked and is therefore safe. The tightest is always kept; of
the others those are merged that are closest to the next tighter one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, prod

import numpy as np

from penstock_core.compilation.arrays import Floats, Ints

MOST_CLASSES = 4


@dataclass(frozen=True, slots=True)
class States:
    """Every combination of newcomers' counts per class, flat; state 0 is none.

    strides: how far one newcomer of a class moves the state. newcomers: how many there are in each state.
    decode_tokens: of a period, with what runs already. tightest_pace_s: of a period, infinite for none.
    """

    strides: tuple[int, ...]
    newcomers: Ints
    decode_tokens: Floats
    tightest_pace_s: Floats


def kept_paces_s(paces_s: Sequence[float]) -> tuple[float, ...]:
    """At most `MOST_CLASSES` of these paces, ascending, the tightest among them."""
    kept = sorted(set(paces_s))
    while len(kept) > MOST_CLASSES:
        ratios = [later / earlier for earlier, later in pairwise(kept)]
        del kept[1 + ratios.index(min(ratios))]
    return tuple(kept)


def class_of(paces_s: Sequence[float] | Floats, kept: Sequence[float]) -> Ints:
    """The class that each pace is rounded down to."""
    return np.searchsorted(np.asarray(kept), np.asarray(paces_s), side="right") - 1


def states(kept: Sequence[float], running: Sequence[int], new: Sequence[int], may_wait: bool) -> States:
    """All states, for `running` requests and up to `new` newcomers in each class.

    may_wait: whether looser decodes may be left out of batches.
    """
    sizes = tuple(count + 1 for count in new)
    counts = [_along(c, len(sizes), np.arange(size)) for c, size in enumerate(sizes)]
    tightest_s: Floats = np.asarray(inf)
    for pace_s, there, added in reversed(list(zip(kept, running, counts, strict=True))):
        tightest_s = np.asarray(pace_s) if there else np.where(added > 0, pace_s, tightest_s)
    newcomers, decode_tokens = np.zeros(sizes, np.int64), np.zeros(sizes)
    for pace_s, there, added in zip(kept, running, counts, strict=True):
        newcomers += added
        decode_tokens += np.ceil((there + added) / (periods_between(pace_s, tightest_s) if may_wait else 1))
    return States(
        tuple(prod(sizes[c + 1 :]) for c in range(len(sizes))),
        newcomers.ravel(),
        decode_tokens.ravel(),
        np.broadcast_to(tightest_s, sizes).ravel(),
    )


def _along(axis: int, axes: int, values: Ints) -> Ints:
    """The values laid out along one of several axes."""
    return values.reshape([-1 if i == axis else 1 for i in range(axes)])


def periods_between(pace_s: float, tightest_s: Floats) -> Floats:
    """Every how many periods a decode needs a token; 1 where nobody promised a pace."""
    if pace_s == inf:
        return np.ones(1)
    return np.maximum(np.floor(pace_s / tightest_s + 1e-9), 1.0)
