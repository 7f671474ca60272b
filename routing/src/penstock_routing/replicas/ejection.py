"""Ejection of one replica, as `penstock_core.routing.outlier_detection` decides."""

from collections.abc import Callable

import structlog
from penstock_core.routing.outlier_detection import ReplicaHealth, answered, failed, probe_cancelled, sent
from penstock_runtime.clock import monotonic

log = structlog.get_logger()


class Ejection:
    """One replica's health, and the request that probes it while it is half open.

    draw: returns a random number in [0, 1), to spread the ends of ejections. total: ejections so far.
    ejected: whether it is ejected or half open.
    """

    def __init__(self, replica: str, draw: Callable[[], float]) -> None:
        self.total, self.ejected = 0, False
        self._replica, self._draw = replica, draw
        self._health = ReplicaHealth()
        self._probe: int | None = None

    def takes(self, now_s: float) -> bool:
        """Return whether a request may be sent to the replica."""
        return self._health.takes(now_s)

    def sent(self, id: int) -> None:
        """Record that a request was sent."""
        if not self.ejected:  # no request probes it
            return
        health = sent(self._health, monotonic())
        if health is not self._health:
            self._health, self._probe = health, id

    def answered(self, now_s: float) -> None:
        """Record a verdict."""
        health = answered(self._health, now_s)
        if health is not self._health:
            if self.ejected:
                log.info("replica answers again", replica=self._replica)
            self._health, self._probe, self.ejected = health, None, False

    def failed(self) -> None:
        """Record that a verdict was late, or that the connection was lost before it."""
        now_s, before = monotonic(), self._health
        self._health = failed(before, now_s, self._draw())
        until_s = self._health.until_s
        if until_s is not None and self._health is not before:
            self.total, self._probe, self.ejected = self.total + 1, None, True
            log.warning("replica ejected", replica=self._replica, for_s=round(until_s - now_s, 1))

    def probe_cancelled(self, id: int) -> None:
        """Record that the request was cancelled before its verdict."""
        if id == self._probe:
            self._health, self._probe = probe_cancelled(self._health), None
