"""vLLM's scheduler with a policy: the policy decides, vLLM's own code executes.

vLLM's `schedule` is 900 lines about KV blocks, prefix caches, adapters, images, grammars, connectors and
draft tokens, and changes with every release. None of it is rewritten here. A step is planned first; then
vLLM's own `schedule` runs over lists with the planned requests in the planned order (`plan_execution`), and
asks for every request how many tokens it may have (`caps`). Before that, draft tokens are cut to the planned
number (`drafts`), and requests to preempt are preempted. So vLLM arrives at the planned step, does everything
else that belongs to one, and leaves out what it cannot do (an image that does not fit, a missing block) by
its own rules.

If the previous plan can be repeated, vLLM continues by itself (`repeated_plan`). Without a plan, because the
policy failed or the model needs something that policies do not support, the step is vLLM's own.

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

from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job
from penstock_core.timing.acceptance_rate import Drafted
from penstock_core.timing.builtin_models import time_model
from penstock_core.timing.speculation import Speculation
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus
from vllm.version import __version__ as vllm_version

from penstock_vllm.boundaries import BoundaryReports, reports_of
from penstock_vllm.drafts import drafted
from penstock_vllm.engine import EngineRequest, RunnerOutput, StepOutput
from penstock_vllm.engine_facts import bounds_of, can_be_steered, generates_one_token_per_step, memory_of
from penstock_vllm.faults import Fault, PolicyFaultLog
from penstock_vllm.learned import EngineEstimates
from penstock_vllm.ledger import EngineLedger, Held
from penstock_vllm.pending_model import PendingModel
from penstock_vllm.pipeline import Pipeline
from penstock_vllm.plan import StepInstructions, with_a_lora_in_use
from penstock_vllm.plan_execution import PlanExecution
from penstock_vllm.planning import Planning
from penstock_vllm.prefix_cache import needed_blocks, prefix_cache_of
from penstock_vllm.repeated_plan import RepeatedPlan, repeated_from, steps_to_first_end
from penstock_vllm.reports import CacheReport
from penstock_vllm.settings import PluginSettings, check_one_engine, read_settings
from penstock_vllm.start import additional_config, fields_reader, warm_policy
from penstock_vllm.under_way import UnderWay, brought_one_each, under_way
from penstock_vllm.versions import check_version
from penstock_vllm.view import KvMemory, view_of

log = logging.getLogger("vllm.penstock")

WARM_UP_MODEL = "llama-3-8b-a100"
"""Time model for the warm-up while the engine's own is still to be measured; never used for planning."""

NO_CHUNKS: Mapping[str, int] = {}

LONGEST_LAG_S = 60.0
"""Largest plausible age of a new request in seconds; an older one comes from a wrong clock."""


