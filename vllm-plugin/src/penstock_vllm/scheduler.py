"""vLLM's scheduler, steered: what a policy decides, vLLM's own code carries out.

vLLM's `schedule` is 900 lines that know of KV blocks, prefix caches, adapters, images, grammars, connectors
and drafts, and they change with every release. Nothing of it is written anew here. A step is planned first;
then vLLM's own `schedule` runs over lists that hold who is planned, in the planned order, and asks for every
request how many tokens it may have at most (`_reserve_prefill_lookahead`, which it calls last before it takes
blocks). Drafts are cut to the planned number before it sees them, and who is to lose its KV has lost it. So
it comes to the planned step, does whatever else belongs to one, and what it cannot do (an image that does not
fit, a block that is not there) it leaves out by its own rules.

Requests outside the plan keep their place, in lists that are put back when the step is made. Where there is
no plan, because the policy failed or because a model needs something that policies know nothing of, nothing
is steered and the step is vLLM's own.
"""

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock_core.acceptance import Drafted
from penstock_core.builtin_time_models import time_model
from penstock_core.policies import build
from penstock_core.replica_view import Limits, ReplicaView
from penstock_core.request import promoted
from penstock_core.speculation import Speculation
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.request_queue import FCFSRequestQueue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus
from vllm.version import __version__ as vllm_version

from penstock_vllm.awaited_model import AwaitedModel
from penstock_vllm.engine import EngineRequest, EngineScheduler, Queue, RunnerOutput, StepOutput
from penstock_vllm.learned import Learned
from penstock_vllm.ledger import Held, Ledger
from penstock_vllm.plan import Caps, Plan, within_loras
from penstock_vllm.planning import Planning
from penstock_vllm.rehearsal import rehearse
from penstock_vllm.report_socket import ReportSocket
from penstock_vllm.reports import Heartbeat, Measured, Reports, Standing
from penstock_vllm.settings import Settings, read_settings
from penstock_vllm.under_way import UnderWay, under_way
from penstock_vllm.versions import check_version
from penstock_vllm.view import Bounds, Memory, view_of

if TYPE_CHECKING:
    Steered = EngineScheduler
else:
    Steered = object

log = logging.getLogger("vllm.penstock")

STAND_IN_MODEL = "llama-3-8b-a100"
"""Rehearsed with, and never planned with, while the engine's own is still to be measured."""

LONGEST_LAG_S = 60.0
"""A request that says it came longer ago than this has a clock that is wrong."""


