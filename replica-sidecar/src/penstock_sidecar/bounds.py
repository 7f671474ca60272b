"""Every bound of the sidecar, each with the reason for its number."""

from dataclasses import dataclass

from penstock_core.domain.replica_admission import DECIDED_TOGETHER, Holds


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one sidecar will hold and how long it will wait. The pool sets those its users must know;
    request bodies are bounded by the router and by gRPC's largest message."""

    requests: int = 4096
    """Requests at once, over all sessions. Sixteen times what an engine runs at once: more than any SLO lets
    in, so whatever is above it could only time out. Also the engine connections."""

    best_effort: int = 1024
    """Best-effort requests accepted and not yet ended. Four engines' worth of surplus; past it a request
    would wait for minutes and is better told so."""

    admitted_together: int = DECIDED_TOGETHER
    """Newcomers decided by one call of the planner."""

    deciding_s: float = 0.01
    """Longest that a burst is decided before streams get their turn: a third of a step of theirs."""

    read_at_once_bytes: int = 64 << 10
    """Longest body that is read within a turn of the event loop: in 5 ms at worst, 0.1 ms as bodies are.
    Longer ones, whose reading takes up to 0.1 s, are read by a thread, one after the other."""

    answer_bytes: int = 32 << 20
    """Largest answer that is not streamed, which must be held whole."""

    outbox_bytes: int = 64 << 20
    """Events a session may hold for a router that does not read. Seconds of a full engine's output and a few
    whole answers; a router that far behind is gone, and its session is closed."""

    frame_bytes: int = 1 << 20
    """A frame is sent once it holds this much. Routers must take frames of this and one event's data."""

    step_s: float = 0.001
    """Longest that output waits for others of its step, to share a frame."""

    alone: int = 8
    """With at most this many requests in a session output does not wait: there is no one to share with."""

    unhurried_s: float = 0.005
    """Longest that something waits on which nobody acts yet, like an acceptance. Less than any step takes."""

    snapshot_s: float = 1.0
    """A router that gets no other frame hears of a changed state within this."""

    news_s: float = 0.005
    """And of requests accepted from others within this times the routers connected: a burst through one is
    then seen by all, for 200 frames a second at most, however many routers there are."""

    connect_s: float = 2.0
    """To open a connection to the engine, which is on this machine or next to it."""

    silence_s: float = 60.0
    """Longest that a request at the engine may be later than forecast without a sign of progress; then it is
    lost (`penstock_core.forecast.overdue`)."""

    idle_connection_s: float = 4.0
    """An unused engine connection is closed after this: before uvicorn, under vLLM, closes it at 5 s."""

    probe_s: float = 1.0
    """Between two probes of the engine."""

    probe_timeout_s: float = 2.0
    """A probe that takes longer has failed."""

    probes_failed: int = 3
    """Timed-out probes in a row after which the engine is down. A refused connection counts at once."""

    lead_s: float = 0.02
    """Before what an engine that is not ours has to compute is done, the next may go in: ten times the way to
    it, since a busy machine is late. Longer would only put more into a queue that knows no policy."""

    ask_s: float = 0.002
    """Between two questions whom to let in, at least. A step takes more than this."""

    ask_share: float = 0.2
    """And most of the time that the answers may take: the same loop carries what streams, and policies think
    for milliseconds where hundreds are held."""

    ask_again_s: float = 0.02
    """And while anybody is held it is asked at least so often: less than a step of most engines."""

    telemetry_silence_s: float = 2.0
    """The engine works and has not reported for this long beyond its step: progress is inferred instead."""

    @property
    def holds(self) -> Holds:
        """What admission has to keep to."""
        return Holds(self.requests, self.best_effort)
