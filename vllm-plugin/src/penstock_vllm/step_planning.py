"""Plans the next step: decides whether to call the policy, and makes its view.

The policy is not called if it does not support the model, while the time model is not measured yet, while
vLLM is paused, or if there is no request to plan. Then the step is vLLM's own.
"""

import time

from penstock_core.domain.replica_view import ReplicaView
from vllm.v1.request import RequestStatus

from penstock_vllm.engine import EngineRequest
from penstock_vllm.engine_facts import bounds_of, can_be_steered, memory_of
from penstock_vllm.estimates import EngineEstimates
from penstock_vllm.faults import PolicyFaultLog
from penstock_vllm.ledger import HeldRequest
from penstock_vllm.pipeline import Pipeline
from penstock_vllm.plan import PlannedStep
from penstock_vllm.plan_execution import PlanExecution
from penstock_vllm.policy_calls import PolicyCalls
from penstock_vllm.prefix_cache import CacheLookup
from penstock_vllm.ready_jobs import ready_jobs
from penstock_vllm.settings import PluginSettings
from penstock_vllm.start import first_estimates, pending_model, warm_policy
from penstock_vllm.view import view_of


class StepPlanning(PlanExecution):
    """A scheduler with a policy and the policy's inputs.

    estimates: estimates of the engine. policy_calls: calls the policy. faults: counts its failures.
    """

    faults: PolicyFaultLog
    _pipeline: Pipeline
    _prefixes: CacheLookup | None

    def _start_planning(self, settings: PluginSettings) -> None:
        """Prepare the policy for the first step."""
        self._bounds, self._memory_now = bounds_of(self, settings), memory_of(self)
        self._steers, self._pending_model = can_be_steered(self), pending_model(settings)
        self.estimates = first_estimates(settings, self.num_spec_tokens)
        policy = warm_policy(settings, self._bounds, self.estimates)
        self.policy_calls = PolicyCalls(policy, settings.planning_s, time.thread_time, self.faults)

    def _policy_plan(self, now_s: float) -> PlannedStep | None:
        """Return the policy's plan; None if the step is vLLM's own."""
        knows_model = self._knows_model(now_s)
        if not self._steers or not knows_model or self._pause_state:
            return None
        self.ledger.unblock(self._is_ready)
        self.ledger.settle()
        view = self._view(now_s)
        if not view.running and not view.waiting:
            return None
        instructions = self.policy_calls.plan(view, self.ledger.by_name)
        return None if instructions is None else PlannedStep(instructions, view)

    def _knows_model(self, now_s: float) -> bool:
        """Return whether the time model is known. If not, check for its file."""
        if self._pending_model is not None:
            model = self._pending_model.check(now_s)
            if model is None:
                return False
            self.estimates, self._pending_model = EngineEstimates(model, self.estimates.speculation), None
        return True

    def _view(self, now_s: float) -> ReplicaView:
        running, prefixes, model = self._held_running(), self._prefixes, self.estimates.model
        loras = self.lora_config.max_loras if self.lora_config else None
        slots = self.max_num_active_reqs - self.num_waiting_for_streaming_input
        return view_of(
            running,
            ready_jobs(self.ledger, running, prefixes, loras),
            memory=self._memory_now(),
            bounds=self._bounds._replace(running=min(self._bounds.running, slots)),
            model=model,
            speculation=self.estimates.speculation,
            step=self.current_step + 1,
            start_s=self._pipeline.free_s(now_s, model),
            in_progress=self._pipeline.in_progress(self.ledger.membership),
            shared=None if prefixes is None else prefixes.shared_prefixes(self.ledger),
        )

    def _is_ready(self, held: HeldRequest) -> bool:
        """Return whether a blocked request can start now."""
        request = held.request
        if request.num_stale_output_tokens and not request.drop_stale_output:
            return False
        if request.status == RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
            return self._handle_blocked_waiting_request(request)
        return can_start(request)


def can_start(request: EngineRequest) -> bool:
    """Return whether the request's status lets vLLM start it."""
    return request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
