"""Envoy's `ext_proc`, as used by the endpoint picker protocol of the Gateway API Inference Extension.

It runs on gRPC's threaded server, which uses half the CPU of grpc.aio. Each conversation occupies a thread,
even while a client sends its body slowly, so conversations are bounded in number and in time. Conversations
beyond the bound are rejected immediately, and the gateway then acts as configured for a missing picker.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from time import monotonic

import grpc
import structlog
from envoy.service.ext_proc.v3 import external_processor_pb2 as proc
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as proc_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from penstock_routing.flags import Certificate
from penstock_runtime.serving import StartError

from penstock_picker.conversation import Conversation, ConversationState, OutOfOrder
from penstock_picker.pick import Picked
from penstock_picker.picker import Call, Picker

CONVERSATIONS = 512
"""Most conversations at once. Each has a thread, which is created when it is first needed."""

SWEEP_S = 0.5
"""Interval of checks for conversations that last too long."""

SWEEPER = "ext_proc-sweep"
"""Name of the thread that makes these checks."""

STOP_S = 1.0
"""Longest wait for open conversations when the server is stopped."""

ANSWER_S = 5.0
"""Longest wait for a decision of shared limits. Calls to Redis time out far earlier."""

SERVICES = frozenset({"", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor"})
"""Health services that are SERVING while a replica takes requests. `liveness` is always SERVING."""

log = structlog.get_logger()


class ExternalProcessor(proc_grpc.ExternalProcessorServicer):  # type: ignore[misc]
    """The gRPC service. loop: event loop on which the picker follows its replicas."""

    def __init__(self, picker: Picker, loop: asyncio.AbstractEventLoop) -> None:
        self._picker, self._loop = picker, loop
        self._open: dict[grpc.ServicerContext, float] = {}  # start time of each conversation

    def Process(
        self, request_iterator: Iterator[proc.ProcessingRequest], context: grpc.ServicerContext
    ) -> Iterator[proc.ProcessingResponse]:
        """Receive one request and return its endpoints."""
        conversation = Conversation(self._pick, self._picker.max_body_bytes)
        self._open[context] = monotonic()
        try:
            for message in request_iterator:
                yield from conversation.receive(message)
                if conversation.state is ConversationState.DONE:
                    return
        except OutOfOrder as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except grpc.RpcError:  # Envoy has ended the call, or it took too long
            return
        finally:
            self._open.pop(context, None)

    def sweep(self) -> None:
        """End conversations in which the request takes too long to arrive."""
        oldest_s = monotonic() - self._picker.body_timeout_s
        for context, began_s in list(self._open.items()):
            if began_s < oldest_s:
                context.cancel()

    def _pick(self, call: Call) -> Picked:
        if not self._picker.shares_limits:
            return self._picker.pick(call)
        picking = asyncio.run_coroutine_threadsafe(self._picker.pick_with_shared_limits(call), self._loop)
        return picking.result(ANSWER_S)


class PickerHealth(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """gRPC's health service with the names of the endpoint picker protocol.

    ready: returns whether the picker is ready.
    """

    def __init__(self, ready: Callable[[], bool]) -> None:
        self._ready = ready

    def Check(
        self, request: health_pb2.HealthCheckRequest, context: grpc.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        """Return the status of a service."""
        if request.service != "liveness" and request.service not in SERVICES:
            context.abort(grpc.StatusCode.NOT_FOUND, f"there is no service '{request.service[:128]}'")
        serves = request.service == "liveness" or self._ready()
        status = health_pb2.HealthCheckResponse
        return status(status=status.SERVING if serves else status.NOT_SERVING)


@contextmanager
def ext_proc(
    picker: Picker,
    ready: Callable[[], bool],
    address: str,
    loop: asyncio.AbstractEventLoop,
    certificate: Certificate | None = None,
) -> Iterator[int]:
    """Serve within the block, and yield the port. Open conversations end with the block.

    Raises StartError if the address cannot be bound, OSError if the certificate cannot be read.
    """
    options = (
        ("grpc.max_receive_message_length", picker.max_body_bytes + 2**20),
        ("grpc.so_reuseport", 0),
    )
    server = grpc.server(
        futures.ThreadPoolExecutor(CONVERSATIONS, "ext_proc"),
        options=options,
        maximum_concurrent_rpcs=CONVERSATIONS,
    )
    processor = ExternalProcessor(picker, loop)
    proc_grpc.add_ExternalProcessorServicer_to_server(processor, server)
    health_pb2_grpc.add_HealthServicer_to_server(PickerHealth(ready), server)
    try:
        if certificate is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials(certificate))
    except RuntimeError as error:
        raise StartError(f"cannot listen on {address}: {error}") from None
    server.start()
    stopped = threading.Event()
    threading.Thread(target=_sweep, name=SWEEPER, args=(processor, stopped), daemon=True).start()
    try:
        yield port
    finally:
        stopped.set()
        server.stop(STOP_S).wait()


def credentials(certificate: Certificate) -> grpc.ServerCredentials:
    """Return credentials that are read again for each connection. Raises OSError."""

    def read() -> grpc.ServerCertificateConfiguration:
        pair = (certificate.key.read_bytes(), certificate.cert.read_bytes())
        return grpc.ssl_server_certificate_configuration([pair])

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        try:
            return read()
        except OSError as error:  # gRPC keeps the previous certificate
            log.warning("certificate unreadable", file=error.filename, why=error.strerror)
            return None

    return grpc.dynamic_ssl_server_credentials(read(), renewed)  # type: ignore[arg-type]  # None: unchanged


def _sweep(processor: ExternalProcessor, stopped: threading.Event) -> None:
    while not stopped.wait(SWEEP_S):
        processor.sweep()