class Steering(PlanExecution):
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
        self.ledger, self._pipeline = EngineLedger(fields_reader(settings, self.clock)), Pipeline()
        self.faults, self._trusts_ledger = PolicyFaultLog(), True
        self._memory_now = memory_of(self)
        self._bounds, self._steers = bounds_of(self, settings), can_be_steered(self)
        self._plans_repeat, self._repeated = generates_one_token_per_step(self), None
        self._prefixes = prefix_cache_of(self)
        self._last_computed: Mapping[str, int] = {}
        self._drafts_stay_with_worker = isinstance(self, AsyncScheduler)
        self._plan_with(settings)
        self._boundaries = BoundaryReports(self.ledger, self._pipeline, self.faults, self._prefixes)
        if (reports := reports_of(settings, self._bounds)) is not None:
            self._boundaries.start(reports)
        self._report(self.clock())
        log.info("penstock: policy %s, telemetry %s", settings.policy, settings.telemetry or "off")

    _repeated: RepeatedPlan | None
    _memory: KvMemory  # after the last step

    # Methods that vLLM calls.

    def add_request(self, request: EngineRequest) -> None:
        """Add a new request, or the next part of one."""
        super().add_request(request)
        try:
            if request.request_id in self.requests:
                lag_s = min(max(self.wall() - request.arrival_time, 0.0), LONGEST_LAG_S)
                held = self.ledger.add(request, self.clock() - lag_s, blocked=not _can_start(request))
                if self._prefixes is not None and held.counts_on_cache and not held.running:
                    self._prefixes.pin([held])
        except Exception as error:
            self._contain(error)

    def schedule(self, throttle_prefills: bool = False) -> StepOutput:
        """Return the next step: the policy's, or vLLM's own."""
        now_s = self.clock()
        self._release_pins_if_short()
        repeated = self._repeated_plan()
        if repeated is not None:
            output = super().schedule(throttle_prefills)
            self._noted(output, None, repeated, now_s)
            return output
        planned = self._planned(now_s)
        applied = ExitStack()
        if planned is not None and not self._apply_plan(applied, planned[0], now_s):
            planned = None
        with applied:
            output = super().schedule(throttle_prefills)
        self._noted(output, planned, None, now_s)
        return output

    def update_from_output(self, scheduler_output: StepOutput, model_runner_output: RunnerOutput) -> Any:
        """Record the end of a step."""
        now_s = self.clock()
        verified: Sequence[Drafted] = ()
        if scheduler_output.scheduled_spec_decode_tokens:
            verified = self._verified(scheduler_output, model_runner_output)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        try:
            if verified:
                self.learned.drafts(verified)
            self._end(scheduler_output, model_runner_output, now_s)
        except Exception as error:
            self._contain(error)
        return outputs

    def finish_requests(
        self, request_ids: str | Iterable[str] | None, finished_status: Any
    ) -> list[EngineRequest]:
        """End requests from outside, for example when clients disconnect."""
        finished = super().finish_requests(request_ids, finished_status)
        try:
            for request in finished:
                if held := self.ledger.by_id.get(request.request_id):
                    self._drop(held)
        except Exception as error:
            self._contain(error)
        return finished

    def reset_prefix_cache(self, *how: Any, **more: Any) -> bool:
        """Empty the prefix cache, unless a running request holds blocks. Waiting ones give theirs back."""
        try:
            if self._prefixes is not None:
                self._prefixes.unpin_all()
                self.ledger.turns += 1
        except Exception as error:
            self._contain(error)
        emptied = super().reset_prefix_cache(*how, **more)
        if emptied and self._prefixes is not None:
            self._prefixes.emptied()
        return emptied

    def shutdown(self) -> None:
        """Stop reporting, then shut down vLLM's scheduler."""
        try:
            self._boundaries.stop()
        except Exception as error:
            self._contain(error)
        if self.faults.counted:
            log.warning("penstock: steps that were vLLM's own, by fault: %s", self.faults.counted)
        super().shutdown()

    def _preempt_request(self, request: EngineRequest, timestamp: float, **how: Any) -> None:
        super()._preempt_request(request, timestamp, **how)
        try:
            if held := self.ledger.by_id.get(request.request_id):
                self.ledger.preempt(held)
                if self._prefixes is not None:
                    self._prefixes.ended(held)
        except Exception as error:
            self._contain(error)

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
        self.ledger.restore(self.running, waiting, self._pipeline.drafts(), _can_start, now_s)
        self._running_seen, self._trusts_ledger = (), True
        if self._prefixes is not None:
            self._prefixes.unpin_all()

    # Start.

    def _plan_with(self, settings: PluginSettings) -> None:
        drafter = Speculation(self.num_spec_tokens, settings.acceptance) if self.num_spec_tokens else None
        self._pending_model = (
            PendingModel(settings.telemetry) if settings.model is None and settings.telemetry else None
        )
        self.learned = EngineEstimates(settings.model or time_model(WARM_UP_MODEL), drafter)
        policy = warm_policy(settings, self._bounds, self.learned)
        self.planning = Planning(policy, settings.planning_s, time.perf_counter, self.faults)

    # Planning a step.

    def _repeated_plan(self) -> RepeatedPlan | None:
        """Return the plan that can be repeated, if there is one."""
        repeated = self._repeated
        if repeated is None:
            return None
        try:
            return repeated if repeated.holds(self.ledger.membership, self._memory) else None
        except Exception as error:
            self._contain(error)
            return None

    def _planned(self, now_s: float) -> tuple[StepInstructions, ReplicaView] | None:
        """Return the policy's plan and its view; None if the step is vLLM's own."""
        try:
            if not self._trusts_ledger:
                self._restore_ledger(now_s)
            return self._plan(now_s)
        except Exception as error:
            self._contain(error)
            return None

    def _plan(self, now_s: float) -> tuple[StepInstructions, ReplicaView] | None:
        if self._pending_model is not None:
            self._check_for_model(self._pending_model, now_s)
        if not self._steers or self._pending_model is not None or self._pause_state:
            return None
        self.ledger.unblock(self._is_ready)
        self.ledger.settle()
        view = self._policy_view(now_s)
        if not view.running and not view.waiting:
            return None
        plan = self.planning.plan(view, self.ledger.by_name)
        return None if plan is None else (plan, view)

    def _apply_plan(self, applied: ExitStack, plan: StepInstructions, now_s: float) -> bool:
        """Apply the plan to vLLM until `applied` is closed. Returns False if that failed."""
        kept = self._last_computed if self._drafts_stay_with_worker else None
        try:
            if self._prefixes is not None:
                self._prefixes.pin(plan.start)
            applied.enter_context(self._execution_of(plan, now_s, kept))
        except Exception as error:
            self._contain(error)
            return False
        return True

    def _check_for_model(self, pending: PendingModel, now_s: float) -> None:
        model = pending.check(now_s)
        if model is not None:
            self.learned, self._pending_model = EngineEstimates(model, self.learned.speculation), None

    def _policy_view(self, now_s: float) -> ReplicaView:
        model = self.learned.model
        slots = self.max_num_active_reqs - self.num_waiting_for_streaming_input
        return view_of(
            self._held_running(),
            self._ready(),
            memory=self._memory_now(),
            bounds=self._bounds._replace(running=min(self._bounds.running, slots)),
            model=model,
            speculation=self.learned.speculation,
            step=self.current_step + 1,
            begins_s=self._pipeline.free_s(now_s, model),
            ahead=self._pipeline.ahead(self.ledger.membership),
            shared=None if self._prefixes is None else self._prefixes.shared(self.ledger),
        )

    def _ready(self) -> tuple[Job, ...]:
        """Return the jobs that the policy may start, with what is cached of them."""
        ledger = self.ledger
        if not ledger.ready or not (self.lora_config or self._prefixes):
            return ledger.ready
        waiting: Sequence[Held] = ledger.startable
        if self.lora_config:
            waiting = with_a_lora_in_use(waiting, self._held_running(), self.lora_config.max_loras)
        return tuple(
            [held.job for held in waiting] if self._prefixes is None else self._prefixes.seen(waiting)
        )

    def _is_ready(self, held: Held) -> bool:
        request = held.request
        if request.num_stale_output_tokens and not request.drop_stale_output:
            return False
        if request.status == RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
            return self._handle_blocked_waiting_request(request)
        return _can_start(request)

    # After a step.

    def _noted(
        self,
        output: StepOutput,
        planned: tuple[StepInstructions, ReplicaView] | None,
        repeated: RepeatedPlan | None,
        now_s: float,
    ) -> None:
        """Record the step that vLLM has made, planned or not."""
        try:
            if repeated is not None:
                self._repeat(output, repeated, now_s)
            else:
                self._begin(output, planned, now_s)
        except Exception as error:
            self._contain(error)

    def _verified(self, output: StepOutput, brought: RunnerOutput) -> Sequence[Drafted]:
        try:
            return drafted(output, brought, self.ledger.by_id, with_worker=self._drafts_stay_with_worker)
        except Exception as error:
            self._contain(error)
            return ()

    def _repeat(self, output: StepOutput, repeated: RepeatedPlan, now_s: float) -> None:
        """Record a step that vLLM made by itself: the repeated plan's, or another."""
        if not len(output.num_scheduled_tokens) == repeated.running == output.total_num_scheduled_tokens:
            self._begin(output, None, now_s)
            return
        repeated.advance()
        step = UnderWay(output, now_s, repeated.work, repeated.seconds, NO_CHUNKS, repeated.membership)
        self._computes(step)
        memory, before = self._memory_now(), self._memory
        cache = None if memory.free_blocks == before.free_blocks else self._boundaries.of_cache()
        self._memory = memory
        if not self._boundaries.repeat(memory, cache, now_s):
            self._report(now_s, cache)

    def _begin(
        self, output: StepOutput, planned: tuple[StepInstructions, ReplicaView] | None, now_s: float
    ) -> None:
        """Record the beginning of a step, at whose end vLLM already counts its requests."""
        ledger, self._repeated = self.ledger, None
        resumed = output.scheduled_cached_reqs.resumed_req_ids
        for engine_id in (*[new.req_id for new in output.scheduled_new_reqs], *resumed):
            ledger.start(ledger.by_id[engine_id])
            if self._prefixes is not None:
                self._prefixes.started(ledger.by_id[engine_id])
        for engine_id, drafts in output.scheduled_spec_decode_tokens.items():
            ledger.by_id[engine_id].drafts_under_way += len(drafts)
        offered = planned[0].start if planned is not None else ()
        if self._prefixes is not None:
            self._prefixes.offered(offered, can_move=bool(self.running))
        for held in offered:
            if held.request.status == RequestStatus.WAITING_FOR_REMOTE_KVS:
                ledger.leave_to_vllm(held)
        if output.num_scheduled_tokens:
            self._computes(self._under_way(output, planned, now_s))
        else:
            self._pipeline.pause()
        self._report(now_s)

    def _under_way(
        self, output: StepOutput, planned: tuple[StepInstructions, ReplicaView] | None, now_s: float
    ) -> UnderWay:
        """Return the step in progress. With one token of each running request, its plan may be repeated."""
        ledger, model = self.ledger, self.learned.model
        if planned is None or planned[0].order is not None:
            return under_way(output, ledger.by_id, now_s, model, None)
        plan, view = planned
        step = under_way(output, ledger.by_id, now_s, model, view.running)
        running = len(self.running)
        one_each = len(view.running) == len(output.num_scheduled_tokens) == output.total_num_scheduled_tokens
        if not one_each or len(view.running) != running:
            return step
        if plan.repeatable_blocks is not None and self._plans_repeat and not ledger.waiting:
            left = steps_to_first_end(self.running, self._bounds.longest_tokens)
            self._repeated = repeated_from(step, ledger.membership, plan.repeatable_blocks, left, model)
        return step._replace(membership=ledger.membership)

    def _computes(self, step: UnderWay) -> None:
        self._pipeline.begin(step)
        self._last_computed = step.output.num_scheduled_tokens

    def _end(self, output: StepOutput, brought: RunnerOutput, now_s: float) -> None:
        """Record the end of a step: update requests, and learn from its duration."""
        ledger, step = self.ledger, self._pipeline.take(output)
        for engine_id, drafts in output.scheduled_spec_decode_tokens.items():
            if held := ledger.by_id.get(engine_id):
                held.drafts_under_way = max(held.drafts_under_way - len(drafts), 0)
        of_all = step is not None and step.membership == ledger.membership
        if of_all and brought_one_each(output, brought):
            ledger.all_move(self._held_running(), now_s)
        else:
            ledger.advance(output.num_scheduled_tokens, now_s)
            self._repeated = None if of_all else self._repeated
        for engine_id in self.finished_req_ids:
            if held := ledger.by_id.get(engine_id):
                self._drop(held)
        if step is None:
            return
        works_on = bool(self.running) or self.has_unfinished_requests()
        ended = self._pipeline.end(step, now_s, works_on=works_on)
        if ended is not None:
            self._boundaries.ended = ended
            self.learned.step(ended)

    def _drop(self, held: Held) -> None:
        """Remove a request that has ended."""
        self.ledger.drop(held)
        if self._prefixes is not None:
            self._prefixes.ended(held)

    def _release_pins_if_short(self) -> None:
        """Release what waiting requests hold where running ones would be preempted for it."""
        prefixes = self._prefixes
        try:
            if prefixes is not None and prefixes.pinned:
                needed = needed_blocks(
                    self.running, self.block_size, self._bounds.batch_tokens, self.num_spec_tokens
                )
                if needed > self._memory_now().free_blocks:
                    prefixes.unpin_all()
                    self.ledger.turns += 1  # reported rows say what is shared
        except Exception as error:
            self._contain(error)

    def _report(self, now_s: float, cache: CacheReport | None = None) -> None:
        """Report this boundary. cache: the report of it that was taken already: changes are returned once."""
        self._memory = self._memory_now()
        self._boundaries.record(
            len(self.running),
            self._held_running,
            self._memory,
            now_s,
            speculation=self.learned.speculation,
            cache=cache,
        )


class PenstockScheduler(Steering, Scheduler):  # type: ignore[misc]  # vLLM has no types to check by
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


def _can_start(request: EngineRequest) -> bool:
    return request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
