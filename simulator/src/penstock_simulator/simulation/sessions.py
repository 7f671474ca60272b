"""Sessions: requests that are sent one after the other, each when the one before it has ended.

A later stage that arrives early waits here for its turn. What its session was answered before goes with it:
a client whose earlier stage was served without a promise, or not at all, has read so in the verdict header,
and sends the rest of the session as best effort. It has missed as a whole, and must not crowd out others.

A session that nobody has heard of for `FORGOTTEN_S` is forgotten, so memory is bounded by what is under way.
A later stage that comes after all is sent like a first one.
"""

from collections import deque
from dataclasses import dataclass, field

from penstock_simulator.arrival import Arrival
from penstock_simulator.simulation.outcome import Outcome, Verdict

FORGOTTEN_S = 3600.0
"""An hour without a request ends a session."""


@dataclass(slots=True)
class _Session:
    busy: bool = False
    best_effort: bool = False
    waiting: deque[Arrival] = field(default_factory=deque)
    idle_since_s: float = 0.0


class Sessions:
    """The sessions under way."""

    def __init__(self) -> None:
        self._open: dict[str, _Session] = {}  # the one that has been idle for longest comes first

    def arrive(self, arrival: Arrival) -> bool:
        """Whether the request may be sent now; otherwise it is kept until the one before it has ended."""
        if not arrival.session:
            return True
        session = self._open.get(arrival.session)
        if session is None or (arrival.stage == 0 and not session.busy):
            session = self._open[arrival.session] = _Session()
        if session.busy:
            session.waiting.append(arrival)
            return False
        session.busy = True
        return True

    def best_effort(self, arrival: Arrival) -> bool:
        """Whether its session has no promise any more."""
        return bool(arrival.session) and self._open[arrival.session].best_effort

    def ended(self, outcome: Outcome, now_s: float) -> Arrival | None:
        """A request has ended. Returns the one that waited for it, to be sent now."""
        if not outcome.session:
            return None
        session = self._open.pop(outcome.session)
        self._open[outcome.session] = session
        session.best_effort |= outcome.verdict is not Verdict.ADMITTED
        session.idle_since_s = now_s
        self._forget(now_s)
        if session.waiting:
            return session.waiting.popleft()
        session.busy = False
        return None

    def _forget(self, now_s: float) -> None:
        name, oldest = next(iter(self._open.items()))
        if not oldest.busy and now_s - oldest.idle_since_s > FORGOTTEN_S:
            del self._open[name]
