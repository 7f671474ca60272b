"""The running operator: watches fill a cache and a queue, workers reconcile pools, a Lease elects the leader.

    watch event ─▶ cache ──▶ queue ──▶ worker ──▶ reconcile ──▶ API server
                      ▲        ▲
       list of all, every few minutes (what watches lost)
       list of the kinds that were installed later, every few seconds

A standby operator does everything except the last step, so its cache is complete when it becomes the leader.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import structlog
from penstock_runtime.pages import PAGES_BOUNDS, PAGES_DRAIN_S
from penstock_runtime.serving import StartError, address_of, listen, serving
from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector

from penstock_operator.cluster.api_client import Api, ApiStatusError, ApiUnreachable, api_server_access
from penstock_operator.cluster.cache import Cache, PoolKey, pool_of
from penstock_operator.cluster.crd_compatibility import check_crd
from penstock_operator.cluster.kinds import POOL, WATCHED, ResourceKind
from penstock_operator.cluster.lease import Leadership, LeaseLost
from penstock_operator.demand.demand_client import DemandClient
from penstock_operator.manifests.manifest import Manifest
from penstock_operator.manifests.names import FIELD_MANAGER, MANAGED_BY
from penstock_operator.metrics import OperatorMetrics
from penstock_operator.options import OperatorOptions
from penstock_operator.pages import OperatorHealth, pages
from penstock_operator.reconcile.ingress_hosts import host_of
from penstock_operator.reconcile.reconciler import Reconciler
from penstock_operator.reconcile.workqueue import WorkQueue
from penstock_operator.settings import OperatorSettings

log = structlog.get_logger()

OWN = f"{MANAGED_BY}={FIELD_MANAGER}"
"""Label selector of all objects that the operator creates."""

START_RETRY_S = 1.0
"""Seconds between attempts to reach the API server at the start."""

STALE_RESYNC_S = 15.0
"""Resync interval while the cache is stale, as watches then report no events."""

LATE_KINDS_PERIOD_S = 10.0
"""Seconds between lists of the kinds that were not installed at first.

