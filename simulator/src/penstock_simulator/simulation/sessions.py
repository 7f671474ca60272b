"""Sessions: sequences of requests, each sent when the previous one has ended.

A later stage that arrives early waits here. In a closed loop all stages arrive with the first one, and each
is sent when the previous one has ended and its think time has passed; each has its own SLO. Otherwise, after
a stage that was not admitted, which the client reads in the verdict header, it sends the rest of the session
as best effort: the session as a whole has missed its SLO, and must not displace others.

A session is forgotten after `FORGOTTEN_S` without a request, so memory is bounded. A stage that arrives later
is sent like a first one.
"""

from collections import deque
from dataclasses import dataclass, field

from penstock_simulator.arrival import Arrival
from penstock_simulator.simulation.outcome import FirstVerdict, SimulatedOutcome

FORGOTTEN_S = 3600.0
"""Time without a request after which a session is forgotten."""


@dataclass(slots=True)
class _SessionState:
    busy: bool = False
    best_effort: bool = False
    waiting: deque[Arrival] = field(default_factory=deque)
    idle_since_s: float = 0.0


class Sessions:
    """The sessions in progress."""

    def __init__(self) -> None:
        self._open: dict[str, _SessionState] = {}  # ordered by idle time, longest first

    def arrive(self, arrival: Arrival, now_s: float) -> float | None:
        """Return when the request is sent; None if it waits for the previous one to end."""
        if not arrival.session:
            return now_s
        session = self._open.get(arrival.session)
        if session is None or (arrival.stage == 0 and not session.busy):
            session = self._open[arrival.session] = _SessionState()
        if session.busy:
            session.waiting.append(arrival)
            return None
        session.busy = True
        return now_s if arrival.think_s is None else max(session.idle_since_s + arrival.think_s, now_s)

    def best_effort(self, arrival: Arrival) -> bool:
        """Return whether it is sent as best effort, because an earlier request was not admitted."""
        closed_loop = arrival.think_s is not None
        return bool(arrival.session) and not closed_loop and self._open[arrival.session].best_effort

    def ended(self, outcome: SimulatedOutcome, now_s: float) -> Arrival | None:
        """Record that a request has ended. Returns the request that waited for it, if any."""
        if not outcome.session:
            return None
        session = self._open.pop(outcome.session)
        self._open[outcome.session] = session
        session.best_effort |= outcome.verdict is not FirstVerdict.ADMITTED
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
