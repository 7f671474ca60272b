"""Usage within the last minute, in slots of one second. Pure.

A slot counts until 60 whole seconds have passed after it, so usage in any 60 seconds never exceeds the limit.
The cost is that a slot counts for up to a second more than a minute. A token bucket needs less memory, but
permits twice the limit in some minutes.

`shared_limits.lua` does the same in one atomic step in Redis; a test compares the two.
"""

from math import floor

SLOTS = 60
"""Complete slots that count, in addition to the current one."""


class Window:
    """Usage under one limit. limit: most within 60 seconds; infinity without a limit."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._slots: dict[int, int] = {}  # amounts by slot, oldest first
        self._used = 0

    def used(self, now_s: float) -> int:
        """Return the amount that counts now."""
        oldest = floor(now_s) - SLOTS
        while self._slots and (slot := next(iter(self._slots))) < oldest:
            self._used -= self._slots.pop(slot)
        return self._used

    def take(self, now_s: float, amount: int) -> int:
        """Add an amount without a check of the limit. Return its slot."""
        slot = floor(now_s)
        self._slots[slot] = self._slots.get(slot, 0) + amount
        self._used += amount
        return slot

    def correct(self, now_s: float, slot: int, change: int) -> None:
        """Change the amount of a slot. If the slot no longer counts, an increase is added now."""
        self.used(now_s)
        if slot in self._slots:
            self._slots[slot] += change
            self._used += change
        elif change > 0:
            self.take(now_s, change)

    def wait_s(self, now_s: float, amount: int) -> float | None:
        """Return the seconds until the amount is within the limit; None if it exceeds the limit alone."""
        excess = self.used(now_s) + amount - self.limit
        if excess <= 0:
            return 0.0
        for slot, used in self._slots.items():
            excess -= used
            if excess <= 0:
                return slot + SLOTS + 1 - now_s
        return None

    def reset_s(self, now_s: float) -> float:
        """Return the seconds until none of the current usage counts any more."""
        self.used(now_s)
        last = next((slot for slot in reversed(self._slots) if self._slots[slot]), None)
        return 0.0 if last is None else last + SLOTS + 1 - now_s
