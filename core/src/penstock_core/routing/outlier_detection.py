"""Ejects replicas that do not answer, for a limited time.

A replica can be connected and silent: its process hangs, or is frozen, while the kernel keeps its
connections. Every request sent there waits for the verdict's timeout before it goes to the next replica. So a
replica that fails `CONSECUTIVE` times in a row is ejected, like Envoy's outlier detection does:

    in service ── failures in a row ──▶ ejected ── time is over ──▶ half open ── one answer ──▶ in service
                                           ▲                            │
                                           └──── for twice as long ─────┘ no answer

A failure is a verdict that did not come in time, or a connection lost while requests waited for their
verdict. Any verdict is an answer, including rejections, and ends an ejection. An engine's response to one
request does not count: a client whose bodies make engines answer 500 must not be able to take replicas out of
service.

`ReplicaHealth` is a value. Functions return its successor, and the same object if nothing changes, which is
the usual case. Ejection times are spread by a draw in [0, 1), so that routers do not return at the same time.
"""

from dataclasses import dataclass, replace

CONSECUTIVE = 3
"""Failures in a row that eject. Envoy's default is 5; here each failure costs a request a timeout."""

MOST_DOUBLINGS = 16
"""Ejections in a row after which the time no longer grows; it reaches `LONGEST_S` much earlier."""

FIRST_S = 5.0
"""Seconds of the first ejection: about one verdict's timeout."""

LONGEST_S = 120.0
"""Longest ejection in seconds.

A replica that has been in service for as long starts again without a history.
"""

SPREAD = 0.5
"""Ejections are longer by up to this share, by the draw."""


@dataclass(frozen=True, slots=True)
class ReplicaHealth:
    """A replica's recent answers.

    failures: number in a row while in service.
    ejections: number in a row; each doubles the duration of the next.
    until_s: end of its ejection; None while it is in service. since_s: when it returned to service.
    probing: whether the single request of a half-open replica is in progress.
    """

    failures: int = 0
    ejections: int = 0
    until_s: float | None = None
    since_s: float = 0.0
    probing: bool = False

    def takes(self, now_s: float) -> bool:
        """Return whether a request may be sent to the replica now."""
        return self.until_s is None or (now_s >= self.until_s and not self.probing)


def sent(health: ReplicaHealth, now_s: float) -> ReplicaHealth:
    """Return the health after a request was sent to the replica. For a half-open one it is the probe."""
    if health.until_s is None or now_s < health.until_s or health.probing:
        return health
    return replace(health, probing=True)


def answered(health: ReplicaHealth, now_s: float) -> ReplicaHealth:
    """Return the health after a verdict."""
    if health.until_s is not None:
        return ReplicaHealth(ejections=health.ejections, since_s=now_s)
    return replace(health, failures=0) if health.failures else health


def failed(health: ReplicaHealth, now_s: float, draw: float) -> ReplicaHealth:
    """Return the health after a missing verdict. Requests sent before an ejection do not change it."""
    if health.until_s is not None and not health.probing:
        return health
    if health.until_s is None and health.failures + 1 < CONSECUTIVE:
        return replace(health, failures=health.failures + 1)
    forgotten = health.until_s is None and now_s - health.since_s >= LONGEST_S
    ejections = 0 if forgotten else health.ejections
    ejected_s = min(FIRST_S * 2.0 ** min(ejections, MOST_DOUBLINGS), LONGEST_S)
    return ReplicaHealth(ejections=ejections + 1, until_s=now_s + ejected_s * (1 + SPREAD * draw))


def probe_cancelled(health: ReplicaHealth) -> ReplicaHealth:
    """Return the health after the probe's client disconnected: the next request is the probe."""
    return replace(health, probing=False) if health.probing else health


def panics(taking: int, connected: int) -> bool:
    """Return whether ejections are ignored: fewer than half of the connected replicas would take requests.

    So many replicas do not fail independently: more likely the router itself or a common cause is at fault,
    and the remaining replicas could not serve the load. As a consequence, the last replica is never ejected.
    Envoy's panic threshold is also one half.
    """
    return 2 * taking < connected
