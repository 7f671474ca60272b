"""The calls of `penstock.v1.Replica`."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from ipaddress import ip_address
from typing import Any
from urllib.parse import unquote

import grpc
import orjson
import structlog
from penstock_core.timing.time_model import to_json
from penstock_proto import replica_pb2 as wire
from penstock_proto import replica_pb2_grpc

from penstock_sidecar.metrics import Metrics
from penstock_sidecar.mirror.replica_mirror import ReplicaMirror
from penstock_sidecar.replica.replica import Replica
from penstock_sidecar.replica.session import ProtocolError
from penstock_sidecar.requests.estimates import Estimates

log = structlog.get_logger()

MOST_TOKENS = 64
"""Most tokens of one `Detokenize` call."""

FINAL_STATUS_S = 1.0
"""Longest wait for a router that has fallen behind to receive the status that ends its session."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The description of a replica.

    http_port: port for gateways; 0 if it does not serve HTTP.
    engine_port: port for routers' requests with a ticket; 0 if they cannot. engine_tls_port: same, over TLS.
    """

    name: str
    model: str
    policy: str
    metrics_url: str = ""
    http_port: int = 0
    engine_port: int = 0
    engine_tls_port: int = 0


class ReplicaService(replica_pb2_grpc.ReplicaServicer):
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

    async def Session(  # type: ignore[override]  # writes to the context, so that a cancel ends it in order
        self,
        request_iterator: AsyncIterator[wire.RouterFrame],
        context: "grpc.aio.ServicerContext[Any, Any]",
    ) -> None:
        """Serve one router until it ends the session."""
        session = self._replica.open_session()
        try:
            await session.run(request_iterator, context.write)
            if session.outbox.behind.is_set():
                await self._end_behind(context)
        except ProtocolError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        finally:
            self._replica.close_session(session)

    async def Describe(
        self, request: wire.DescribeRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> wire.DescribeReply:
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
            http_port=self._identity.http_port,
            engine_port=self._identity.engine_port,
            engine_tls_port=self._identity.engine_tls_port,
        )

    async def Detokenize(
        self, request: wire.DetokenizeRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> wire.DetokenizeReply:
        """Return the engine's text of tokens."""
        if len(request.tokens) > MOST_TOKENS:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"more than {MOST_TOKENS} tokens")
        text = await self._detokenize(request.tokens)
        if text is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the engine did not return the text")
        return wire.DetokenizeReply(text=text)

    async def Drain(
        self, request: wire.DrainRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> wire.DrainReply:
        """Drain the replica. Return when all accepted requests have ended, or the deadline has passed."""
        await _require_local(context)
        unfinished = await self._replica.drain(request.deadline_s or None)
        return wire.DrainReply(unfinished=unfinished)

    async def Resume(
        self, request: wire.ResumeRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> wire.ResumeReply:
        """Accept requests again."""
        await _require_local(context)
        if self._replica.state.stopping:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "this replica is stopping")
        self._replica.resume()
        return wire.ResumeReply()

    async def _end_behind(self, context: "grpc.aio.ServicerContext[Any, Any]") -> None:
        self._metrics.routers_behind.inc()
        log.warning("router behind", peer=context.peer())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FINAL_STATUS_S):
                await context.abort(
                    grpc.StatusCode.RESOURCE_EXHAUSTED, "this router does not read its frames"
                )


async def _require_local(context: "grpc.aio.ServicerContext[Any, Any]") -> None:
    """Abort the call unless its peer is on this machine, because routers must not drain replicas."""
    if not is_local(context.peer()):
        log.warning("drain or resume refused", peer=context.peer())
        await context.abort(
            grpc.StatusCode.PERMISSION_DENIED,
            "only processes on this replica's machine may call this",
        )


def is_local(peer: str) -> bool:
    """Return whether a gRPC peer, like `ipv4:127.0.0.1:4711`, is on this machine."""
    kind, _, where = peer.partition(":")
    if kind == "unix":
        return True
    host = unquote(where.rpartition(":")[0]).strip("[]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
