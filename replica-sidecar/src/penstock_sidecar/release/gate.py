"""The gate before an engine with its own scheduler: it holds accepted requests until their release.

Core decides which requests to release (`penstock_core.external_engine.release`). This module decides when to
call it: when a request arrives, when output is forwarded, when a request ends, and at intervals while
requests are held, because slack changes with time. Events within one turn of the event loop lead to one
decision.

A request that ends while it is held never reaches the engine. If the policy fails, requests are released in
order of arrival; the first failure is logged.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from penstock_core.domain.policy import Policy
from penstock_core.external_engine.capacity import ReleaseWindow
from penstock_core.external_engine.release import Release, in_order_of_arrival, release
from penstock_runtime.clock import monotonic

from penstock_sidecar.bounds import Bounds
from penstock_sidecar.engine.metrics import EngineLoad
from penstock_sidecar.metrics import Metrics
from penstock_sidecar.mirror.holding_mirror import HoldingMirror
from penstock_sidecar.release.step_timer import StepTimer
from penstock_sidecar.requests.estimates import Estimates
from penstock_sidecar.requests.faults import Faults

log = structlog.get_logger()


class ReleaseGate:
    """Holds accepted requests, and releases them into the engine."""

    def __init__(
        self,
        policy: Policy[Any],
        mirror: HoldingMirror,
        estimates: Estimates,
        *,
        bounds: Bounds,
        metrics: Metrics,
    ) -> None:
        self._policy, self._mirror, self._estimates = policy, mirror, estimates
        self._bounds, self._metrics = bounds, metrics
        metrics.engine_slots.set(mirror.slots.most)
        metrics.held.set_function(lambda: len(self._held))
        self._faults = Faults(metrics.faults)
        self._step_timer = StepTimer(mirror, estimates, metrics)
        self._memory = policy.start()
        self._window = ReleaseWindow(lead_s=bounds.lead_s)
        self._held: dict[str, asyncio.Future[None]] = {}
        self._sequence_keys: dict[str, tuple[str, ...]] = {}  # all keys of a held request, by each of them
        self._scheduled: asyncio.Handle | None = None
        self._scheduled_at_s = 0.0
        self._next_s = float("-inf")
        self._failed = False

    def holds(self, key: str) -> bool:
        """Return whether a request is held."""
        return key in self._held

    def hold(self, keys: tuple[str, ...]) -> None:
        """Hold a request that the mirror has accepted.

        Its answers are released together, with the first that core releases: they are one request at the
        engine.
        """
        self._held[keys[0]] = asyncio.get_running_loop().create_future()
        self._sequence_keys.update(dict.fromkeys(keys, keys))
        self.schedule_decision()

    async def wait_for_turn(self, key: str) -> None:
        """Wait until a held request may enter the engine."""
        if (released := self._held.get(key)) is not None:
            await released

    def passed(self, key: str, tokens: int, now_s: float) -> None:
        """Record tokens of a request that were forwarded to its client."""
        self._step_timer.passed(key, tokens, now_s)
        self.schedule_decision()

    def ended(self, key: str, engine_full: bool) -> None:
        """Record that a request has ended. engine_full: whether the engine had no capacity for it."""
        for sequence_key in self._sequence_keys.get(key, ()):
            del self._sequence_keys[sequence_key]
        if self._held.pop(key, None) is None and engine_full:
            self._mirror.engine_full()
        self.schedule_decision()

    async def refresh_load(self, load: Callable[[], Awaitable[EngineLoad | None]]) -> None:
        """Apply the engine's load, if it reports one."""
        before = self._mirror.count
        self._mirror.engine_load(await load(), before, self._mirror.count)
        self._metrics.engine_slots.set(self._mirror.slots.most)

    def schedule_decision(self) -> None:
        """Schedule a decision, because a change may allow a release."""
        if self._held:
            self._schedule_at(max(self._next_s, monotonic()))

    def _schedule_at(self, at_s: float) -> None:
        if self._scheduled is not None:
            if self._scheduled_at_s <= at_s:
                return
            self._scheduled.cancel()
        self._scheduled_at_s = at_s
        self._scheduled = asyncio.get_running_loop().call_later(max(at_s - monotonic(), 0.0), self._decide)

    def _decide(self) -> None:
        self._scheduled = None
        if not self._held:
            return
        now_s = monotonic()
        with self._faults.within("gate"):
            self._release_held(now_s)
        took_s = monotonic() - now_s
        self._next_s = now_s + max(
            self._bounds.shortest_release_interval_s, took_s / self._bounds.release_share
        )
        self._metrics.release.observe(took_s)
        if self._held:
            self._schedule_at(max(self._next_s, now_s + self._bounds.longest_release_interval_s))

    def _release_held(self, now_s: float) -> None:
        decided = self._decided(now_s)
        self._memory = decided.memory
        self._mirror.promote(decided.promote)
        for key in decided.released:
            keys = self._sequence_keys.get(key)
            if keys is None:  # already released with another answer of the same request
                continue
            for sequence_key in keys:
                del self._sequence_keys[sequence_key]
                self._mirror.released(sequence_key, now_s)
            self._held.pop(keys[0]).set_result(None)

    def _decided(self, now_s: float) -> Release[Any]:
        view, in_engine = self._mirror.held_view(now_s, self._estimates.model), self._mirror.in_engine
        try:
            return release(self._policy.step, view, in_engine, self._memory, self._window)
        except Exception:
            self._metrics.release_failures.inc()
            if not self._failed:
                log.exception("release decision failed; requests then enter in order of arrival")
            self._failed = True
            return release(in_order_of_arrival, view, in_engine, self._policy.start(), self._window)
