"""vLLM's scheduler with a policy: the policy decides, vLLM's own code executes.

vLLM's `schedule` is 900 lines about KV blocks, prefix caches, adapters, images, grammars, connectors and
draft tokens, and changes with every release. None of it is rewritten here. A step is planned first; then
vLLM's own `schedule` runs over lists with the planned requests in the planned order (`plan_execution`), and
asks for every request how many tokens it may have (`caps`). Before that, draft tokens are cut to the planned
number (`drafts`), and requests to preempt are preempted. So vLLM makes the planned step with all its other
parts, and omits by its own rules whatever is impossible (an image that does not fit, a missing block).

If the previous plan can be repeated, vLLM makes the step without a new plan (`repeated_plan`). If there is no
plan, because the policy failed or does not support the model, the step is vLLM's own.

An exception in a scheduler ends its engine with all of its requests. So all code here before and after vLLM's
own methods is contained: an error is counted (`faults`), the step continues as vLLM's own, and before the
next one the ledger is rebuilt from vLLM's requests.
"""

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from penstock_core.timing.acceptance_rate import Drafted
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus
from vllm.version import __version__ as vllm_version

from penstock_vllm.boundaries import BoundaryReports, reports_of
from penstock_vllm.containment import contained
from penstock_vllm.drafts import drafted
from penstock_vllm.engine import EngineRequest, RunnerOutput, StepOutput
from penstock_vllm.engine_facts import generates_one_token_per_step
from penstock_vllm.faults import Fault, PolicyFaultLog
from penstock_vllm.ledger import EngineLedger
from penstock_vllm.pipeline import Pipeline
from penstock_vllm.plan import PlannedStep, StepInstructions
from penstock_vllm.prefix_cache import prefix_cache_of
from penstock_vllm.repeated_plan import RepeatedPlan, repeated_from, steps_to_first_end
from penstock_vllm.settings import check_one_engine, read_settings
from penstock_vllm.start import additional_config, fields_reader
from penstock_vllm.step_in_progress import (
    StepInProgress,
    computes_one_each,
    generated_one_each,
    step_in_progress,
)
from penstock_vllm.step_planning import StepPlanning, can_start
from penstock_vllm.versions import check_version
from penstock_vllm.view import KvMemory

log = logging.getLogger("vllm.penstock")

LONGEST_LAG_S = 60.0
"""Largest plausible age of a new request in seconds; an older one comes from a wrong clock."""


