"""Calls the policy, and handles its failures.

A policy may have a defect, but its engine must continue to serve. If the policy raises, returns an
impossible step, or exceeds its time limit, that step is vLLM's own; the fault is counted, and logged the
first time. A policy that was too slow is not called again until its excess time has been compensated, at
`planning_s` per step, so an engine spends at most twice that on average.
"""

from collections.abc import Callable, Mapping
from typing import Any

from penstock_core.domain.policy import Policy
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import RequestId

from penstock_vllm.faults import Fault, PolicyFaultLog
from penstock_vllm.ledger import HeldRequest
from penstock_vllm.plan import ImpossibleStep, StepInstructions, plan_of

MOST_STEPS_OFF = 1000
"""Most steps without a call, however slow the policy was."""


class TooSlow(Exception):
    """The policy exceeded its time limit for a step."""


class PolicyCalls:
    """A policy and its state between steps. faults: counts its failures."""

    def __init__(
        self, policy: Policy[Any], planning_s: float, clock: Callable[[], float], faults: PolicyFaultLog
    ) -> None:
        self._policy, self._memory = policy, policy.start()
        self._planning_s, self._clock = planning_s, clock
        self._steps_off, self._faults = 0, faults

    def plan(self, view: ReplicaView, held: Mapping[RequestId, HeldRequest]) -> StepInstructions | None:
        """Return the plan of the next step; None if that step is vLLM's own."""
        if self._steps_off:
            self._steps_off -= 1
            return None
        began_s = self._clock()
        try:
            step, memory = self._policy.step(view, self._memory)
            plan = plan_of(step, view, held)
            self._check_time(self._clock() - began_s)
        except Exception as error:
            self._faults.count(_KINDS.get(type(error), Fault.RAISED), error)
            return None
        self._memory = memory
        return plan

    def _check_time(self, took_s: float) -> None:
        if took_s > self._planning_s:
            self._steps_off = min(int(took_s / self._planning_s), MOST_STEPS_OFF)
            raise TooSlow(f"{took_s * 1e3:.0f} ms for a step, at most {self._planning_s * 1e3:.0f} ms")


_KINDS: Mapping[type[Exception], Fault] = {ImpossibleStep: Fault.IMPOSSIBLE, TooSlow: Fault.TOO_SLOW}
