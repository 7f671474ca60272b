"""Bounds of the sidecar, each with the reason for its number."""

from dataclasses import dataclass

from penstock_core.domain.replica_admission import DECIDED_TOGETHER, InFlightLimits


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds on what one sidecar holds and how long it waits. The pool sets those that its users must know;
    request bodies are bounded by the router and by gRPC's largest message."""

    requests: int = 4096
    """Requests at once, over all sessions. Sixteen times what an engine runs at once: more than any SLO lets
    in, so whatever is above it could only time out. Also the engine connections."""

    best_effort: int = 1024
    """Best-effort requests accepted and not yet ended. Four engines' worth of surplus; past it a request
    would wait for minutes and is rejected instead."""

    decided_together: int = DECIDED_TOGETHER
    """Requests decided by one call of the planner."""

    decision_burst_s: float = 0.01
    """Longest time that a burst is decided before open streams get their turn: a third of an engine step."""

    inline_body_bytes: int = 64 << 10
    """Longest body that is read on the event loop: in 5 ms at worst, usually 0.1 ms. Longer ones, which take
    up to 0.1 s, are read by a thread, one after another."""

    answer_bytes: int = 32 << 20
    """Largest answer that is not streamed: it is held whole."""

    outbox_bytes: int = 64 << 20
    """Events that a session holds for a router that does not read: seconds of a full engine's output and a
    few whole answers. The session of a router that is further behind is closed."""

    frame_bytes: int = 1 << 20
    """A frame is sent once it holds this much. Routers must take frames of this and one event's data."""

    step_s: float = 0.001
    """Longest that output waits for others of its step, to share a frame."""

    unbatched_requests: int = 8
    """Most requests of a session whose output does not wait: too few would share its frame."""

    not_urgent_s: float = 0.005
    """Longest wait of an event that no client waits for, like an acceptance. Less than any step takes."""

    fresh_snapshots: bool = True
    """Whether routers get a snapshot with each step's output. Where the pool's order reads none, verdicts and
    ends bring one, which is what a backup is chosen by: making one takes a seventh of a step's CPU."""

    snapshot_s: float = 1.0
    """Longest until a router that gets no other frame gets a changed snapshot."""

    direct_snapshot_s: float = 0.25
    """The same for a router that reads answers at the engine. A frame costs 0.1 ms on each side."""

    burst_snapshot_s: float = 0.005
    """The same, times the connected routers, once another router has sent a request: all see a burst through
    one of them, at a cost of at most 200 frames a second, however many routers there are."""

    prefixes_s: float = 0.1
    """Longest until a router gets changed cached prefixes: sooner than a session's next turn comes, which is
    after its answer."""

    connect_s: float = 2.0
    """Timeout for a connection to the engine, which is on this machine or next to it."""

    silence_s: float = 60.0
    """A request at the engine that is later than forecast by more than this, without progress, is lost
    (`penstock_core.forecast.overdue`)."""

    probe_s: float = 1.0
    """Interval between two probes of the engine."""

    probe_timeout_s: float = 2.0
    """A probe that takes longer has failed."""

    probes_failed: int = 3
    """Timed-out probes in a row after which the engine is down. A refused connection counts at once."""

    lead_s: float = 0.02
    """An engine that schedules by itself gets the next request this long before its work is done: ten times
    the time to reach it, since a busy machine is late. More would only fill a queue that knows no policy."""

    shortest_release_interval_s: float = 0.002
    """Shortest interval between two release decisions. A step takes more than this."""

    release_share: float = 0.2
    """Largest share of the time that release decisions take: the same event loop forwards open streams, and a
    policy takes milliseconds where hundreds of requests are held."""

    longest_release_interval_s: float = 0.02
    """Longest interval between them while requests are held: less than a step of most engines."""

    telemetry_silence_s: float = 2.0
    """Progress is inferred where the engine works and has not reported for this long beyond its step."""

    @property
    def in_flight_limits(self) -> InFlightLimits:
        """Return the bounds that admission keeps to."""
        return InFlightLimits(self.requests, self.best_effort)
