"""Which replicas are left alone for a while, because they do not answer.

A replica can be connected and silent: its process hangs, or is frozen, while the kernel keeps its
connections. Every request sent there waits for the verdict's timeout before it goes to the next replica. So a
replica that fails `CONSECUTIVE` times in a row is ejected, as Envoy's outlier detection does it:

    in service ── failures in a row ──▶ ejected ── time is over ──▶ half open ── one answer ──▶ in service
                                           ▲                            │
                                           └──── for twice as long ─────┘ no answer

A failure is a verdict that did not come in time, or a connection lost while requests waited for their
verdict. Any verdict is an answer, rejections too, and ends an ejection. What an engine answers to one request
does not count: a client whose bodies make engines answer 500 must not be able to take replicas out of
service.

`ReplicaHealth` is a value. Functions return the one that follows, and the same object where nothing changes,
which is nearly always. Ejection times are spread by a draw in [0, 1), so that routers do not come back in
step.
"""

from dataclasses import dataclass, replace

CONSECUTIVE = 3
"""Failures in a row that eject. Envoy's default is 5; here each failure costs a request a timeout."""

FIRST_S = 5.0
"""Of the first ejection: about one verdict's timeout."""

LONGEST_S = 120.0
"""An ejection is never longer. A replica in service for as long has its former ejections forgotten."""

SPREAD = 0.5
"""Ejections last up to this share longer, by the draw."""


@dataclass(frozen=True, slots=True)
class ReplicaHealth:
    """How one replica has answered lately.

    failures: in a row, while in service.
    ejections: in a row; each doubles the time of the next.
    until_s: end of its ejection; None while it is in service. since_s: when it came back into service.
    probing: the one request of a half-open replica is under way.
    """

    failures: int = 0
    ejections: int = 0
    until_s: float | None = None
    since_s: float = 0.0
    probing: bool = False

    def takes(self, now_s: float) -> bool:
        """Return whether a request may be sent there now."""
        return self.until_s is None or (now_s >= self.until_s and not self.probing)


def sent(health: ReplicaHealth, now_s: float) -> ReplicaHealth:
    """Return the health after a request was sent there. To a half-open replica it is the probe."""
    if health.until_s is None or now_s < health.until_s or health.probing:
        return health
    return replace(health, probing=True)


def answered(health: ReplicaHealth, now_s: float) -> ReplicaHealth:
    """Return the health after a verdict."""
    if health.until_s is not None:
        return ReplicaHealth(ejections=health.ejections, since_s=now_s)
    return replace(health, failures=0) if health.failures else health


def failed(health: ReplicaHealth, now_s: float, draw: float) -> ReplicaHealth:
    """Return the health after a verdict did not come. What was sent before an ejection changes nothing."""
    if health.until_s is not None and not health.probing:
        return health
    if health.until_s is None and health.failures + 1 < CONSECUTIVE:
        return replace(health, failures=health.failures + 1)
    forgotten = health.until_s is None and now_s - health.since_s >= LONGEST_S
    ejections = 0 if forgotten else health.ejections
    ejected_s = min(FIRST_S * 2.0 ** min(ejections, 16), LONGEST_S)
    return ReplicaHealth(ejections=ejections + 1, until_s=now_s + ejected_s * (1 + SPREAD * draw))


def taken_back(health: ReplicaHealth) -> ReplicaHealth:
    """Return the health after the probe's client went away: the next request is the probe."""
    return replace(health, probing=False) if health.probing else health


def panics(taking: int, connected: int) -> bool:
    """Return whether ejections are to be ignored: fewer than half of the connected replicas would take
    requests.

    That many do not fail by themselves: the fault is more likely the router's own, or common to all, and the
    rest could not carry the load of the others. It also means that the last replica is never ejected. Envoy's
    panic threshold is the same half.
    """
    return 2 * taking < connected
