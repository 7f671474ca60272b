"""The running operator: watches fill a cache and a queue, workers reconcile pools, a Lease elects the leader.

    watch event ─▶ cache ──▶ queue ──▶ worker ──▶ reconcile ──▶ API server
                      ▲        ▲
       list of all, every few minutes (what watches lost)

A standby does all of that but the last: it knows everything already when its turn comes.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import structlog
from penstock_runtime.pages import PAGES_BOUNDS, PAGES_DRAIN_S
from penstock_runtime.serving import StartError, address_of, listen, serving
from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector

from penstock_operator.cluster.api_client import Api, ApiRefused, ApiUnreachable, found_access
from penstock_operator.cluster.cache import Cache, PoolKey, pool_of
from penstock_operator.cluster.crd_compatibility import check_crd
from penstock_operator.cluster.kinds import POOL, WATCHED, Kind
from penstock_operator.cluster.lease import Leadership, LeaseLost
from penstock_operator.manifests.manifest import Manifest
from penstock_operator.manifests.names import FIELD_MANAGER, MANAGED_BY
from penstock_operator.metrics import Metrics
from penstock_operator.options import Options
from penstock_operator.pages import Health, pages
from penstock_operator.reconcile.ingress_hosts import host_of
from penstock_operator.reconcile.reconciler import Reconciler
from penstock_operator.reconcile.workqueue import WorkQueue
from penstock_operator.routers.client import Routers
from penstock_operator.settings import Settings

log = structlog.get_logger()

OWN = f"{MANAGED_BY}={FIELD_MANAGER}"
"""Label selector of everything that the operator makes."""

START_PAUSE_S = 1.0

DEAF_RESYNC_S = 15.0
"""Between lists of everything, while watches are deaf because the API server's history went back."""

STUCK_S = 120.0
"""A reconciliation that takes longer is stuck: a pool's requests all have bounds that add up to less."""


