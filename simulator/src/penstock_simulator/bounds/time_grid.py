"""Discretisation of time: blocks, divided into slots by arrivals and first-token deadlines.

First-token deadlines are within fractions of a second, and whether a burst is feasible depends on
milliseconds, so slots end exactly at arrivals and first-token deadlines. Decoding takes seconds to minutes
and is counted in blocks of equal length.
"""

from dataclasses import dataclass

import numpy as np
from penstock_core.compilation.arrays import Floats, Ints

from penstock_simulator.bounds.least_work import LeastWork

MOST_BLOCKS_A_REQUEST = 8.0
"""Blocks in which the average request may decode. More blocks hardly tighten the bound."""

MOST_BLOCKS = 600
"""Most blocks of a grid, which bounds the size of the program."""


@dataclass(frozen=True, slots=True)
class TimeGrid:
    """The grid. block_ends_s, slot_ends_s: borders, including the first. block_of: the block of each slot."""

    block_ends_s: Floats
    slot_ends_s: Floats
    block_of: Ints

    @property
    def blocks_s(self) -> Floats:
        """Lengths of the blocks, in seconds."""
        return np.diff(self.block_ends_s)

    @property
    def slots_s(self) -> Floats:
        """Lengths of the slots, in seconds."""
        return np.diff(self.slot_ends_s)


def time_grid(demand: LeastWork) -> TimeGrid:
    """Return a grid from the first release to the last deadline."""
    start_s, end_s = float(demand.release_s.min()), float(demand.end_s.max())
    mean_span_s = float(np.mean(demand.end_s - demand.release_s))
    block_s = max(mean_span_s / MOST_BLOCKS_A_REQUEST, (end_s - start_s) / MOST_BLOCKS)
    blocks = np.linspace(start_s, end_s, max(round((end_s - start_s) / block_s), 1) + 1)
    slots = np.unique(np.concatenate((blocks, demand.release_s, demand.due_s)))
    block_of = np.searchsorted(blocks, slots[:-1], side="right") - 1
    return TimeGrid(blocks, slots, block_of)


def spans(ends_s: Floats, from_s: Floats, until_s: Floats) -> tuple[Ints, Ints]:
    """Return every (row, period) pair of rows that last `from_s` to `until_s`, as two columns."""
    first = np.clip(np.searchsorted(ends_s, from_s, side="right") - 1, 0, len(ends_s) - 2)
    beyond = np.clip(np.searchsorted(ends_s, until_s, side="left"), first + 1, len(ends_s) - 1)
    counts = beyond - first
    rows = np.repeat(np.arange(len(first)), counts)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    return rows, within + np.repeat(first, counts)