kopf looks for a kind when its definition changes. If the API server serves it only after that, kopf does not
watch it until the operator restarts.
"""

STUCK_S = 120.0
"""Seconds after which a reconciliation counts as stuck; the timeouts of its requests add up to less."""


class Operator:
    """The parts of a running operator. Raises StartError if there is no API server."""

    def __init__(self, settings: OperatorSettings, options: OperatorOptions) -> None:
        self.options = options
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.metrics = OperatorMetrics(self.registry)
        self.cache = Cache()
        access = api_server_access()
        self.lease_api = Api(access)
        self.leadership = (
            None
            if options.lease is None
            else Leadership(self.lease_api, options.lease, options.identity, self._set_leading)
        )
        self.api = Api(access, self.leadership.check if self.leadership else None)
        self.demand = DemandClient()
        self.reconciler = Reconciler(self.api, self.cache, self.demand, settings, self.metrics)
        self.queue: WorkQueue[PoolKey] = WorkQueue()
        self.health = OperatorHealth(STUCK_S)
        self._late_kinds: set[ResourceKind] = set()
        self._leading = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._leadership_task: asyncio.Task[None] | None = None
        self._serving = contextlib.AsyncExitStack()

    async def start(self) -> None:
        """Start. Raises StartError if the port is taken, or ServingPools do not exist or cannot be read."""
        listener = listen(self.options.host, self.options.port)
        await self._serving.enter_async_context(
            serving(
                pages(self.registry, self.health, self._before_scrape), listener, PAGES_DRAIN_S, PAGES_BOUNDS
            )
        )
        await self._retry_until_available(lambda: check_crd(self.api))
        await self._retry_until_available(self.resync)
        self.health.synced = True
        self._spawn("resync", self._resync_forever())
        self._spawn("late kinds", self._list_late_kinds_forever())
        for number in range(self.options.workers):
            self._spawn(f"worker {number}", self._work_forever())
        if self.leadership is None:
            self._set_leading(True)
        else:
            self._leadership_task = self._spawn("leadership", self.leadership.run())
        log.info("ready", address=address_of(listener), namespaces=self.options.namespaces or "all")

    async def _retry_until_available(self, step: Callable[[], Awaitable[None]]) -> None:
        """Retry a step of the start until the API server answers. Raises StartError if it refuses."""
        while True:
            try:
                return await step()
            except ApiUnreachable as error:
                log.warning("waiting for the API server", error=str(error))
            except ApiStatusError as error:
                if not error.retryable:
                    raise StartError(f"the API server refuses: {error}") from error
                log.warning("waiting for the API server", error=str(error))
            await asyncio.sleep(START_RETRY_S)

    async def stop(self) -> None:
        """Stop. Reconciliations are cancelled, which is safe at any point. The Lease is released last."""
        self.queue.close()
        leadership = {self._leadership_task} if self._leadership_task is not None else set()
        await _cancel_all(self._tasks - leadership)
        await _cancel_all(leadership)
        await self._serving.aclose()
        await self.demand.close()
        await self.api.close()
        await self.lease_api.close()
        log.info("stopped")

    def handle_event(self, manifest: Manifest, gone: bool) -> None:
        """Update the cache by a watch event; queue the object's pool, and pools that claim the same host."""
        if self.cache.remove(manifest) if gone else self.cache.update(manifest):
            self.queue.add(pool_of(manifest))
            if manifest["kind"] == POOL.kind and (host := host_of(manifest)) is not None:
                for pool in self.cache.pools():
                    if host_of(pool) == host:
                        self.queue.add(pool_of(pool))

    async def resync(self) -> None:
        """Replace the cache by a list of all objects, and queue every pool."""
        for kind in (POOL, *WATCHED):
            for namespace in self.options.namespaces or (None,):
                await self._list(kind, namespace)
        for pool in self.cache.pools():
            self.queue.add(pool_of(pool))

    async def _list(self, kind: ResourceKind, namespace: str | None) -> set[PoolKey]:
        """Replace the cached objects of a kind by a list. Returns the pools whose objects have changed."""
        labels, state_before = "" if kind is POOL else OWN, self.cache.state(kind)
        try:
            objects, version = await self.api.list(kind, namespace, labels=labels)
        except ApiStatusError as error:
            if error.code == 404 and kind.optional:
                self._late_kinds.add(kind)
                return set()
            raise
        return self.cache.replace(kind, namespace, objects, version, state_before)

    async def _resync_forever(self) -> None:
        while True:
            stale = self.cache.stale
            await asyncio.sleep(
                min(self.options.resync_s, STALE_RESYNC_S) if stale else self.options.resync_s
            )
            await self._report_failure(self.resync())

    async def _list_late_kinds_forever(self) -> None:
        while True:
            await asyncio.sleep(LATE_KINDS_PERIOD_S)
            await self._report_failure(self._list_late_kinds())

    async def _list_late_kinds(self) -> None:
        for kind in tuple(self._late_kinds):
            for namespace in self.options.namespaces or (None,):
                for pool in await self._list(kind, namespace):
                    self.queue.add(pool)

    async def _report_failure(self, listing: Awaitable[None]) -> None:
        """Count and log the failure of a list, if it fails; it is repeated later anyway."""
        try:
            await listing
        except (ApiStatusError, ApiUnreachable) as error:
            self.metrics.errors.labels("resync").inc()
            log.warning("resync failed", error=str(error))

    async def _work_forever(self) -> None:
        while True:
            key = await self.queue.take()
            try:
                await self._leading.wait()
                await self._reconcile(key)
            finally:
                self.queue.done(key)

    async def _reconcile(self, key: PoolKey) -> None:
        with self.health.reconciling(key), self.metrics.reconcile.time():
            try:
                requeue_after_s = await self.reconciler.reconcile(key)
            except LeaseLost as lost:
                log.warning("reconcile aborted", pool=str(key), error=str(lost))
                self.queue.add(key)
            except (ApiStatusError, ApiUnreachable) as error:
                self._failed(key, type(error).__name__, str(error))
            except Exception:
                log.exception("reconcile failed", pool=str(key))
                self._failed(key, "bug", "see the traceback")
            else:
                self._reconciled(key, requeue_after_s)

    def _reconciled(self, key: PoolKey, requeue_after_s: float | None) -> None:
        if requeue_after_s is None:
            self.queue.forget(key)
            return
        self.queue.succeeded(key)
        self.queue.add_later(key, requeue_after_s)

    def _failed(self, key: PoolKey, failure: str, message: str) -> None:
        self.metrics.errors.labels(failure).inc()
        pause_s = self.queue.failed(key)
        log.warning(
            "reconcile failed", pool=str(key), failure=failure, error=message, retry_in_s=round(pause_s, 1)
        )

    def _set_leading(self, leads: bool) -> None:
        self.metrics.leading.set(leads)
        if leads:
            self._leading.set()
        else:
            self._leading.clear()
            self.reconciler.pool_states.clear()  # the new leader decides from now on

    def _before_scrape(self) -> None:
        self.metrics.count_pools(self.cache.pools())
        self.metrics.waiting.set(len(self.queue))

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """Report a task that has ended with an error, which is a defect, to the liveness probe."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("task failed", task=task.get_name(), error=repr(error))
            self.health.failed_task = task.get_name()


async def _cancel_all(tasks: set[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
