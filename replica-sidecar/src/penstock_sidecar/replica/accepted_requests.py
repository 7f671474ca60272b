"""Requests that this replica has accepted and that have not ended."""

import structlog
from penstock_core.domain.judgement import exceeds
from penstock_core.domain.request_lifecycle import State
from penstock_core.domain.slo import Targets
from penstock_core.domain.ticket import VALID_S
from penstock_core.domain.verdict import Admitted
from penstock_core.forecast.overdue import Expected, Signs, Where, is_overdue
from penstock_core.forecast.snapshot import Snapshot

from penstock_sidecar.metrics import Metrics
from penstock_sidecar.mirror.replica_mirror import ReplicaMirror
from penstock_sidecar.requests.estimates import Estimates
from penstock_sidecar.requests.faults import Faults
from penstock_sidecar.requests.gate import Gate
from penstock_sidecar.requests.replica_request import ReplicaRequest

UNUSED_S = VALID_S + 2.0
"""Age at which a ticket is unused if no report has shown its request. It is then invalid. An engine reports
every step, and every second when idle."""

log = structlog.get_logger()


class AcceptedRequests:
    """The accepted requests by key, which are also in the mirror.

    Learns from each request that ends, and ends those that the engine has lost.
    sequences: number of answers that they request.
    """

    def __init__(
        self,
        mirror: ReplicaMirror,
        estimates: Estimates,
        gate: Gate,
        *,
        metrics: Metrics,
        faults: Faults,
    ) -> None:
        self._mirror, self._estimates, self._gate = mirror, estimates, gate
        self._metrics, self._faults = metrics, faults
        self._requests: dict[str, ReplicaRequest] = {}
        self._best_effort: set[str] = set()
        self.sequences = 0

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def best_effort(self) -> int:
        """The number of answers that were accepted as best effort."""
        return len(self._best_effort)

    def add(self, request: ReplicaRequest, *, best_effort: bool, now_s: float) -> None:
        """Add a request with its verdict."""
        assert request.body is not None and request.job is not None
        request.job = request.job._replace(best_effort=best_effort)
        self._requests[request.key] = request
        self.sequences += request.sequences
        if best_effort:
            self._best_effort.update(request.keys)
        body = request.body
        counted = (
            body.prompt_token_ids is not None and body.prompts == 1
        )  # of several prompts, only the longest is counted
        self._mirror.prompt_sent(request.key, body.marks)
        for job in request.jobs:
            self._mirror.accept(job, now_s, prompt_known=counted, timed=not request.shows_output)

    def discard(self, request: ReplicaRequest) -> bool:
        """Remove a request that has ended, and learn from it. Return whether it had been accepted."""
        if self._requests.pop(request.key, None) is None:
            return False
        with self._faults.within("end"):
            if request.state is State.FINISHED:
                self._learn_cached(request)
                self._learn_delivery(request)
            self._free(request)
            if request.state is State.FINISHED:
                self._learn(request)
        return True

    def prompt_known(self, key: str, prompt_tokens: int) -> None:
        """Learn the length of a request's prompt from the engine's report."""
        request = self._requests.get(key)
        if request is not None and request.body is not None and request.body.prompts == 1:
            self._estimates.observe_prompt(request.body, prompt_tokens)
            request.prompt_reported = True

    def return_waiting(self) -> None:
        """Return requests that the engine has not begun to their routers, which try other replicas."""
        for request in list(self._requests.values()):
            if request.state is State.WAITING and not self._is_begun(request):
                self._metrics.returned.inc()
                with self._faults.of(request, "drain"):
                    request.returned()

    def engine_down(self, all_lost: bool) -> None:
        """End requests of an engine that is down: those that it has not received, or all if all are lost."""
        self._mirror.lose_reports()
        for request in list(self._requests.values()):
            if all_lost or self._gate.holds(request.key):
                with self._faults.of(request, "engine"):
                    request.engine_lost()

    def end_overdue(self, now: Snapshot, now_s: float, silence_s: float) -> bool:
        """End requests without progress at the engine. Return whether there were any."""
        overdue = [
            (request, signs)
            for request in self._requests.values()
            if not self._gate.holds(request.key)
            and (signs := self._overdue(request, now, now_s, silence_s)) is not None
        ]
        for request, signs in overdue:
            log.warning(
                "request lost in the engine",
                request=request.request_id,
                at=signs.where.value,
                silent_s=round(now_s - signs.own_s, 1),
            )
            self._metrics.stalled.labels(request.tier, signs.where.value).inc()
            with self._faults.of(request, "engine"):
                request.engine_lost()
        return bool(overdue)

    def end_unused(self, now_s: float) -> None:
        """End requests whose tickets have expired unused."""
        for request in list(self._requests.values()):
            if not request.direct:
                continue
            signs = self._mirror.signs(request.key, shows_output=False)
            if signs is not None and signs.where is Where.COMING and now_s - signs.own_s > UNUSED_S:
                log.warning("ticket not used", request=request.request_id)
                self._metrics.direct("unused").inc()
                with self._faults.of(request, "direct"):
                    request.engine_lost()

    def cancel_all(self) -> None:
        """Cancel all requests."""
        for request in list(self._requests.values()):
            request.cancelled()

    def _is_begun(self, request: ReplicaRequest) -> bool:
        """Return whether the engine has probably begun a request."""
        if self._gate.holds(request.key):
            return False
        return self._mirror.computes(request.key, shows_output=request.shows_output)

    def _overdue(
        self, request: ReplicaRequest, now: Snapshot, now_s: float, silence_s: float
    ) -> Signs | None:
        """Return the last signs of a request if all of its answers are overdue; else None."""
        expected, signs = _expected(request, now), None
        for key in request.keys:
            signs = self._mirror.signs(key, request.shows_output)
            if signs is None or not is_overdue(signs, expected, now_s, silence_s):
                return None
        return signs

    def _free(self, request: ReplicaRequest) -> None:
        self._best_effort.difference_update(request.keys)
        self.sequences -= request.sequences
        for key in request.keys:
            self._mirror.forget(key)
        engine_full = request.state is State.REJECTED
        if engine_full:
            self._metrics.engine_full.inc()
        self._gate.ended(request.key, engine_full)

    def _learn_cached(self, request: ReplicaRequest) -> None:
        """Learn the cached tokens of a prompt from a complete answer."""
        usage, body, job = request.usage, request.body, request.job
        assert usage is not None and body is not None and job is not None
        if body.prompts > 1 or request.sequences > 1:
            return
        self._mirror.answered(request.key, usage)
        if usage.cached_tokens is not None:
            planned_tokens = 0 if job.unheld_blocks is None else job.computed_tokens
            self._metrics.cached(planned_tokens, usage.cached_tokens, usage.prompt_tokens)

    def _learn_delivery(self, request: ReplicaRequest) -> None:
        """Learn the time of delivery from a stream, whose first output is its first token."""
        shown_s = request.first_shown_s
        if request.sequences > 1 or shown_s is None:
            return
        seconds = self._mirror.delivery_s(request.key, shown_s)
        if seconds is not None:
            self._estimates.observe_delivery(seconds)
            self._metrics.delivery.set(self._estimates.delivery_s)

    def _learn(self, request: ReplicaRequest) -> None:
        """Learn lengths and durations from a complete answer."""
        self._metrics.ttft(request.tier).observe(request.first_s - request.arrived_s)
        if request.tokens > 1:
            self._metrics.tpot(request.tier).observe(request.tpot_s)
        usage, body, job = request.usage, request.body, request.job
        assert usage is not None and body is not None and job is not None
        if not request.prompt_reported and body.prompts == 1:
            self._estimates.observe_prompt(body, usage.prompt_tokens)
        answer_tokens = usage.completion_tokens // request.sequences
        self._estimates.observe_answer(job.request, usage.prompt_tokens // body.prompts, answer_tokens)
        if isinstance(request.verdict, Admitted):
            self._estimates.observe_judgement(_met_slo(request, job.request.targets), request.last_s)


def _met_slo(request: ReplicaRequest, targets: Targets) -> bool:
    """Return whether a finished request met its targets, as far as the sidecar knows.

    TPOT is the mean over the answer, so a single late window is not detected. If thinking and answer have
    separate targets, the looser one counts. A request's times here contain the learned delivery, by which its
    targets are less than its client's.
    """
    first_s = request.first_shown_s or request.first_s
    looser_s = max(filter(None, (targets.tpot_s, targets.answer_tpot_s)), default=None)
    return not (
        exceeds(first_s - request.arrived_s - request.learned_delivery_s, targets.ttft_s)
        or exceeds(request.last_s - request.arrived_s - request.learned_delivery_s, targets.e2e_s)
        or exceeds(request.tpot_s, looser_s)
    )


def _expected(request: ReplicaRequest, now: Snapshot) -> Expected:
    """Return the planner's forecast for an accepted request."""
    assert request.job is not None
    first_s, step_s = 0.0, now.step_s
    if isinstance(verdict := request.verdict, Admitted):
        first_s, step_s = verdict.ttft_predicted_s, max(step_s, verdict.tpot_predicted_s)
    return Expected(first_s, step_s, now.work_s, request.job.request.max_output_tokens)
