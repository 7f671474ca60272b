"""Plans each step with the pool's policy, and with a fallback policy if that fails.

If the pool's policy raises, or its step is invalid, the fallback (vLLM's policy) plans that one step, so no
request is lost. Each failure is counted in `penstock_engine_policy_failures`, and logged once for each type
of exception.
"""

import time
from typing import Any

import structlog
from penstock_core.domain.policy import Policy
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.timing.speculation import Speculation
from penstock_core.timing.time_model import TimeModel

from penstock_simulator.engine.engine_state import EngineState
from penstock_simulator.engine.iteration import Iteration
from penstock_simulator.serving.metrics import EngineMetrics

log = structlog.get_logger()


class StepPlanner:
    """A policy with its memory, and a fallback policy with its own."""

    def __init__(
        self, policy: Policy[Any], fallback: Policy[Any], state: EngineState, metrics: EngineMetrics
    ) -> None:
        self._policy, self._memory = policy, policy.start()
        self._fallback, self._fallback_memory = fallback, fallback.start()
        self._state, self._metrics = state, metrics
        self._logged: set[str] = set()

    def begin(self, now_s: float, model: TimeModel, speculation: Speculation | None) -> Iteration:
        """Plan and start the next iteration."""
        view = self._state.view(now_s, now_s, model, speculation)
        before_s = time.perf_counter()
        try:
            step, memory = self._policy.step(view, self._memory)
            iteration = self._state.start(step)
        except Exception as error:
            self._record_failure(error)
            return self._begin_by_fallback(view)
        finally:
            self._metrics.planning.observe(time.perf_counter() - before_s)
        self._memory = memory
        return iteration

    def _begin_by_fallback(self, view: ReplicaView) -> Iteration:
        step, self._fallback_memory = self._fallback.step(view, self._fallback_memory)
        return self._state.start(step)

    def _record_failure(self, error: Exception) -> None:
        self._metrics.policy_failures += 1
        kind = f"{type(error).__name__}: {str(error)[:200]}"
        if type(error).__name__ not in self._logged:
            self._logged.add(type(error).__name__)
            log.error("policy failed, the fallback policy plans this step", fault=kind, exc_info=error)
