"""How many requests an engine that is not ours runs at once, as far as it lets anybody know.

The pool says a number. The engine may have been started with a smaller one, or run out of memory earlier,
and shows that in two ways: it refuses a request for want of room, or it says that some wait in its own
queue. Then no more are let in than it was running. That is relaxed a little with every second that shows no
such thing.

A queue seen once may be of requests that have just come in, so only one that is seen twice in a row counts.
"""

from typing import NamedTuple

RELAXED_BY = 8
"""One seat more a second for each so many there are."""


class Seats(NamedTuple):
    """limit: the pool's word. most: that are filled now. queued: whether a queue was seen last time."""

    limit: int
    most: int
    queued: bool = False

    def refused(self, inside: int) -> "Seats":
        """The engine had no room for one more beside so many."""
        return self._replace(most=max(min(self.most, inside), 1))

    def told(self, running: int, waiting: int) -> "Seats":
        """The engine says how many it runs, and how many wait in it. Heard once a second."""
        if not waiting:
            return self.relaxed()
        if not self.queued:
            return self._replace(queued=True)
        return self._replace(most=max(min(self.most, running), 1))

    def relaxed(self) -> "Seats":
        """A second has passed without a sign that there are too many."""
        return Seats(self.limit, min(self.most + self.most // RELAXED_BY + 1, self.limit))
