"""One replica: the state that all its sessions share.

A submitted request passes three stages: `intake` reads it, `admission` decides about it together with others
that arrived at the same time, `forwarding` sends it to the engine and its answer to the session's outbox.
Everything runs in one event loop, and no decision spans an await.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable
from itertools import count

import structlog
from penstock_core.forecast.snapshot import Snapshot
from penstock_proto import replica_pb2 as wire
from penstock_runtime.clock import monotonic

from penstock_sidecar.bounds import Bounds
from penstock_sidecar.engine.client import EngineClient, Probe
from penstock_sidecar.frames.messages import snapshot_message
from penstock_sidecar.metrics import Metrics
from penstock_sidecar.mirror.replica_mirror import ReplicaMirror
from penstock_sidecar.replica.accepted_requests import AcceptedRequests
from penstock_sidecar.replica.admission import AdmissionController
from penstock_sidecar.replica.intake import SubmitIntake
from penstock_sidecar.replica.router_answers import RouterAnswers
from penstock_sidecar.replica.serving import ServiceState, Serving
from penstock_sidecar.replica.session import Session
from penstock_sidecar.requests.estimates import Estimates
from penstock_sidecar.requests.faults import Faults
from penstock_sidecar.requests.forwarding import Forwarder
from penstock_sidecar.requests.gate import Gate, OpenGate
from penstock_sidecar.requests.replica_request import Owner, ReplicaRequest
from penstock_sidecar.requests.tickets import Tickets

log = structlog.get_logger()


def _ignore(*_: object) -> None:
    """Do nothing."""


class Replica:
    """Serves sessions, follows the engine's health, and drains.

    gate: holds requests before an engine with its own scheduler.
    tickets: prove to an engine that a request was accepted here.
    engine_lost: called when a request has lost its connection to the engine.
    serves_changed: called with whether new requests are accepted, when that may have changed.
    """

    def __init__(
        self,
        serving: Serving,
        mirror: ReplicaMirror,
        estimates: Estimates,
        engine: EngineClient,
        *,
        metrics: Metrics,
        bounds: Bounds,
        gate: Gate | None = None,
        tickets: Tickets | None = None,
        engine_lost: Callable[[], None] = _ignore,
        serves_changed: Callable[[bool], None] = _ignore,
    ) -> None:
        self._tiers = serving.tiers
        self._mirror, self._estimates = mirror, estimates
        self._metrics, self._bounds = metrics, bounds
        self._engine_lost, self._serves_changed = engine_lost, serves_changed
        self._now_s = monotonic  # the event loop's clock has milliseconds and stops within a turn
        self._ticked_s = self._now_s()
        self._key_prefix, self._numbers = os.urandom(3).hex(), count(1)
        self._last_snapshot = wire.Snapshot()
        self._sessions: dict[Session, None] = {}  # in the order of connection
        metrics.cached_tokens.set_function(mirror.prefixes.cached_tokens)
        self._reported_changes = 0  # changes of cached prefixes, at the last tick
        self._drained = asyncio.Event()
        self.state = ServiceState(serving.max_model_len)
        self._faults = Faults(metrics.faults)
        gate = OpenGate() if gate is None else gate
        tickets = Tickets() if tickets is None else tickets
        self.accepted = AcceptedRequests(mirror, estimates, gate, metrics=metrics, faults=self._faults)
        self._forwarder = Forwarder(
            engine,
            mirror,
            gate,
            self._faults,
            reads_fields=serving.reads_fields,
            tickets=tickets,
            answer_bytes=bounds.answer_bytes,
            engine_lost=engine_lost,
        )
        admission = AdmissionController(
            serving.policy,
            mirror,
            self.accepted,
            self._forwarder,
            tickets=tickets,
            estimates=estimates,
            state=self.state,
            metrics=metrics,
            faults=self._faults,
            bounds=bounds,
            on_accepted=self._send_burst_snapshots,
        )
        self._router_answers = RouterAnswers(
            mirror, self._forwarder, metrics=metrics, faults=self._faults, engine_lost=engine_lost
        )
        self._intake = SubmitIntake(
            serving, self.state, estimates, admission, mirror.prefixes, faults=self._faults, bounds=bounds
        )

    @property
    def unfinished(self) -> int:
        """The number of requests that were accepted and have not ended."""
        return len(self.accepted)

    def open_session(self) -> Session:
        """Return a session for a router that has connected."""
        session = Session(
            self.submit, self._router_answers.take, self.snapshot, self._mirror.prefixes, self._bounds
        )
        self._sessions[session] = None
        self._metrics.sessions.set(len(self._sessions))
        return session

    def close_session(self, session: Session) -> None:
        """Remove a session that has ended."""
        self._sessions.pop(session, None)
        self._metrics.sessions.set(len(self._sessions))

    def submit(self, submit: wire.Submit, owner: Owner, *, at_engine: bool = False) -> ReplicaRequest:
        """Accept a submitted request. If it cannot be served, it has ended on return.

        at_engine: whether it has reached the engine's port, where it waits for a ticket.
        """
        key = f"{self._key_prefix}-{next(self._numbers)}"
        request = ReplicaRequest(submit, key, owner, self._ended, self._now_s())
        request.at_engine = at_engine
        self._intake.take(request, submit)
        return request

    def engine_answer(self, request: ReplicaRequest, answer: wire.EngineAnswer) -> None:
        """Apply the state of an answer that does not pass this sidecar."""
        self._router_answers.take(request, answer)

    def snapshot(self) -> wire.Snapshot:
        """Return the replica's snapshot; the previous one if computing it fails."""
        with self._faults.within("snapshot"):
            self._last_snapshot = snapshot_message(self.load, self.state.engine_ready, self.state.draining)
        return self._last_snapshot

    def engine_up(self, probe: Probe) -> None:
        """Accept requests, because the engine is ready."""
        self.state.engine_ready = True
        self.state.max_model_len = probe.max_model_len or self.state.max_model_len
        log.info("engine up", max_model_len=self.state.max_model_len)
        self._changed()

    def engine_down(self, all_lost: bool) -> None:
        """Reject new requests, because the engine is down. all_lost: whether it has lost its requests."""
        self.state.engine_ready = False
        log.warning("engine down", unfinished=self.unfinished)
        self.accepted.engine_down(all_lost)
        self._changed()

    async def drain(self, deadline_s: float | None) -> int:
        """Reject new requests, return those that the engine has not begun, and wait for the others.

        Return the number of unfinished requests when all have ended, the deadline has passed, or `resume` is
        called.
        """
        if not self.state.draining:
            self.state.draining = True
            self._metrics.drains.inc()
            cached_tokens = self._mirror.prefixes.cached_tokens()
            log.info("draining", unfinished=self.unfinished, cached_tokens=cached_tokens)
            self._changed()
        self.accepted.return_waiting()
        self._drained.clear()
        if not self.accepted:
            self._drained.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                await self._drained.wait()
        return self.unfinished

    def resume(self) -> None:
        """Accept requests again after a drain."""
        if self.state.draining:
            self.state.draining = False
            log.info("resumed")
            self._drained.set()
            self._changed()

    async def close(self) -> None:
        """End every session and every request."""
        self.accepted.return_waiting()
        for session in self._sessions:
            session.close()
        self.accepted.cancel_all()
        await self._intake.close()
        await self._forwarder.closed()

    def tick(self) -> None:
        """Do periodic work. Called about every second."""
        now_s = self._now_s()
        self._metrics.telemetry_live.set(self._mirror.check(now_s))
        if self.accepted:
            self.accepted.end_unused(now_s)
            if self.accepted.end_overdue(self._load(now_s), now_s, self._bounds.silence_s):
                self._engine_lost()
        else:  # without requests nothing is measured, and estimates age
            self._estimates.observe_idle(now_s - self._ticked_s)
            self._metrics.time_scale.set(self._estimates.model.scale)
        self._ticked_s = now_s
        self._metrics.admission_margin.set(self._estimates.admission_margin(now_s))
        if self._mirror.prefixes.reported.count != self._reported_changes:
            self._reported_changes = self._mirror.prefixes.reported.count
            self.report_prefixes()
        self._metrics.load(self._load(now_s), self.unfinished, self.state.engine_ready, self.state.draining)
        for session in self._sessions:
            session.outbox.send_changes()

    def report_prefixes(self) -> None:
        """Send changed prefixes to all routers within `prefixes_s`."""
        for session in self._sessions:
            session.outbox.send_within(self._bounds.prefixes_s)

    def send_progress(self) -> None:
        """Send snapshots to routers that read answers from the engine, and so get no frames with output."""
        for session in self._sessions:
            if session.direct:
                session.outbox.send_within(self._bounds.direct_snapshot_s)

    def _ended(self, request: ReplicaRequest) -> None:
        """Count a request that has ended, and release its resources."""
        tier = request.tier if request.tier in self._tiers else "unknown"
        self._metrics.ends(tier, request.state.value).inc()
        if self.accepted.discard(request) and not self.accepted:
            self._drained.set()

    @property
    def load(self) -> Snapshot:
        """The current load."""
        return self._load(self._now_s())

    def _load(self, now_s: float) -> Snapshot:
        return self._mirror.snapshot(now_s, self._estimates.admission_model(now_s))

    def _send_burst_snapshots(self) -> None:
        """Send all routers a snapshot with the new requests, so that none decides by an old one."""
        within_s = self._bounds.burst_snapshot_s * len(self._sessions)
        for session in self._sessions:
            session.outbox.send_within(within_s)

    def _changed(self) -> None:
        self._serves_changed(self.state.serves)
        for session in self._sessions:
            session.outbox.send_changes()
