"""Executes a plan: sets vLLM's lists and bounds while vLLM makes the step.

Requests outside the plan keep their positions, in lists that are restored when the step is made.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from penstock_core.domain.request import promoted
from vllm.v1.core.sched.request_queue import FCFSRequestQueue

from penstock_vllm.caps import Capped
from penstock_vllm.drafts import cut_drafts
from penstock_vllm.engine import EngineRequest, Queue
from penstock_vllm.ledger import EngineLedger, HeldRequest
from penstock_vllm.plan import StepInstructions, within_loras


class PlanExecution(Capped):
    """A scheduler that makes the planned step. ledger: all requests of the engine."""

    ledger: EngineLedger
    _running_seen: Sequence[EngineRequest] = ()
    _running_held: Sequence[HeldRequest] = ()

    def _held_running(self) -> Sequence[HeldRequest]:
        """Return the requests that hold KV. Computed only after changes, which most steps do not have."""
        if self.running != self._running_seen:
            by_id = self.ledger.by_id
            self._running_seen = self.running.copy()
            self._running_held = [by_id[request.request_id] for request in self.running]
        return self._running_held

    @contextmanager
    def _execution_of(
        self, plan: StepInstructions, now_s: float, kept: Mapping[str, int] | None
    ) -> Iterator[None]:
        """Apply the plan while vLLM makes the step. kept: as in `cut_drafts`."""
        for held in plan.promote:
            self.ledger.promote(held, promoted(held.job))
        for held in plan.preempt:
            self.running.remove(held.request)
            self._preempt_request(held.request, now_s, drop_stale_output=self.requires_kv_delivery)
        if self.num_spec_tokens:
            computing = self.running if plan.order is None else [held.request for held in plan.order]
            cut_drafts(computing, plan.drafts, self.ledger.by_id, kept)
        with self._ordered(plan), self._offering(self._offered(plan)), self._capped_by(plan.caps):
            yield

    @contextmanager
    def _ordered(self, plan: StepInstructions) -> Iterator[None]:
        """Make vLLM visit running requests in the planned order."""
        if plan.order is None:
            yield
            return
        started = self.running
        self.running = _in_order(plan.order, started, self.ledger.by_id)
        try:
            yield
        finally:
            self.running = _as_started(started, self.running)

    @contextmanager
    def _offering(self, offered: list[EngineRequest]) -> Iterator[None]:
        """Offer vLLM only these waiting requests, which may use every free block."""
        manager, waiting = self.kv_cache_manager, self.waiting
        reserve, watermark = self.scheduler_reserve_full_isl, manager.watermark_blocks
        self.waiting = FCFSRequestQueue(offered)
        self.scheduler_reserve_full_isl, manager.watermark_blocks = False, 0
        try:
            yield
        finally:
            self.scheduler_reserve_full_isl, manager.watermark_blocks = reserve, watermark
            left, self.waiting = self.waiting, waiting
            if offered or left:
                _put_back(waiting, offered, left)

    def _offered(self, plan: StepInstructions) -> list[EngineRequest]:
        """Return the requests that may start: new ones as planned, then those in vLLM's queue outside the
        policy.

        vLLM keeps other requests, which already have memory, in a second queue, which is not changed.
        """
        start = plan.start
        if self.ledger.unplanned:
            by_id = self.ledger.by_id
            here = [by_id[request.request_id] for request in self.waiting]
            start = (*start, *[held for held in here if not held.planned])
        if start and self.lora_config:
            start = within_loras(start, self._held_running(), self.lora_config.max_loras)
        return [held.request for held in start]


def _put_back(waiting: Queue, offered: Sequence[EngineRequest], left: Queue) -> None:
    """Restore vLLM's own queue, without requests that have left it and with those preempted meanwhile."""
    still = set(left)
    gone = [request for request in offered if request not in still]
    if gone:
        waiting.remove_requests(gone)
    for request in reversed([request for request in left if request not in offered]):
        waiting.prepend_request(request)


def _in_order(
    first: Sequence[HeldRequest], started: Sequence[EngineRequest], by_id: Mapping[str, HeldRequest]
) -> list[EngineRequest]:
    """Return running requests in the order in which vLLM visits them. It preempts from the end."""
    computing = {held.request.request_id for held in first}
    others = [by_id[request.request_id] for request in started if request.request_id not in computing]
    others.sort(key=lambda held: held.job.best_effort)
    return [held.request for held in (*first, *others)]


def _as_started(started: Sequence[EngineRequest], running: Sequence[EngineRequest]) -> list[EngineRequest]:
    """Return running requests in the order they were started: earlier ones, then new ones."""
    still, before = set(running), set(started)
    return [
        *[request for request in started if request in still],
        *[request for request in running if request not in before],
    ]
