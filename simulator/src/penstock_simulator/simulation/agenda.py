"""What is going to happen, in order of time; of one moment, in the order in which it was planned."""

import heapq
from typing import Generic, TypeVar

Event = TypeVar("Event")


class Agenda(Generic[Event]):
    """Planned events. Deterministic: equal times keep their order of planning."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Event]] = []
        self._planned = 0

    @property
    def next_s(self) -> float | None:
        """When the first of them happens; None where nothing will."""
        return self._heap[0][0] if self._heap else None

    def plan(self, at_s: float, event: Event) -> None:
        """It happens then."""
        self._planned += 1
        heapq.heappush(self._heap, (at_s, self._planned, event))

    def due(self, now_s: float) -> Event | None:
        """The first event until now, if there is any left."""
        if self._heap and self._heap[0][0] <= now_s:
            return heapq.heappop(self._heap)[2]
        return None
