"""The gate before an engine that schedules by itself: accepted requests are held here until their turn.

Core decides which requests enter (`penstock_core.external_engine.release`). This module decides when to ask
it: when a request arrives, when output passes, when a request ends, and at intervals while requests are held,
because slack changes with time. Events within one turn of the event loop lead to one decision.

A request that ends while it is held never reaches the engine. Where the policy fails, requests enter in order
of arrival; the first failure is logged.
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
from penstock_sidecar.release.pacemaker import Pacemaker
from penstock_sidecar.requests.faults import Faults
from penstock_sidecar.requests.learned import Learned

log = structlog.get_logger()


class ReleaseGate:
    """Holds accepted requests, and releases them into the engine."""

    def __init__(
        self,
        policy: Policy[Any],
        mirror: HoldingMirror,
        learned: Learned,
        *,
        bounds: Bounds,
        metrics: Metrics,
    ) -> None:
        self._policy, self._mirror, self._learned = policy, mirror, learned
        self._bounds, self._metrics = bounds, metrics
        metrics.engine_slots.set(mirror.slots.most)
        self._faults = Faults(metrics.faults)
        self._pacemaker = Pacemaker(mirror, learned, metrics)
        self._memory = policy.start()
        self._window = ReleaseWindow(lead_s=bounds.lead_s)
        self._turns: dict[str, asyncio.Future[None]] = {}
        self._together: dict[str, tuple[str, ...]] = {}  # all keys of a held request, by each of them
        self._asking: asyncio.Handle | None = None
        self._asking_at_s = 0.0
        self._next_s = float("-inf")
        self._failed = False

    def holds(self, key: str) -> bool:
        """Return whether a request is held."""
        return key in self._turns

    def hold(self, keys: tuple[str, ...]) -> None:
        """Hold a request that the mirror has accepted.

        Its answers enter together, with the first whose turn comes: they are one request at the engine.
        """
        self._turns[keys[0]] = asyncio.get_running_loop().create_future()
        self._together.update(dict.fromkeys(keys, keys))
        self.ask()

    async def turn(self, key: str) -> None:
        """Wait until a held request may enter the engine."""
        if (turn := self._turns.get(key)) is not None:
            await turn

    def passed(self, key: str, tokens: int, now_s: float) -> None:
        """Note tokens of a request that have passed towards its client."""
        self._pacemaker.passed(key, tokens, now_s)
        self.ask()

    def ended(self, key: str, engine_full: bool) -> None:
        """Note that a request has ended, held or not. engine_full: the engine had no room for it."""
        for one in self._together.get(key, ()):
            del self._together[one]
        if self._turns.pop(key, None) is None and engine_full:
            self._mirror.engine_full()
        self.ask()

    async def refresh_load(self, load: Callable[[], Awaitable[EngineLoad | None]]) -> None:
        """Take the engine's own load into account, if it has one."""
        before = self._mirror.count
        self._mirror.engine_load(await load(), before, self._mirror.count)
        self._metrics.engine_slots.set(self._mirror.slots.most)

    def ask(self) -> None:
        """Decide again: something has changed that may release a request."""
        if self._turns:
            self._ask_at(max(self._next_s, monotonic()))

    def _ask_at(self, at_s: float) -> None:
        if self._asking is not None:
            if self._asking_at_s <= at_s:
                return
            self._asking.cancel()
        self._asking_at_s = at_s
        self._asking = asyncio.get_running_loop().call_later(max(at_s - monotonic(), 0.0), self._decide)

    def _decide(self) -> None:
        self._asking = None
        if not self._turns:
            return
        now_s = monotonic()
        with self._faults.within("gate"):
            self._give_turns(now_s)
        took_s = monotonic() - now_s
        self._next_s = now_s + max(self._bounds.ask_s, took_s / self._bounds.ask_share)
        self._metrics.release.observe(took_s)
        self._metrics.held.set(len(self._turns))
        if self._turns:
            self._ask_at(max(self._next_s, now_s + self._bounds.ask_again_s))

    def _give_turns(self, now_s: float) -> None:
        decided = self._decided(now_s)
        self._memory = decided.memory
        self._mirror.promote(decided.promote)
        for key in decided.released:
            if (keys := self._together.get(key)) is None:  # it entered with another answer of its request
                continue
            for one in keys:
                del self._together[one]
                self._mirror.released(one, now_s)
            self._turns.pop(keys[0]).set_result(None)

    def _decided(self, now_s: float) -> Release[Any]:
        view, inside = self._mirror.held(now_s, self._learned.model), self._mirror.inside
        try:
            return release(self._policy.step, view, inside, self._memory, self._window)
        except Exception:
            self._metrics.release_failures.inc()
            if not self._failed:
                log.exception("release decision failed; where it does, requests enter in order of arrival")
            self._failed = True
            return release(in_order_of_arrival, view, inside, self._policy.start(), self._window)
