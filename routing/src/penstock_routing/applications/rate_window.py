"""Usage within the last minute, in slots of one second. Pure.

A slot counts until 60 whole seconds after it have passed, so usage in any 60 seconds never exceeds the limit.
In return, a slot counts for up to a second more than a minute. A token bucket would be smaller, but permits
twice the limit in some minutes.

`shared_limits.lua` does the same in one atomic step in Redis; a test compares the two.
"""

from math import floor

SLOTS = 60
"""Whole slots that count, beside the present one."""


class Window:
    """What one limit has left. limit: of any 60 seconds; infinite: none."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._slots: dict[int, int] = {}  # amounts by slot, the oldest first
        self._used = 0

    def used(self, now_s: float) -> int:
        """Return how much counts now."""
        oldest = floor(now_s) - SLOTS
        while self._slots and (slot := next(iter(self._slots))) < oldest:
            self._used -= self._slots.pop(slot)
        return self._used

    def take(self, now_s: float, amount: int) -> int:
        """Use so much, whether or not there is room. Return the slot that it counts in."""
        slot = floor(now_s)
        self._slots[slot] = self._slots.get(slot, 0) + amount
        self._used += amount
        return slot

    def correct(self, now_s: float, slot: int, change: int) -> None:
        """Take more, or give back, where it was taken. What no longer counts is not given back."""
        self.used(now_s)
        if slot in self._slots:
            self._slots[slot] += change
            self._used += change
        elif change > 0:
            self.take(now_s, change)

    def wait_s(self, now_s: float, amount: int) -> float | None:
        """Return the seconds until there is room for the amount; None if there never will be."""
        excess = self.used(now_s) + amount - self.limit
        if excess <= 0:
            return 0.0
        for slot, used in self._slots.items():
            excess -= used
            if excess <= 0:
                return slot + SLOTS + 1 - now_s
        return None

    def reset_s(self, now_s: float) -> float:
        """Return the seconds until nothing of what is used now counts any more."""
        self.used(now_s)
        last = next((slot for slot in reversed(self._slots) if self._slots[slot]), None)
        return 0.0 if last is None else last + SLOTS + 1 - now_s