class Steering(StepPlanning):
    """Adds a policy to a vLLM scheduler, synchronous or not.

    clock: monotonic seconds. wall: Unix time, in which arrivals are given.
    """

    clock: Callable[[], float] = staticmethod(time.monotonic)
    wall: Callable[[], float] = staticmethod(time.time)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        check_version(vllm_version, dir(type(self)))
        super().__init__(*args, **kwargs)
        check_one_engine(self.vllm_config.parallel_config.data_parallel_size)
        settings = read_settings(additional_config(self.vllm_config), os.environ)
        self._plans_repeat = generates_one_token_per_step(self)
        self._drafts_stay_with_worker = isinstance(self, AsyncScheduler)
        self._last_computed: Mapping[str, int] = {}
        self.ledger, self._pipeline = EngineLedger(fields_reader(settings, self.clock)), Pipeline()
        self.faults, self._trusts_ledger = PolicyFaultLog(), True
        self._prefixes = prefix_cache_of(self)
        self._start_planning(settings)
        self._repeated: RepeatedPlan | None = None
        self._boundaries = BoundaryReports(
            self.ledger, self._pipeline, self.faults, self._prefixes, self._held_running
        )
        if (reports := reports_of(settings, self._bounds)) is not None:
            self._boundaries.start(reports)
        self._report(self.clock())
        log.info("penstock: policy %s, telemetry %s", settings.policy, settings.telemetry or "off")

    _memory: KvMemory  # after the last step

    # Methods that vLLM calls.

    def add_request(self, request: EngineRequest) -> None:
        """Add a new request, or the next part of one."""
        super().add_request(request)
        self._add(request)

    def schedule(self, throttle_prefills: bool = False) -> StepOutput:
        """Return the next step: the policy's, or vLLM's own."""
        now_s = self.clock()
        self._release_pins_if_short()
        repeated = self._repeated_plan()
        if repeated is not None:
            output = super().schedule(throttle_prefills)
            self._repeat(output, repeated, now_s)
            return output
        planned = self._plan(now_s)
        with ExitStack() as applied:
            if planned is not None and not self._apply(applied, planned.instructions, now_s):
                planned = None
            output = super().schedule(throttle_prefills)
        self._begin(output, planned, now_s)
        return output

    def update_from_output(self, scheduler_output: StepOutput, model_runner_output: RunnerOutput) -> Any:
        """Record the end of a step."""
        now_s = self.clock()
        verified = self._verified(scheduler_output, model_runner_output)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        self._end(scheduler_output, model_runner_output, verified, now_s)
        return outputs

    def finish_requests(
        self, request_ids: str | Iterable[str] | None, finished_status: Any
    ) -> list[EngineRequest]:
        """End requests from outside, for example when clients disconnect."""
        finished = super().finish_requests(request_ids, finished_status)
        self._drop([request.request_id for request in finished])
        return finished

    def reset_prefix_cache(self, *how: Any, **more: Any) -> bool:
        """Empty the prefix cache, unless a running request holds blocks. Releases all pins."""
        self._release_pins()
        emptied = super().reset_prefix_cache(*how, **more)
        if emptied and self._prefixes is not None:
            self._prefixes.emptied()
        return emptied

    def shutdown(self) -> None:
        """Stop reporting, then shut down vLLM's scheduler."""
        self._stop_reports()
        if self.faults.counted:
            log.warning("penstock: steps that were vLLM's own, by fault: %s", self.faults.counted)
        super().shutdown()

    def _preempt_request(self, request: EngineRequest, timestamp: float, **how: Any) -> None:
        super()._preempt_request(request, timestamp, **how)
        self._preempted(request)

    # Errors.

    def _contain(self, error: Exception) -> None:
        """Count an error of this code, and mark the ledger as invalid."""
        self.faults.count(Fault.PLUGIN, error)
        self._trusts_ledger, self._repeated = False, None

    def _restore_ledger(self, now_s: float) -> None:
        """Rebuild the ledger."""
        running = {request.request_id for request in self.running}
        waiting = [
            request
            for engine_id, request in self.requests.items()
            if engine_id not in running and not request.is_finished()
        ]
        self.ledger.restore(self.running, waiting, self._pipeline.drafts(), can_start, now_s)
        self._running_seen, self._trusts_ledger = (), True
        if self._prefixes is not None:
            self._prefixes.unpin_all()

    # Requests.

    @contained
    def _add(self, request: EngineRequest) -> None:
        if request.request_id in self.requests:
            lag_s = min(max(self.wall() - request.arrival_time, 0.0), LONGEST_LAG_S)
            held = self.ledger.add(request, self.clock() - lag_s, blocked=not can_start(request))
            if self._prefixes is not None and held.counts_on_cache and not held.running:
                self._prefixes.pin([held])

    @contained
    def _preempted(self, request: EngineRequest) -> None:
        if held := self.ledger.by_id.get(request.request_id):
            self.ledger.preempt(held)
            if self._prefixes is not None:
                self._prefixes.ended(held)

    @contained
    def _drop(self, ended: Iterable[str]) -> None:
        """Remove requests that have ended, by vLLM's ids."""
        for engine_id in ended:
            if held := self.ledger.by_id.get(engine_id):
                self.ledger.drop(held)
                if self._prefixes is not None:
                    self._prefixes.ended(held)

    @contained
    def _release_pins_if_short(self) -> None:
        prefixes, most = self._prefixes, self._bounds.batch_tokens
        if prefixes is not None and prefixes.release_if_short(self.running, most, self.num_spec_tokens):
            self.ledger.changes += 1  # reports of rows include the common prefixes

    @contained
    def _release_pins(self) -> None:
        if self._prefixes is not None:
            self._prefixes.unpin_all()
            self.ledger.changes += 1

    # Planning a step.

    @contained
    def _repeated_plan(self) -> RepeatedPlan | None:
        """Return the plan that can be repeated, if there is one."""
        repeated = self._repeated
        holds = repeated is not None and repeated.holds(self.ledger.membership, self._memory)
        return repeated if holds else None

    @contained
    def _plan(self, now_s: float) -> PlannedStep | None:
        """Return the policy's plan; None if the step is vLLM's own."""
        if not self._trusts_ledger:
            self._restore_ledger(now_s)
        return self._policy_plan(now_s)

    @contained
    def _apply(self, applied: ExitStack, plan: StepInstructions, now_s: float) -> bool:
        """Apply the plan to vLLM until `applied` is closed. Returns whether it did."""
        kept = self._last_computed if self._drafts_stay_with_worker else None
        if self._prefixes is not None:
            self._prefixes.pin(plan.start)
        applied.enter_context(self._execution_of(plan, now_s, kept))
        return True

    # Beginning a step.

    @contained
    def _repeat(self, output: StepOutput, repeated: RepeatedPlan, now_s: float) -> None:
        """Record a step that vLLM made without a new plan: the repeated one, or another."""
        if not computes_one_each(output, repeated.running):
            self._begin(output, None, now_s)
            return
        repeated.advance()
        self._computes(repeated.last_step(output, now_s))
        memory, before = self._memory_now(), self._memory
        self._memory, changed = memory, memory.free_blocks != before.free_blocks
        self._boundaries.repeat(memory, self.estimates.speculation, now_s, memory_changed=changed)

    @contained
    def _begin(self, output: StepOutput, planned: PlannedStep | None, now_s: float) -> None:
        """Record the beginning of a step, at whose end vLLM already counts its requests."""
        ledger, self._repeated = self.ledger, None
        resumed = output.scheduled_cached_reqs.resumed_req_ids
        for engine_id in (*[new.req_id for new in output.scheduled_new_reqs], *resumed):
            ledger.start(ledger.by_id[engine_id])
            if self._prefixes is not None:
                self._prefixes.started(ledger.by_id[engine_id])
        ledger.begin_drafts(output.scheduled_spec_decode_tokens)
        offered = planned.instructions.start if planned is not None else ()
        if self._prefixes is not None:
            self._prefixes.release_offered(offered, can_move=bool(self.running))
        for held in offered:
            if held.request.status == RequestStatus.WAITING_FOR_REMOTE_KVS:
                ledger.leave_to_vllm(held)
        if output.num_scheduled_tokens:
            self._computes(self._step_in_progress(output, planned, now_s))
        else:
            self._pipeline.pause()
        self._report(now_s)

    def _step_in_progress(
        self, output: StepOutput, planned: PlannedStep | None, now_s: float
    ) -> StepInProgress:
        """Return the step in progress. With one token of each running request, its plan may be repeated."""
        ledger, model = self.ledger, self.estimates.model
        if planned is None or planned.instructions.order is not None:
            return step_in_progress(output, ledger.by_id, now_s, model, None)
        plan, view = planned
        step = step_in_progress(output, ledger.by_id, now_s, model, view.running)
        if len(view.running) != len(self.running) or not computes_one_each(output, len(view.running)):
            return step
        if plan.repeatable_blocks is not None and self._plans_repeat and not ledger.waiting:
            left = steps_to_first_end(self.running, self._bounds.longest_tokens)
            self._repeated = repeated_from(step, ledger.membership, plan.repeatable_blocks, left, model)
        return step._replace(membership=ledger.membership)

    def _computes(self, step: StepInProgress) -> None:
        """Record a step that the engine begins to compute."""
        self._pipeline.begin(step)
        self._last_computed = step.output.num_scheduled_tokens

    def _report(self, now_s: float) -> None:
        """Report this boundary."""
        self._memory = self._memory_now()
        self._boundaries.record(self._memory, self.estimates.speculation, now_s)

    @contained
    def _stop_reports(self) -> None:
        self._boundaries.stop()

    # Ending a step.

    @contained
    def _verified(self, output: StepOutput, result: RunnerOutput) -> Sequence[Drafted]:
        if not output.scheduled_spec_decode_tokens:
            return ()
        return drafted(output, result, self.ledger.by_id, with_worker=self._drafts_stay_with_worker)

    @contained
    def _end(
        self, output: StepOutput, result: RunnerOutput, verified: Sequence[Drafted] | None, now_s: float
    ) -> None:
        """Update requests at the end of a step, and learn from its duration."""
        if verified:
            self.estimates.drafts(verified)
        ledger, step = self.ledger, self._pipeline.take(output)
        ledger.end_drafts(output.scheduled_spec_decode_tokens)
        of_all = step is not None and step.membership == ledger.membership
        if of_all and generated_one_each(output, result):
            ledger.advance_all(self._held_running(), now_s)
        else:
            ledger.advance(output.num_scheduled_tokens, now_s)
            self._repeated = None if of_all else self._repeated
        self._drop(self.finished_req_ids)
        if step is None:
            return
        more_work = bool(self.running) or self.has_unfinished_requests()
        ended = self._pipeline.end(step, now_s, more_work=more_work)
        if ended is not None:
            self._boundaries.ended = ended
            self.estimates.step(ended)


class PenstockScheduler(Steering, Scheduler):  # type: ignore[misc]  # vLLM has no types
    """The scheduler for `--scheduler-cls`.

    With asynchronous scheduling it is replaced by the asynchronous one.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> "PenstockScheduler":
        """Return an instance of the kind that vLLM's configuration requires."""
        config = kwargs["vllm_config"] if "vllm_config" in kwargs else args[0]
        ahead = cls is PenstockScheduler and config.scheduler_config.async_scheduling
        made: PenstockScheduler = super().__new__(PenstockAsyncScheduler if ahead else cls)
        return made


class PenstockAsyncScheduler(PenstockScheduler, AsyncScheduler):  # type: ignore[misc]
    """Plans a step while the previous one is being computed."""