class Steering(Steered):
    """What a policy adds to a scheduler of vLLM's, synchronous or not.

    clock: seconds that only grow. wall: seconds of the day, which requests' arrivals are in.
    """

    clock: Callable[[], float] = staticmethod(time.monotonic)
    wall: Callable[[], float] = staticmethod(time.time)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        check_version(vllm_version, dir(type(self)))
        super().__init__(*args, **kwargs)
        settings = read_settings(_additional(self.vllm_config), os.environ)
        self.ledger = Ledger()
        self._bounds = self._bounds_of(settings)
        self._caps: Caps | None = None
        self._running_seen: list[EngineRequest] = []
        self._running_held: list[Held] = []
        self._view: ReplicaView | None = None
        self._steps: deque[UnderWay] = deque()
        self._last_computed: Mapping[str, int] = {}
        self._drafts_stay_with_worker = isinstance(self, AsyncScheduler)
        self._ended: Measured | None = None
        self._ended_s, self._busy, self._busy_until_s = 0.0, False, 0.0
        drafter = Speculation(self.num_spec_tokens, settings.acceptance) if self.num_spec_tokens else None
        self._awaited = (
            AwaitedModel(settings.telemetry) if settings.model is None and settings.telemetry else None
        )
        model = settings.model or time_model(STAND_IN_MODEL)
        self.learned = Learned(model, drafter)
        policy = build(settings.policy, settings.knobs)
        rehearse(policy, Limits(self._bounds.batch_tokens, self._bounds.running), model, drafter)
        self.planning = Planning(policy, settings.planning_s, time.perf_counter)
        self._steers = self._can_be_steered()
        self._reports = (
            None if settings.telemetry is None else Reports(ReportSocket(settings.telemetry), self._bounds)
        )
        self._heartbeat = None if self._reports is None else Heartbeat(self._reports)
        self._report(self.clock())
        log.info("penstock: policy %s, telemetry %s", settings.policy, settings.telemetry or "off")

    # What vLLM calls.

    def add_request(self, request: EngineRequest) -> None:
        """A request has come, or the next piece of one."""
        super().add_request(request)
        if request.request_id in self.requests:
            lag_s = min(max(self.wall() - request.arrival_time, 0.0), LONGEST_LAG_S)
            self.ledger.add(request, self.clock() - lag_s, blocked=not _can_start(request))

    def schedule(self, throttle_prefills: bool = False) -> StepOutput:
        """The next step: the policy's, or vLLM's own."""
        now_s = self.clock()
        if self._awaited is not None:
            self._look_for_model(self._awaited, now_s)
        plan = self._planned(now_s)
        if plan is None:
            self._view = None
            output = super().schedule(throttle_prefills)
        else:
            with self._steered(plan, now_s):
                output = super().schedule(throttle_prefills)
        self._begin(output, plan, now_s)
        return output

    def update_from_output(self, scheduler_output: StepOutput, model_runner_output: RunnerOutput) -> Any:
        """A step has ended."""
        now_s = self.clock()
        step = self._taken(scheduler_output)
        drafted = self._drafted(scheduler_output, model_runner_output)
        told = super().update_from_output(scheduler_output, model_runner_output)
        self.learned.drafts(drafted)
        self._end(scheduler_output, step, now_s)
        return told

    def finish_requests(
        self, request_ids: str | Iterable[str] | None, finished_status: Any
    ) -> list[EngineRequest]:
        """Requests end from outside, by their clients' wish for example."""
        finished = super().finish_requests(request_ids, finished_status)
        for request in finished:
            if held := self.ledger.by_id.get(request.request_id):
                self.ledger.drop(held)
        return finished

    def shutdown(self) -> None:
        """Stop telling, then whatever vLLM stops."""
        if self._heartbeat is not None and self._reports is not None:
            self._heartbeat.stop()
            self._reports.close()
        if self.planning.failures:
            log.warning("penstock: steps that were vLLM's own, by fault: %s", self.planning.failures)
        super().shutdown()

    def _preempt_request(self, request: EngineRequest, timestamp: float, **how: Any) -> None:
        super()._preempt_request(request, timestamp, **how)
        if held := self.ledger.by_id.get(request.request_id):
            self.ledger.preempt(held)

    def _lookahead_within_caps(
        self, request: EngineRequest, num_computed_tokens: int, num_new_tokens: int
    ) -> int:
        """Stands in for `_reserve_prefill_lookahead` while there are caps; other steps do not pay for it."""
        num_new_tokens = self._capped(request, num_computed_tokens, num_new_tokens)
        return super()._reserve_prefill_lookahead(request, num_computed_tokens, num_new_tokens)

    def _mamba_block_aligned_split(self, request: EngineRequest, num_new_tokens: int, *computed: int) -> int:
        if self._caps is not None:
            num_new_tokens = min(num_new_tokens, self._caps.get(request.request_id, num_new_tokens))
        return super()._mamba_block_aligned_split(request, num_new_tokens, *computed)

    def _try_schedule_encoder_inputs(
        self, request: EngineRequest, num_computed_tokens: int, num_new_tokens: int, *rest: Any, **more: Any
    ) -> Any:
        if self._caps is not None:
            num_new_tokens = min(num_new_tokens, self._caps.get(request.request_id, num_new_tokens))
        return super()._try_schedule_encoder_inputs(
            request, num_computed_tokens, num_new_tokens, *rest, **more
        )

    # Planning a step.

    def _look_for_model(self, awaited: AwaitedModel, now_s: float) -> None:
        model = awaited.look(now_s)
        if model is not None:
            self.learned, self._awaited = Learned(model, self.learned.speculation), None

    def _planned(self, now_s: float) -> Plan | None:
        if not self._steers or self._awaited is not None or int(self._pause_state):
            return None
        self.ledger.unblock(self._is_ready)
        view = self._see(now_s)
        if not view.running and not view.waiting:
            return None
        self._view = view
        return self.planning.plan(view, self.ledger.by_name)

    def _see(self, now_s: float) -> ReplicaView:
        begins_s = max(self._busy_until_s, now_s) if self._steps else now_s
        seats = self.max_num_active_reqs - self.num_waiting_for_streaming_input
        return view_of(
            self._held_running(),
            self.ledger.ready,
            memory=self._memory(),
            bounds=self._bounds._replace(running=min(self._bounds.running, seats)),
            model=self.learned.model,
            speculation=self.learned.speculation,
            step=self.current_step + 1,
            begins_s=begins_s,
            ahead=bool(self._steps),
        )

    def _held_running(self) -> Sequence[Held]:
        """Who holds KV. Looked up only where that has changed: between most steps it has not."""
        if self.running != self._running_seen:
            by_id = self.ledger.by_id
            self._running_seen = self.running.copy()
            self._running_held = [by_id[request.request_id] for request in self.running]
        return self._running_held

    def _is_ready(self, held: Held) -> bool:
        request = held.request
        if request.num_stale_output_tokens and not request.drop_stale_output:
            return False
        if request.status == RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
            return self._handle_blocked_waiting_request(request)
        return _can_start(request)

    # Carrying it out.

    @contextmanager
    def _steered(self, plan: Plan, now_s: float) -> Iterator[None]:
        """While vLLM makes the step: its lists and bounds as the plan wants them."""
        for held in plan.promote:
            self.ledger.promote(held, promoted(held.job))
        for held in plan.preempt:
            self.running.remove(held.request)
            self._preempt_request(held.request, now_s, drop_stale_output=self.requires_kv_delivery)
        if self.num_spec_tokens:
            self._cut_drafts(plan)
        manager, started, offered = self.kv_cache_manager, self.running, self._offered(plan)
        waiting, reserve, watermark = self.waiting, self.scheduler_reserve_full_isl, manager.watermark_blocks
        self.waiting = FCFSRequestQueue(offered)
        self.scheduler_reserve_full_isl, manager.watermark_blocks = False, 0
        self._caps = plan.caps
        if plan.caps is not None:
            self.__dict__["_reserve_prefill_lookahead"] = self._lookahead_within_caps
        if plan.order is not None:
            self.running = _in_order(plan.order, started, self.ledger.by_id)
        try:
            yield
        finally:
            self._caps, self.scheduler_reserve_full_isl, manager.watermark_blocks = None, reserve, watermark
            self.__dict__.pop("_reserve_prefill_lookahead", None)
            self._put_waiting_back(waiting, offered)
            if plan.order is not None:
                self.running = _as_started(started, self.running)

    def _offered(self, plan: Plan) -> list[EngineRequest]:
        """Who may start: newcomers as planned, then those that are not the policy's."""
        start = plan.start
        if start and self.lora_config:
            start = within_loras(start, self._held_running(), self.lora_config.max_loras)
        others = [held for held in self.ledger.waiting if not held.planned] if self.ledger.unplanned else []
        return [held.request for held in (*start, *others)]

    def _put_waiting_back(self, waiting: Queue, offered: Sequence[EngineRequest]) -> None:
        """vLLM's own queue again, without those that have left it and with those preempted meanwhile."""
        left, self.waiting = self.waiting, waiting
        if not offered and not left:
            return
        still = set(left)
        gone = [request for request in offered if request not in still]
        if gone:
            waiting.remove_requests(gone)
        for request in reversed([request for request in left if request not in offered]):
            waiting.prepend_request(request)

    def _cut_drafts(self, plan: Plan) -> None:
        """Drafts to verify, as many as planned.

        Drafts that the worker keeps to itself are gone once their request has missed a step.
        """
        by_id, kept = self.ledger.by_id, self._last_computed if self._drafts_stay_with_worker else None
        computing = self.running if plan.order is None else [held.request for held in plan.order]
        for request in computing:
            drafts = request.spec_token_ids
            if drafts:
                most = plan.drafts.get(by_id[request.request_id].job.request.id, 0)
                if kept is not None and request.request_id not in kept:
                    most = 0
                if len(drafts) > most:
                    request.spec_token_ids = drafts[:most]

    def _capped(self, request: EngineRequest, num_computed_tokens: int, num_new_tokens: int) -> int:
        """As many tokens as planned. A newcomer's padding to a whole decode with drafts is left as it is."""
        most = self._caps.get(request.request_id) if self._caps is not None else None
        if most is None or num_new_tokens <= most:
            return num_new_tokens
        starts = request.status != RequestStatus.RUNNING
        padded = starts and most == 1 and request.num_tokens - num_computed_tokens == 1
        return num_new_tokens if padded else most

    # What became of it.

    def _begin(self, output: StepOutput, plan: Plan | None, now_s: float) -> None:
        """A step has been made: vLLM's requests are counted as they will be at its end."""
        ledger, computed = self.ledger, output.num_scheduled_tokens
        resumed = output.scheduled_cached_reqs.resumed_req_ids
        for engine_id in (*[new.req_id for new in output.scheduled_new_reqs], *resumed):
            ledger.start(ledger.by_id[engine_id])
        for engine_id, drafts in output.scheduled_spec_decode_tokens.items():
            ledger.by_id[engine_id].drafts_under_way += len(drafts)
        if plan is not None and plan.start:
            self._leave_loading_to_vllm(plan.start)
        if computed:
            decodes = self._view.running if plan is not None and plan.caps is None and self._view else None
            step = under_way(output, ledger.by_id, now_s, decodes)
            begins_s = max(self._busy_until_s, now_s) if self._steps else now_s
            self._busy_until_s = begins_s + self.learned.model.seconds(step.work)
            self._steps.append(step)
            self._last_computed = computed
        else:
            self._busy = False
        self._report(now_s)

    def _leave_loading_to_vllm(self, start: Sequence[Held]) -> None:
        for held in start:
            if held.request.status == RequestStatus.WAITING_FOR_REMOTE_KVS:
                self.ledger.leave_to_vllm(held)

    def _end(self, output: StepOutput, step: UnderWay | None, now_s: float) -> None:
        """A step has ended: requests stand as they are known, and it was measured."""
        ledger = self.ledger
        for engine_id, drafts in output.scheduled_spec_decode_tokens.items():
            if held := ledger.by_id.get(engine_id):
                held.drafts_under_way = max(held.drafts_under_way - len(drafts), 0)
        ledger.advance(output.num_scheduled_tokens, now_s)
        for engine_id in self.finished_req_ids:
            if held := ledger.by_id.get(engine_id):
                ledger.drop(held)
        if step is None:
            return
        duration_s = now_s - (self._ended_s if self._busy else step.asked_s)
        if duration_s > 0:
            self._ended = Measured(step.work, duration_s)
            self.learned.step(*self._ended)
        self._ended_s, self._busy = now_s, self.has_unfinished_requests()
        model = self.learned.model
        self._busy_until_s = now_s + sum([model.seconds(other.work) for other in self._steps])

    def _taken(self, output: StepOutput) -> UnderWay | None:
        """The step under way that this is the end of; None for one that computed nothing."""
        while self._steps and output.num_scheduled_tokens:
            step = self._steps.popleft()
            if step.output is output:
                return step
        return None

    def _drafted(self, output: StepOutput, brought: RunnerOutput) -> list[Drafted]:
        """Of every decode whose drafts were verified, how many were accepted."""
        drafted = []
        for engine_id, drafts in output.scheduled_spec_decode_tokens.items():
            held, row = self.ledger.by_id.get(engine_id), brought.req_id_to_index.get(engine_id)
            padding = drafts[0] < 0 and not self._drafts_stay_with_worker
            if held is None or row is None or padding or not brought.sampled_token_ids:
                continue
            if tokens := len(brought.sampled_token_ids[row]):
                drafted.append(Drafted(held.job.request.tier, len(drafts), min(tokens - 1, len(drafts))))
        return drafted

    def _report(self, now_s: float) -> None:
        if self._reports is None:
            return
        ledger = self.ledger
        standing = Standing(
            running=self._held_running(),
            waiting=ledger.waiting,
            memory=self._memory(),
            steps=self._steps,
            left_s=max(self._busy_until_s - now_s, 0.0) if self._steps else 0.0,
            speculation=self.learned.speculation,
            preemptions=ledger.preemptions,
        )
        self._reports.send(self._ended, standing)
        self._ended = None

    def _memory(self) -> Memory:
        pool = self.kv_cache_manager.block_pool
        groups = max(len(self.kv_cache_config.kv_cache_groups), 1)
        return Memory(pool.num_gpu_blocks - 1, pool.get_num_free_blocks(), self.block_size, groups)

    def _bounds_of(self, settings: Settings) -> Bounds:
        """vLLM's own bounds, or lower ones that were set."""
        spec = self.vllm_config.speculative_config
        slots = spec.max_num_new_slots_for_drafting * self.max_num_running_reqs if spec is not None else 0
        most = self.scheduler_config.max_num_batched_tokens - slots
        batch_tokens = min(self.max_num_scheduled_tokens, most if most > 0 else self.max_num_scheduled_tokens)
        return Bounds(
            min(settings.max_batch_tokens or batch_tokens, batch_tokens),
            min(settings.max_running or self.max_num_active_reqs, self.max_num_active_reqs),
            self.max_model_len - self.num_sampled_tokens_per_step,
        )

    def _can_be_steered(self) -> bool:
        """Whether policies understand this model's requests; where not, every step is vLLM's own."""
        config = self.vllm_config.model_config
        unlike = {
            "chunked prefill is off": not self.scheduler_config.enable_chunked_prefill,
            "the model is an encoder and a decoder": config.is_encoder_decoder,
            "the model is a diffusion model": config.is_diffusion,
        }
        reasons = [reason for reason, holds in unlike.items() if holds]
        if reasons:
            log.warning("penstock: vLLM schedules by its own rules, because %s", ", ".join(reasons))
        return not reasons


