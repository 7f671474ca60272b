"""Asking the policy, and what is done when it fails.

A policy is code that may have a fault, and an engine carries promises to people. Where it raises, or asks for
the impossible, or takes longer than it may, that step is vLLM's own: counted, and logged the first time that
each kind of fault is seen. A policy that was too slow is not asked again until the time that it took too much
has been earned back, at `planning_s` a step, so an engine never spends more than twice that on average.
"""

from collections.abc import Callable, Mapping
from typing import Any

from penstock_core.domain.policy import Policy
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import RequestId

from penstock_vllm.faults import Fault, Faults
from penstock_vllm.ledger import Held
from penstock_vllm.plan import ImpossibleStep, Plan, plan_of

MOST_STEPS_OFF = 1000
"""However long it took once, it is asked again."""


class TooSlow(Exception):
    """The policy took longer for a step than it may."""


class Planning:
    """A policy and its memory. faults: where its failures are counted."""

    def __init__(
        self, policy: Policy[Any], planning_s: float, clock: Callable[[], float], faults: Faults
    ) -> None:
        self._policy, self._memory = policy, policy.start()
        self._planning_s, self._clock = planning_s, clock
        self._steps_off, self._faults = 0, faults

    def plan(self, view: ReplicaView, held: Mapping[RequestId, Held]) -> Plan | None:
        """What to do in the next step, as the policy wants it; None where that step is vLLM's own."""
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
