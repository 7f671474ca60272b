"""A queue of timed events."""

import heapq
from itertools import count
from typing import Generic, TypeVar

Event = TypeVar("Event")


class EventQueue(Generic[Event]):
    """Events by time. Deterministic: events at equal times keep the order in which they were scheduled."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Event]] = []
        self._numbers = count()

    @property
    def next_s(self) -> float | None:
        """Time of the first event; None if the queue is empty."""
        return self._heap[0][0] if self._heap else None

    def next_before_s(self, other_s: float | None) -> float | None:
        """Return the time of the first event or `other_s`, whichever is earlier; None if there is neither."""
        if other_s is None or self.next_s is None:
            return self.next_s if other_s is None else other_s
        return min(self.next_s, other_s)

    def schedule(self, at_s: float, event: Event) -> None:
        """Add an event at `at_s`."""
        heapq.heappush(self._heap, (at_s, next(self._numbers), event))

    def pop_due(self, now_s: float) -> Event | None:
        """Remove and return the first event up to `now_s`, or None."""
        if self._heap and self._heap[0][0] <= now_s:
            return heapq.heappop(self._heap)[2]
        return None
