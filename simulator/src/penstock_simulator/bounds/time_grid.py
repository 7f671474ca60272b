"""Time in pieces: blocks, and the slots that deadlines of first tokens cut them into.

First tokens are due within fractions of a second, and whether a burst can be met is a matter of
milliseconds; so slots end wherever a prompt arrives or is due, to the digit. Decoding takes seconds to
minutes and is counted by blocks of an even length.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock_simulator.bounds.demand import Demand

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MOST_BLOCKS_A_REQUEST = 8.0
"""Blocks in which the average request may decode: with more the program grows and the bound hardly falls."""

MOST_BLOCKS = 600


@dataclass(frozen=True, slots=True)
class TimeGrid:
    """block_ends_s, slot_ends_s: borders, the first one included. block_of: the block of each slot."""

    block_ends_s: Floats
    slot_ends_s: Floats
    block_of: Ints

    @property
    def blocks_s(self) -> Floats:
        """Lengths of the blocks."""
        return np.diff(self.block_ends_s)

    @property
    def slots_s(self) -> Floats:
        """Lengths of the slots."""
        return np.diff(self.slot_ends_s)


def time_grid(demand: Demand) -> TimeGrid:
    """A grid from the first release to the last deadline."""
    start_s, end_s = float(demand.release_s.min()), float(demand.end_s.max())
    life_s = float(np.mean(demand.end_s - demand.release_s))
    block_s = max(life_s / MOST_BLOCKS_A_REQUEST, (end_s - start_s) / MOST_BLOCKS)
    blocks = np.linspace(start_s, end_s, max(round((end_s - start_s) / block_s), 1) + 1)
    slots = np.unique(np.concatenate((blocks, demand.release_s, demand.due_s)))
    block_of = np.searchsorted(blocks, slots[:-1], side="right") - 1
    return TimeGrid(blocks, slots, block_of)


def spans(ends_s: Floats, from_s: Floats, until_s: Floats) -> tuple[Ints, Ints]:
    """Every (row, piece) of rows that last from and until these times: two columns, rows in order."""
    first = np.clip(np.searchsorted(ends_s, from_s, side="right") - 1, 0, len(ends_s) - 2)
    beyond = np.clip(np.searchsorted(ends_s, until_s, side="left"), first + 1, len(ends_s) - 1)
    counts = beyond - first
    rows = np.repeat(np.arange(len(first)), counts)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    return rows, within + np.repeat(first, counts)
