"""The state of answers that do not pass this sidecar: routers or gateways read them from the engine.

The engine's step reports have their progress. Routers, or the engine for gateways, report the rest: the end
of thinking, and whether the answer is complete or has failed.
"""

from collections.abc import Callable, Mapping

import structlog
from penstock_core.domain.request_lifecycle import State
from penstock_proto import replica_pb2 as wire
from penstock_proto.sse import EngineUsage
from penstock_runtime.clock import monotonic

from penstock_sidecar.metrics import Metrics
from penstock_sidecar.mirror.replica_mirror import ReplicaMirror
from penstock_sidecar.requests.faults import Faults
from penstock_sidecar.requests.forwarding import Forwarder
from penstock_sidecar.requests.replica_request import ReplicaRequest

log = structlog.get_logger()

REFUSED_STATUS = 502
"""Status of a request that the engine has refused. Its router has answered with the engine's own status."""


class RouterAnswers:
    """The state of answers that routers read from one replica's engine.

    engine_lost: called when a router has lost its connection to the engine.
    """

    def __init__(
        self,
        mirror: ReplicaMirror,
        forwarder: Forwarder,
        *,
        metrics: Metrics,
        faults: Faults,
        engine_lost: Callable[[], None],
    ) -> None:
        self._mirror, self._forwarder = mirror, forwarder
        self._metrics, self._faults, self._engine_lost = metrics, faults, engine_lost
        self._ends: Mapping[int, tuple[str, Callable[[ReplicaRequest, wire.EngineAnswer], None]]] = {
            wire.ANSWER_STATE_WHOLE: ("whole", self._whole),
            wire.ANSWER_STATE_FULL: ("full", lambda request, _: request.engine_full()),
            wire.ANSWER_STATE_REFUSED: (
                "refused",
                lambda request, _: request.engine_refused(REFUSED_STATUS, b""),
            ),
            wire.ANSWER_STATE_LOST: ("lost", self._lost),
            wire.ANSWER_STATE_UNREACHABLE: ("unreachable", self._unreachable),
        }

    def take(self, request: ReplicaRequest, answer: wire.EngineAnswer) -> None:
        """Apply a message about a request. States of a later version are ignored."""
        if request.ended or not request.direct:
            return
        with self._faults.of(request, "direct"):
            if answer.state == wire.ANSWER_STATE_BEGUN and request.state is State.WAITING:
                request.begun_at_router(monotonic())
            if answer.thinking_tokens:
                self._mirror.thinking_ended(request.key, answer.thinking_tokens, monotonic())
            if answer.state in self._ends:
                outcome, act = self._ends[answer.state]
                self._metrics.direct(outcome).inc()
                act(request, answer)

    def _whole(self, request: ReplicaRequest, answer: wire.EngineAnswer) -> None:
        """End a request whose router has received the complete answer."""
        usage = None
        if answer.HasField("prompt_tokens") and answer.HasField("completion_tokens"):
            cached_tokens = answer.cached_tokens if answer.HasField("cached_tokens") else None
            usage = EngineUsage(answer.prompt_tokens, answer.completion_tokens, cached_tokens)
        reported_tokens = sum(map(self._mirror.tokens_out, request.keys))
        tokens, now_s = max(answer.tokens, reported_tokens), monotonic()
        times_s = self._mirror.token_times_s(request.key, max(tokens // request.sequences, 1), now_s)
        if request.state is State.WAITING:
            request.begun_at_router(now_s)
        request.read_by_router(tokens, times_s[0] if times_s else request.first_s, now_s)
        self._forwarder.finish(request, usage)

    def _lost(self, request: ReplicaRequest, _: wire.EngineAnswer) -> None:
        log.warning("engine lost by a router", request=request.request_id)
        request.engine_lost()
        self._engine_lost()

    def _unreachable(self, request: ReplicaRequest, _: wire.EngineAnswer) -> None:
        """Forward a request through this sidecar, because its router cannot reach the engine."""
        request.direct = False
        self._forwarder.start(request)
