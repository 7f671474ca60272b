"""Bounds of the sidecar, each with the reason for its number."""

from dataclasses import dataclass

from penstock_core.domain.replica_admission import DECIDED_TOGETHER, InFlightLimits
from penstock_runtime.engine.answers import LONGEST_ANSWER_BYTES


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds on requests, memory and waits of one sidecar. The pool sets those that its users must know. The
    router and gRPC's largest message bound request bodies."""

    requests: int = 4096
    """Most requests over all sessions, and most connections to the engine. It is sixteen times what an engine
    runs at once: more than any SLO admits, so further requests could only time out."""

    best_effort: int = 1024
    """Most open best-effort requests. It is four times what an engine runs at once; a further request would
    wait for minutes, so it is rejected."""

    decided_together: int = DECIDED_TOGETHER
    """Most requests decided by one call of the planner."""

    decision_burst_s: float = 0.01
    """Longest time for decisions about a burst before open streams are served: a third of an engine step."""

    inline_body_bytes: int = 64 << 10
    """Longest body that is parsed on the event loop: in at most 5 ms, usually 0.1 ms. A thread parses longer
    ones, which take up to 0.1 s, one after another."""

    answer_bytes: int = LONGEST_ANSWER_BYTES
    """Largest answer that is not streamed: it is buffered completely."""

    outbox_bytes: int = 64 << 20
    """Most bytes of events that a session buffers for a router that does not read: seconds of a full engine's
    output and a few whole answers. The session of a router that is further behind is closed."""

    frame_bytes: int = 1 << 20
    """Size from which a frame is sent. Routers must accept frames of this size plus one event's data."""

    step_s: float = 0.001
    """Longest wait of output for other output of its step, to share a frame."""

    unbatched_requests: int = 8
    """Most requests of a session whose output is sent immediately, because too few would share a frame."""

    not_urgent_s: float = 0.005
    """Longest wait of an event for which no client waits, like an acceptance. It is shorter than any step."""

    fresh_snapshots: bool = True
    """Whether routers get a snapshot with each step's output. If the pool's order does not use snapshots,
    only verdicts and ends have one, for the choice of a backup: a snapshot takes a seventh of a step's
    CPU."""

    snapshot_s: float = 1.0
    """Longest time until a router without other frames gets a changed snapshot."""

    direct_snapshot_s: float = 0.25
    """The same for a router that reads answers from the engine. A frame costs 0.1 ms on each side."""

    burst_snapshot_s: float = 0.005
    """The same after a request of another router, multiplied by the number of routers: all routers see a
    burst through one of them, at a cost of at most 200 frames a second."""

    prefixes_s: float = 0.1
    """Longest time until a router gets changed cached prefixes: shorter than the pause before a client's next
    turn."""

    connect_s: float = 2.0
    """Timeout for a connection to the engine, which is on this machine or next to it."""

    silence_s: float = 60.0
    """Delay beyond the forecast, without progress, after which a request at the engine counts as lost
    (`penstock_core.forecast.overdue`)."""

    probe_s: float = 1.0
    """Interval between two probes of the engine."""

    probe_timeout_s: float = 2.0
    """Timeout of a probe."""

    probes_failed: int = 3
    """Failed probes in a row after which the engine is down. A refused connection counts at once."""

    lead_s: float = 0.02
    """How long before the end of its work an engine with its own scheduler gets the next request: ten times
    the time to reach it, for busy machines. A longer time would fill the engine's queue, which has no
    policy."""

    shortest_release_interval_s: float = 0.002
    """Shortest interval between two release decisions. It is shorter than any step."""

    release_share: float = 0.2
    """Largest share of time for release decisions: the same event loop forwards open streams, and a policy
    takes milliseconds with hundreds of held requests."""

    longest_release_interval_s: float = 0.02
    """Longest interval between them while requests are held: shorter than a step of most engines."""

    telemetry_silence_s: float = 2.0
    """Time without a report of a working engine, beyond its step, after which progress is inferred."""

    @property
    def in_flight_limits(self) -> InFlightLimits:
        """Return the bounds that admission keeps to."""
        return InFlightLimits(self.requests, self.best_effort)
