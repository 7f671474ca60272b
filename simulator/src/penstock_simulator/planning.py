"""The policy inside the engine: one step from one view, and what to do when it fails.

A policy is code that may have a fault, and an engine carries promises to people. So where the pool's policy
raises, or asks for the impossible, that one step is planned by vLLM's own policy: it is counted, and logged
the first time each kind of fault is seen. Nothing hides: the count is a metric, and no request is lost.
"""

import time
from typing import Any

import structlog
from penstock_core.domain.policy import Policy
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.timing.speculation import Speculation
from penstock_core.timing.time_model import TimeModel

from penstock_simulator.engine_state import EngineState
from penstock_simulator.iteration import Iteration
from penstock_simulator.metrics import EngineMetrics

log = structlog.get_logger()


class Planning:
    """A policy, its memory, and the one that stands in for it."""

    def __init__(
        self, policy: Policy[Any], stand_in: Policy[Any], state: EngineState, metrics: EngineMetrics
    ) -> None:
        self._policy, self._memory = policy, policy.start()
        self._stand_in, self._stand_in_memory = stand_in, stand_in.start()
        self._state, self._metrics = state, metrics
        self._faults_seen: set[str] = set()

    def begin(self, now_s: float, model: TimeModel, speculation: Speculation | None) -> Iteration:
        """The next iteration, started."""
        view = self._state.view(now_s, now_s, model, speculation)
        before_s = time.perf_counter()
        try:
            step, memory = self._policy.step(view, self._memory)
            iteration = self._state.start(step)
        except Exception as fault:
            self._count(fault)
            return self._begin_by_stand_in(view)
        finally:
            self._metrics.planning.observe(time.perf_counter() - before_s)
        self._memory = memory
        return iteration

    def _begin_by_stand_in(self, view: ReplicaView) -> Iteration:
        step, self._stand_in_memory = self._stand_in.step(view, self._stand_in_memory)
        return self._state.start(step)

    def _count(self, fault: Exception) -> None:
        self._metrics.policy_failures += 1
        kind = f"{type(fault).__name__}: {str(fault)[:200]}"
        if type(fault).__name__ not in self._faults_seen:
            self._faults_seen.add(type(fault).__name__)
            log.error("policy failed, vllm's stands in", fault=kind, exc_info=fault)
