"""Admission of requests, and the actions that follow from verdicts."""

from collections.abc import Callable, Sequence
from typing import Any

import structlog
from penstock_core.domain.policy import Policy
from penstock_core.domain.replica_admission import AdmissionState, decide, joint_verdict
from penstock_core.domain.verdict import BestEffort, Rejected, Verdict
from penstock_runtime.clock import monotonic

from penstock_sidecar.bounds import Bounds
from penstock_sidecar.frames.messages import verdict_labels
from penstock_sidecar.metrics import Metrics
from penstock_sidecar.mirror.replica_mirror import ReplicaMirror
from penstock_sidecar.replica.accepted_requests import AcceptedRequests
from penstock_sidecar.replica.admission_queue import AdmissionQueue
from penstock_sidecar.replica.serving import ServiceState
from penstock_sidecar.requests.estimates import Estimates
from penstock_sidecar.requests.faults import Faults
from penstock_sidecar.requests.forwarding import Forwarder
from penstock_sidecar.requests.replica_request import ReplicaRequest
from penstock_sidecar.requests.tickets import Tickets

log = structlog.get_logger()


class AdmissionController:
    """Decides about requests in groups, and forwards the accepted ones.

    on_accepted: called after a decision by which requests were accepted.
    """

    def __init__(
        self,
        policy: Policy[Any],
        mirror: ReplicaMirror,
        accepted: AcceptedRequests,
        forwarder: Forwarder,
        *,
        tickets: Tickets,
        estimates: Estimates,
        state: ServiceState,
        metrics: Metrics,
        faults: Faults,
        bounds: Bounds,
        on_accepted: Callable[[], None],
    ) -> None:
        self._policy, self._state, self._mirror, self._estimates = policy, state, mirror, estimates
        self._accepted, self._forwarder, self._tickets = accepted, forwarder, tickets
        self._metrics, self._faults, self._bounds = metrics, faults, bounds
        self._on_accepted = on_accepted
        self._queue = AdmissionQueue(self._decide, bounds)

    @property
    def waiting(self) -> int:
        """The number of requests that wait for their verdict."""
        return len(self._queue)

    def add(self, request: ReplicaRequest) -> None:
        """Queue a request that has a job."""
        self._queue.add(request)

    def give_verdict(self, request: ReplicaRequest, verdict: Verdict) -> None:
        """Give a request its verdict. An accepted one is added to the mirror.

        It is forwarded, unless its router gets a ticket and sends it to the engine itself.
        """
        label, reason = verdict_labels(verdict)
        self._metrics.verdicts(request.tier, label, reason).inc()
        log.debug(label, request=request.request_id, tier=request.tier, reason=reason)
        if isinstance(verdict, Rejected):
            request.decided(verdict)
            return
        now_s = monotonic()
        request.direct = request.at_engine or (request.takes_ticket and self._tickets.admit_routers)
        self._accepted.add(request, best_effort=isinstance(verdict, BestEffort), now_s=now_s)
        if request.direct:
            request.decided(verdict, self._tickets.for_router(request, verdict, now_s))
        else:
            request.decided(verdict)
            self._forwarder.start(request)

    def _decide(self, candidates: Sequence[ReplicaRequest]) -> None:
        """Decide about a group. A request for several answers is planned alone: all are accepted, or none."""
        before = len(self._accepted)
        self._decide_together([request for request in candidates if request.sequences == 1])
        for request in candidates:
            if request.sequences > 1:
                self._decide_together([request])
        if len(self._accepted) > before:
            self._on_accepted()

    def _decide_together(self, candidates: Sequence[ReplicaRequest]) -> None:
        """Decide by one plan. If that fails, each request is planned alone, and ends if that fails too."""
        if not candidates:
            return
        try:
            verdicts = self._verdicts(candidates)
        except Exception:
            if len(candidates) == 1:
                self._faults.count("planning", candidates[0])
            else:
                for request in candidates:
                    self._decide_together([request])
            return
        for request, verdict in zip(candidates, verdicts, strict=True):
            with self._faults.of(request, "verdict"):
                self.give_verdict(request, verdict)

    def _update_cached(self, request: ReplicaRequest) -> None:
        """Update the cached tokens of a prompt, which may have changed since it was read."""
        if request.job is not None and request.body is not None:
            request.job = self._mirror.candidate(request.job, request.body.marks)

    def _verdicts(self, candidates: Sequence[ReplicaRequest]) -> Sequence[Verdict]:
        """Return one verdict for each request. A request for several answers must be the only one."""
        for request in candidates:
            self._update_cached(request)
        jobs = [job for request in candidates for job in request.jobs]
        state, held = self._state, self._accepted
        admitted_state = AdmissionState(state.draining, state.engine_ready, held.sequences, held.best_effort)
        began_s = monotonic()
        view = self._mirror.view(began_s, self._estimates.admission_model(began_s))
        verdicts = decide(self._policy, view, jobs, admitted_state, self._bounds.in_flight_limits)
        self._metrics.planned(monotonic() - began_s)
        if len(verdicts) != len(jobs):
            raise ValueError(f"{len(verdicts)} verdicts for {len(jobs)} answers")
        return verdicts if len(candidates) == len(jobs) else [joint_verdict(verdicts)]
