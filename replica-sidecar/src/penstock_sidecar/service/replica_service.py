"""The calls of `penstock.v1.Replica`."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version

import orjson
import structlog
from penstock_core.timing.time_model import to_json
from penstock_proto import replica_pb2 as wire
from penstock_runtime.grpc.call import GrpcCall
from penstock_runtime.grpc.status import RpcError, Status
from penstock_runtime.serving import is_loopback

from penstock_sidecar.metrics import Metrics
from penstock_sidecar.mirror.replica_mirror import ReplicaMirror
from penstock_sidecar.replica.replica import Replica
from penstock_sidecar.replica.session import ProtocolError
from penstock_sidecar.requests.estimates import Estimates

log = structlog.get_logger()

MOST_TOKENS = 64
"""Most tokens of one `Detokenize` call."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The description of a replica.

    http_port: returns the port for gateways now; 0 if it does not serve HTTP.
    engine_port: port for routers' requests with a ticket; 0 if they cannot. engine_tls_port: same, over TLS.
    """

    name: str
    model: str
    policy: str
    metrics_url: str = ""
    http_port: Callable[[], int] = int
    engine_port: int = 0
    engine_tls_port: int = 0


class ReplicaService:
    """The service `penstock.v1.Replica` of one replica."""

    def __init__(
        self,
        identity: Identity,
        replica: Replica,
        mirror: ReplicaMirror,
        estimates: Estimates,
        metrics: Metrics,
        *,
        detokenize: Callable[[Sequence[int]], Awaitable[str | None]],
    ) -> None:
        self._detokenize = detokenize
        self._identity, self._replica, self._mirror = identity, replica, mirror
        self._estimates, self._metrics = estimates, metrics

    async def session(self, call: GrpcCall) -> None:
        """Serve one router until it ends the session."""
        session = self._replica.open_session()
        try:
            await session.run(partial(call.receive, wire.RouterFrame), call.write)
        except ProtocolError as error:
            raise RpcError(Status.INVALID_ARGUMENT, str(error)) from None
        finally:
            self._replica.close_session(session)
        if session.outbox.behind.is_set():
            self._metrics.routers_behind.inc()
            log.warning("router behind", peer=call.peer)
            raise RpcError(Status.RESOURCE_EXHAUSTED, "this router does not read its frames")

    async def describe(self, request: wire.DescribeRequest, peer: str) -> wire.DescribeReply:
        """Return the description of this replica."""
        return wire.DescribeReply(
            replica=self._identity.name,
            model=self._identity.model,
            max_model_len=self._replica.state.max_model_len,
            policy=self._identity.policy,
            time_model_json=orjson.dumps(to_json(self._estimates.fitted)).decode(),
            kv_tokens_total=self._mirror.kv_tokens_total,
            version=version("penstock-sidecar"),
            engine_ready=self._replica.state.engine_ready,
            metrics_url=self._identity.metrics_url,
            http_port=self._identity.http_port(),
            engine_port=self._identity.engine_port,
            engine_tls_port=self._identity.engine_tls_port,
        )

    async def detokenize(self, request: wire.DetokenizeRequest, peer: str) -> wire.DetokenizeReply:
        """Return the engine's text of tokens."""
        if len(request.tokens) > MOST_TOKENS:
            raise RpcError(Status.INVALID_ARGUMENT, f"more than {MOST_TOKENS} tokens")
        text = await self._detokenize(request.tokens)
        if text is None:
            raise RpcError(Status.UNAVAILABLE, "the engine did not return the text")
        return wire.DetokenizeReply(text=text)

    async def drain(self, request: wire.DrainRequest, peer: str) -> wire.DrainReply:
        """Drain the replica. Return when all accepted requests have ended, or the deadline has passed."""
        _require_local(peer)
        unfinished = await self._replica.drain(request.deadline_s or None)
        return wire.DrainReply(unfinished=unfinished)

    async def resume(self, request: wire.ResumeRequest, peer: str) -> wire.ResumeReply:
        """Accept requests again."""
        _require_local(peer)
        if self._replica.state.stopping:
            raise RpcError(Status.FAILED_PRECONDITION, "this replica is stopping")
        self._replica.resume()
        return wire.ResumeReply()


def _require_local(peer: str) -> None:
    """Raise RpcError unless the peer is on this machine, because routers must not drain replicas."""
    if not is_loopback(peer):
        log.warning("drain or resume refused", peer=peer)
        raise RpcError(Status.PERMISSION_DENIED, "only processes on this replica's machine may call this")
