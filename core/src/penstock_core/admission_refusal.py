"""Why a newcomer is refused beside those that were taken, and when it would be worth another try."""

from collections.abc import Set
from math import isfinite

import numpy as np

from penstock_core import kv_peak
from penstock_core.admission_program import Path
from penstock_core.admission_situation import Situation
from penstock_core.verdict import Reason


class Refusals:
    """What stands in the way of whoever was not taken.

    state: of those that were taken so far.
    """

    def __init__(self, now: Situation, path: Path, taken: Set[int]) -> None:
        program = now.program
        self.state = path.state
        self._now = now
        self._items = {item.newcomer: item for item in program.items if item.newcomer is not None}
        self._end_s = path.end_s - now.view.now_s
        self._rate = program.at.beside(path.state)
        self._used = program.claims[sorted(taken)].sum(axis=0)
        self._crowded = self._who_is_crowded()

    def take(self, i: int) -> None:
        """One more newcomer was taken after all."""
        self.state += self._items[i].stride
        self._used = self._used + self._now.program.claims[i]
        self._crowded = self._who_is_crowded()

    def reason(self, i: int) -> Reason:
        """Which test this newcomer fails."""
        if self._crowded[i]:
            return Reason.KV_MEMORY
        if not self._now.program.allowed[self.state + self._items[i].stride]:
            return Reason.DECODE_BUDGET
        return Reason.PREFILL_BUDGET

    def earliest_s(self, i: int, reason: Reason) -> float:
        """From now until a request like this one could be taken, if nobody else comes."""
        now, period_s = self._now, self._rate.period_s
        if reason is Reason.PREFILL_BUDGET:
            item, job = self._items[i], now.new[i]
            behind_s = self._end_s + self._rate.prefill_s(item.lines_s, item.tokens) + period_s
            if isfinite(behind_s):
                return max(behind_s - (job.due_s - job.request.arrival_s), period_s)
        if reason is Reason.KV_MEMORY:
            peak = now.program.claims[i].max()
            crowded = np.flatnonzero(now.base + self._used + peak > now.view.kv.total_blocks)
            return self._ended_s(int(crowded[-1]))
        return self._ended_s(0)

    def _who_is_crowded(self) -> list[bool]:
        """For each newcomer, whether its blocks do not fit beside those of the taken."""
        program = self._now.program
        crowded: list[bool] = (self._used + program.claims > program.room).any(axis=1).tolist()
        return crowded

    def _ended_s(self, bucket: int) -> float:
        """From now until the requests that end with this bucket have ended, as far as that is known."""
        now = self._now
        known = now.ends[now.ends < kv_peak.FOREVER_STEPS]
        steps = int(known[min(bucket, len(known) - 1)]) + 1 if len(known) else 1
        return now.free_s - now.view.now_s + steps * float(now.program.at.period_s[0])