class PenstockScheduler(Steering, Scheduler):  # type: ignore[misc]  # vLLM has no types to check by
    """What `--scheduler-cls` names. Where vLLM schedules asynchronously it becomes the one that does."""

    def __new__(cls, *args: Any, **kwargs: Any) -> "PenstockScheduler":
        """Of the kind that vLLM's configuration asks for."""
        config = kwargs["vllm_config"] if "vllm_config" in kwargs else args[0]
        ahead = cls is PenstockScheduler and config.scheduler_config.async_scheduling
        made: PenstockScheduler = super().__new__(PenstockAsyncScheduler if ahead else cls)
        return made


class PenstockAsyncScheduler(PenstockScheduler, AsyncScheduler):  # type: ignore[misc]
    """Plans a step while the one before is being computed."""


def _in_order(
    first: Sequence[Held], started: Sequence[EngineRequest], by_id: Mapping[str, Held]
) -> list[EngineRequest]:
    """Running requests as vLLM is to go through them. It takes blocks, where it must, from the last ones."""
    computing = {held.request.request_id for held in first}
    others = [by_id[request.request_id] for request in started if request.request_id not in computing]
    others.sort(key=lambda held: held.job.best_effort)
    return [held.request for held in (*first, *others)]


def _as_started(started: Sequence[EngineRequest], running: Sequence[EngineRequest]) -> list[EngineRequest]:
    """Running requests in the order they were started: those from before, then newcomers."""
    still, before = set(running), set(started)
    return [
        *[request for request in started if request in still],
        *[request for request in running if request not in before],
    ]


def _can_start(request: EngineRequest) -> bool:
    return request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)


def _additional(vllm_config: Any) -> Mapping[str, Any]:
    given = vllm_config.additional_config
    return given if isinstance(given, dict) else {}