class Operator:
    """What runs between a process' start and stop. Raises StartError where it finds no API server."""

    def __init__(self, settings: Settings, options: Options) -> None:
        self.options = options
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.metrics = Metrics(self.registry)
        self.cache = Cache()
        access = found_access()
        self.lease_api = Api(access)
        self.leadership = (
            None
            if options.lease is None
            else Leadership(self.lease_api, options.lease, options.identity, self._lead)
        )
        self.api = Api(access, self.leadership.check if self.leadership else None)
        self.routers = Routers()
        self.reconciler = Reconciler(self.api, self.cache, self.routers, settings, self.metrics)
        self.queue: WorkQueue[PoolKey] = WorkQueue()
        self.health = Health(STUCK_S)
        self._leads = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._holding: asyncio.Task[None] | None = None
        self._serving = contextlib.AsyncExitStack()

    async def start(self) -> None:
        """Begin. Raises StartError: no port, no ServingPool in the cluster, or no right to read one."""
        listener = listen(self.options.host, self.options.port)
        await self._serving.enter_async_context(
            serving(
                pages(self.registry, self.health, self._before_scrape), listener, PAGES_DRAIN_S, PAGES_BOUNDS
            )
        )
        await self._patiently(lambda: check_crd(self.api))
        await self._patiently(self.resync)
        self.health.synced = True
        self._spawn("resync", self._resync_forever())
        for number in range(self.options.workers):
            self._spawn(f"worker {number}", self._work())
        if self.leadership is None:
            self._lead(True)
        else:
            self._holding = self._spawn("leadership", self.leadership.run())
        log.info("ready", address=address_of(listener), namespaces=self.options.namespaces or "all")

    async def _patiently(self, step: Callable[[], Awaitable[None]]) -> None:
        """Take a step of the start, however long the API server needs. Raises StartError where it says no."""
        while True:
            try:
                return await step()
            except ApiUnreachable as error:
                log.warning("waits for the API server", error=str(error))
            except ApiRefused as refused:
                if not refused.passing:
                    raise StartError(f"the API server refuses: {refused}") from refused
                log.warning("waits for the API server", error=str(refused))
            await asyncio.sleep(START_PAUSE_S)

    async def stop(self) -> None:
        """End: what is under way is broken off, which by design harms nothing. The Lease goes back last."""
        self.queue.close()
        holding = {self._holding} if self._holding is not None else set()
        await _cancelled(self._tasks - holding)
        await _cancelled(holding)
        await self._serving.aclose()
        await self.routers.close()
        await self.api.close()
        await self.lease_api.close()
        log.info("stopped")

    def note(self, manifest: Manifest, gone: bool) -> None:
        """Update the cache; queue the pool of the object, and the pools that claim the same host."""
        if self.cache.remove(manifest) if gone else self.cache.update(manifest):
            self.queue.add(pool_of(manifest))
            if manifest["kind"] == POOL.kind and (host := host_of(manifest)) is not None:
                for pool in self.cache.pools():
                    if host_of(pool) == host:
                        self.queue.add(pool_of(pool))

    async def resync(self) -> None:
        """Replace the cache by a list of everything, and queue every pool."""
        for kind in (POOL, *WATCHED):
            for namespace in self.options.namespaces or (None,):
                await self._list(kind, namespace)
        for pool in self.cache.pools():
            self.queue.add(pool_of(pool))

    async def _list(self, kind: Kind, namespace: str | None) -> None:
        labels, asked = "" if kind is POOL else OWN, self.cache.mark(kind)
        try:
            listed, version = await self.api.list(kind, namespace, labels=labels)
        except ApiRefused as refused:
            if refused.code == 404 and kind.optional:
                return
            raise
        self.cache.replace(kind, namespace, listed, version, asked)

    async def _resync_forever(self) -> None:
        while True:
            deaf = self.cache.behind
            await asyncio.sleep(min(self.options.resync_s, DEAF_RESYNC_S) if deaf else self.options.resync_s)
            try:
                await self.resync()
            except (ApiRefused, ApiUnreachable) as error:
                self.metrics.errors.labels("resync").inc()
                log.warning("not resynced", error=str(error))

    async def _work(self) -> None:
        while True:
            key = await self.queue.take()
            try:
                await self._leads.wait()
                await self._reconcile(key)
            finally:
                self.queue.done(key)

    async def _reconcile(self, key: PoolKey) -> None:
        with self.health.busy(key), self.metrics.reconcile.time():
            try:
                again_s = await self.reconciler.reconcile(key)
            except LeaseLost as lost:
                log.warning("reconcile broken off", pool=str(key), error=str(lost))
                self.queue.add(key)
            except (ApiRefused, ApiUnreachable) as error:
                self._failed(key, type(error).__name__, str(error))
            except Exception:
                log.exception("reconcile failed", pool=str(key))
                self._failed(key, "bug", "see the trace")
            else:
                self._reconciled(key, again_s)

    def _reconciled(self, key: PoolKey, again_s: float | None) -> None:
        if again_s is None:
            self.queue.forget(key)
            return
        self.queue.succeeded(key)
        self.queue.add_later(key, again_s)

    def _failed(self, key: PoolKey, failure: str, said: str) -> None:
        self.metrics.errors.labels(failure).inc()
        pause_s = self.queue.failed(key)
        log.warning(
            "reconcile failed", pool=str(key), failure=failure, error=said, again_in_s=round(pause_s, 1)
        )

    def _lead(self, leads: bool) -> None:
        self.metrics.leading.set(leads)
        if leads:
            self._leads.set()
        else:
            self._leads.clear()
            self.reconciler.kept.clear()  # what it remembers is from now on somebody else's past

    def _before_scrape(self) -> None:
        self.metrics.count_pools(self.cache.pools())
        self.metrics.waiting.set(len(self.queue))

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        """No task of ours ends by itself: one that does is a bug, and liveness says so."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("task failed", task=task.get_name(), error=repr(error))
            self.health.broken = task.get_name()


async def _cancelled(tasks: set[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
