"""Slots of an external engine, as far as it reveals them.

The pool configures a number. The engine may have fewer slots, or run out of memory earlier. It shows that by
rejecting a request for lack of capacity, or by reporting a queue of its own. Then no more requests are sent
than it was running. The limit is raised a little with every second without such a sign.

A single report of a queue may be about requests that have just been sent, so only two in a row count.
"""

from typing import NamedTuple

RELAXED_BY = 8
"""Slots per added slot and second."""


class EngineSlots(NamedTuple):
    """Slots of one external engine.

    limit: the configured slots. most: slots that are used now. queued: whether the last report had a queue.
    """

    limit: int
    most: int
    queued: bool = False

    def refused(self, sent: int) -> "EngineSlots":
        """Return the slots after the engine rejected a request while it had this many."""
        return self._replace(most=max(min(self.most, sent), 1))

    def reported(self, running: int, waiting: int) -> "EngineSlots":
        """Return the slots after the engine's report of running and queued requests.

        Called once per second.
        """
        if not waiting:
            return self.relaxed()
        if not self.queued:
            return self._replace(queued=True)
        return self._replace(most=max(min(self.most, running), 1))

    def relaxed(self) -> "EngineSlots":
        """Return the slots after a second without a sign of too many requests."""
        return EngineSlots(self.limit, min(self.most + self.most // RELAXED_BY + 1, self.limit))
