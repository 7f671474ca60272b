"""Calls the policy, and handles its failures.

A policy may have a defect, but its engine must continue to serve. If the policy raises or returns an
impossible step, that step is vLLM's own; the fault is counted, and logged the first time.

A policy may also be slow. Its excess over `planning_s` per step accumulates, and the time that faster steps
leave reduces it. Once it exceeds `MOST_OWED_STEPS` times that limit, the policy is not called until it is
compensated, at `planning_s` per step. So on average the policy takes at most `planning_s` per step. The plan
of a slow call is used, for example of one during which Python collects garbage. vLLM's own step may be a full
batch, which takes much longer than the call and makes the tokens of admitted requests late.

The time is that of the thread's work. A machine that runs other programs in between makes every step slower,
and vLLM's own steps too.
"""

from collections.abc import Callable, Mapping
from typing import Any

from penstock_core.domain.policy import Policy
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import RequestId

from penstock_vllm.faults import Fault, PolicyFaultLog
from penstock_vllm.ledger import HeldRequest
from penstock_vllm.plan import ImpossibleStep, StepInstructions, plan_of

MOST_OWED_STEPS = 10
"""Excess time, in time limits of one step, that is tolerated: 0.2 s with the default limit."""

MOST_STEPS_OFF = 1000
"""Most steps without a call, however slow the policy was."""


class TooSlow(Exception):
    """The policy exceeded its time limit for many steps."""


class PolicyCalls:
    """A policy and its state between steps.

    clock: the time that the calling thread has worked. faults: counts the policy's failures.
    """

    def __init__(
        self, policy: Policy[Any], planning_s: float, clock: Callable[[], float], faults: PolicyFaultLog
    ) -> None:
        self._policy, self._memory = policy, policy.start()
        self._planning_s, self._clock = planning_s, clock
        self._owed_s, self._steps_off, self._faults = 0.0, 0, faults

    def plan(self, view: ReplicaView, held: Mapping[RequestId, HeldRequest]) -> StepInstructions | None:
        """Return the plan of the next step; None if that step is vLLM's own."""
        if self._steps_off:
            self._steps_off -= 1
            return None
        began_s = self._clock()
        try:
            step, memory = self._policy.step(view, self._memory)
            plan = plan_of(step, view, held)
        except Exception as error:
            impossible = isinstance(error, ImpossibleStep)
            self._faults.count(Fault.IMPOSSIBLE if impossible else Fault.RAISED, error)
            return None
        finally:
            self._add_time(self._clock() - began_s)
        self._memory = memory
        return plan

    def _add_time(self, took_s: float) -> None:
        """Add the time of a call to the excess time, and if that is too much, skip the next calls."""
        self._owed_s = max(self._owed_s + took_s - self._planning_s, 0.0)
        if self._owed_s > MOST_OWED_STEPS * self._planning_s:
            self._steps_off = min(int(self._owed_s / self._planning_s), MOST_STEPS_OFF)
            owed_ms, limit_ms = self._owed_s * 1e3, self._planning_s * 1e3
            slow = TooSlow(f"{owed_ms:.0f} ms more than the limit of {limit_ms:.0f} ms for each step")
            self._faults.count(Fault.TOO_SLOW, slow)
            self._owed_s = 0.0
