"""Envoy's `ext_proc`, as used by the endpoint picker protocol of the Gateway API Inference Extension.

Each request is a call of its own, which ends with its endpoints. A client may send its body slowly, so
conversations are bounded in number and in time, and their bodies in bytes, which count as they arrive: a
buffered body is one message. Conversations beyond the bound are rejected immediately, and the gateway then
acts as configured for a missing picker.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Sequence

from envoy.service.ext_proc.v3 import external_processor_pb2 as proc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from penstock_routing.request.byte_budget import BodyBytes, BudgetExceeded
from penstock_runtime.grpc.bounds import GrpcBounds
from penstock_runtime.grpc.call import GrpcCall
from penstock_runtime.grpc.server import Handlers, grpc_serving, unary
from penstock_runtime.grpc.status import RpcError, Status
from penstock_runtime.openai_errors import ApiError

from penstock_picker.conversation import Conversation, ConversationState, OutOfOrder
from penstock_picker.picker import Picker

CONVERSATIONS = 512
"""Most conversations at once."""

STOP_S = 1.0
"""Longest wait for open conversations when the server is stopped."""

BESIDE_BODY_BYTES = 2**20
"""Most bytes of a message beside the body: headers and metadata."""

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
SERVICES = frozenset({"", "readiness", SERVICE})
"""Health services that are SERVING while a replica takes requests. `liveness` is always SERVING."""


class ExternalProcessor:
    """The gRPC service."""

    def __init__(self, picker: Picker) -> None:
        self._picker = picker
        self._open = 0

    async def process(self, call: GrpcCall) -> None:
        """Receive one request and answer with its endpoints. Raises RpcError."""
        if self._open >= CONVERSATIONS:
            raise RpcError(Status.RESOURCE_EXHAUSTED, f"over {CONVERSATIONS} requests at a time")
        self._open += 1
        try:
            async with asyncio.timeout(self._picker.body_timeout_s):
                await self._converse(call)
        except TimeoutError:
            raise RpcError(Status.DEADLINE_EXCEEDED, "the request took too long to arrive") from None
        except OutOfOrder as error:
            raise RpcError(Status.INVALID_ARGUMENT, str(error)) from None
        finally:
            self._open -= 1

    async def _converse(self, call: GrpcCall) -> None:
        conversation = Conversation(self._picker.max_body_bytes)
        with BodyBytes(self._picker.budget) as body_bytes:
            call.count_incomplete = body_bytes.arriving
            try:
                await self._exchange(call, conversation, body_bytes)
            except BudgetExceeded as full:
                self._picker.refused(full, conversation.head)
                await call.write(*conversation.answer(full))
            finally:
                call.count_incomplete = None

    async def _exchange(self, call: GrpcCall, conversation: Conversation, body_bytes: BodyBytes) -> None:
        """Receive and answer until the conversation is over. Raises BudgetExceeded during a message."""
        while conversation.state is not ConversationState.DONE:
            message = await call.next(proc.ProcessingRequest)
            if message is None:
                return
            for answer in await self._answers(conversation, message, body_bytes):
                await call.write(answer)

    async def _answers(
        self, conversation: Conversation, message: proc.ProcessingRequest, body_bytes: BodyBytes
    ) -> Sequence[proc.ProcessingResponse]:
        try:
            body_bytes.add(len(message.request_body.body))
            answers = conversation.receive(message)
        except ApiError as error:
            self._picker.refused(error, conversation.head)
            return conversation.answer(error)
        if conversation.asked is None:
            return answers
        try:
            return conversation.answer(await self._picker.pick(conversation.asked))
        except ApiError as error:
            return conversation.answer(error)


def handlers_of(picker: Picker, ready: Callable[[], bool]) -> Handlers:
    """Return the handlers of Envoy's service and of gRPC's health service. ready: is the picker ready?"""

    async def check(request: HealthCheckRequest, peer: str) -> HealthCheckResponse:
        if request.service != "liveness" and request.service not in SERVICES:
            raise RpcError(Status.NOT_FOUND, f"there is no service '{request.service[:128]}'")
        serves = request.service == "liveness" or ready()
        status = HealthCheckResponse.SERVING if serves else HealthCheckResponse.NOT_SERVING
        return HealthCheckResponse(status=status)

    return {
        f"/{SERVICE}/Process": ExternalProcessor(picker).process,
        "/grpc.health.v1.Health/Check": unary(HealthCheckRequest, check),
    }


def bounds_of(picker: Picker) -> GrpcBounds:
    """Return the bounds of gateways' connections.

    A connection may have more calls than are served, because a gateway lets those over its bound wait. A
    buffered body is one message.
    """
    return GrpcBounds(calls=2 * CONVERSATIONS, message_bytes=picker.max_body_bytes + BESIDE_BODY_BYTES)


@contextlib.asynccontextmanager
async def ext_proc_serving(
    picker: Picker, ready: Callable[[], bool], listener: socket.socket, tls: ssl.SSLContext | None = None
) -> AsyncIterator[None]:
    """Serve within the block. Open conversations end soon after it."""
    handlers, bounds = handlers_of(picker, ready), bounds_of(picker)
    async with grpc_serving(handlers, listener, tls, stop_s=STOP_S, bounds=bounds):
        yield
