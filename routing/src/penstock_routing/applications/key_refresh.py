"""Reads API keys periodically, so that a revoked key stops working within seconds and without a restart.

A revoked key is rejected at most `every_s` of its source plus the duration of one read after the change:
within 5 seconds while the source can be read. While it cannot, the last keys stay valid, one log line reports
it, and `penstock_router_keys_unreadable` is 1 for the application. Keys are never logged.
"""

import asyncio

import structlog
from penstock_pool import keys_in
from prometheus_client import CollectorRegistry, Counter, Gauge

from penstock_routing.applications.api_keys import Keys
from penstock_routing.applications.key_sources import KeyStore, Unreadable

log = structlog.get_logger()


class KeyMetrics:
    """Metrics of API keys."""

    def __init__(self, registry: CollectorRegistry, process: str = "router") -> None:
        self.unreadable = Gauge(
            f"penstock_{process}_keys_unreadable",
            "1 if the last read of the application's keys failed; the previous keys stay valid.",
            ["application"],
            registry=registry,
        )
        self.changes = Counter(
            f"penstock_{process}_key_changes",
            "Times that an application's keys changed.",
            ["application"],
            registry=registry,
        )


class KeyRefresh:
    """Keeps `keys` up to date with their source."""

    def __init__(self, keys: Keys, source: KeyStore, metrics: KeyMetrics) -> None:
        self._keys, self._source, self._metrics = keys, source, metrics
        self._unreadable: set[str] = set()  # applications

    async def run(self) -> None:
        """Read immediately, then periodically, until cancelled."""
        while True:
            await self.refresh()
            await asyncio.sleep(self._source.every_s)

    async def refresh(self) -> None:
        """Read all keys once, and replace those that can be read."""
        for application, read in (await self._source.read()).items():
            if isinstance(read, Unreadable):
                self._note_unreadable(application, str(read))
            else:
                self._update(application, keys_in(read))
            self._metrics.unreadable.labels(application).set(application in self._unreadable)

    def _note_unreadable(self, application: str, why: str) -> None:
        if application not in self._unreadable:
            log.warning("keys unreadable", application=application, why=why, meanwhile="the last keys stay")
            self._unreadable.add(application)

    def _update(self, application: str, keys: list[str]) -> None:
        if application in self._unreadable:
            self._unreadable.discard(application)
            log.info("keys readable again", application=application)
        if self._keys.replace(application, keys):
            self._metrics.changes.labels(application).inc()
            log.info("keys changed", application=application, keys=len(keys))
