"""A replica behind real gRPC with answers scripted by the test."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeAlias

import grpc
import orjson
from loop_time import skip
from penstock_proto import replica_pb2 as wire
from penstock_proto.replica_pb2_grpc import ReplicaServicer, add_ReplicaServicer_to_server
from penstock_runtime.grpc.messages import MESSAGE_BYTES

SERVER_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
)
DONE = b"data: [DONE]\n\n"


def chat_chunk(text: str) -> bytes:
    """One server-sent event of a chat stream."""
    choice = {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None}
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + orjson.dumps(chunk) + b"\n\n"


def chat_answer(text: str) -> bytes:
    """A whole chat completion."""
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return orjson.dumps(
        {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    )


class Part:
    """A replica's part in one request: sent and received messages."""

    def __init__(self, submit: wire.Submit, frames: "asyncio.Queue[wire.ReplicaFrame]") -> None:
        self.submit = submit
        self.cancelled = asyncio.Event()
        self.reported: list[wire.EngineAnswer] = []
        self._answer_reported = asyncio.Event()
        self._frames = frames

    @property
    def stream(self) -> bool:
        return bool(orjson.loads(self.submit.body).get("stream"))

    def send(self, *events: wire.Event) -> None:
        """All of them in one frame."""
        for event in events:
            event.id = self.submit.id
        self._frames.put_nowait(wire.ReplicaFrame(events=events))

    def admit(self, engine_fields: bytes = b"") -> None:
        admitted = wire.Admitted(ttft_predicted_s=0.1, tpot_predicted_s=0.02)
        self.send(wire.Event(admitted=admitted, engine_fields=engine_fields))

    def receive_answer(self, answer: wire.EngineAnswer) -> None:
        self.reported.append(answer)
        self._answer_reported.set()

    async def end(self) -> wire.EngineAnswer:
        """Return the router's latest message about an answer that it reads from the engine."""
        while not self.reported or self.reported[-1].state == wire.ANSWER_STATE_BEGUN:
            self._answer_reported.clear()
            await self._answer_reported.wait()
        return self.reported[-1]

    def accept_best_effort(self) -> None:
        self.send(wire.Event(best_effort=wire.BestEffort()))

    def reject(self, reason: "wire.Reason.ValueType", earliest_s: float | None = None) -> None:
        self.send(wire.Event(rejected=wire.Rejected(reason=reason, earliest_s=earliest_s)))

    def output(self, data: bytes, tokens: int = 1) -> None:
        self.send(wire.Event(output=wire.Output(data=data, tokens=tokens)))

    def finish(self, prompt_tokens: int = 5, completion_tokens: int = 2) -> None:
        said = wire.Finished(
            prompt_tokens=prompt_tokens, completion_tokens=completion_tokens, ttft_s=0.01, tpot_s=0.01
        )
        self.send(wire.Event(finished=said))

    def fail(self, failure: "wire.Failure.ValueType", status: int, body: bytes = b"") -> None:
        self.send(wire.Event(failed=wire.Failed(failure=failure, status=status, body=body)))


SessionContext: TypeAlias = (
    "grpc.aio.ServicerContext[AsyncIterator[wire.RouterFrame], AsyncIterator[wire.ReplicaFrame]]"
)
Script = Callable[[Part], Awaitable[None]]


async def answers(part: Part) -> None:
    """Admit the request, send two tokens, and end."""
    part.admit()
    if part.stream:
        part.output(chat_chunk("hel"))
        part.output(chat_chunk("lo"))
        part.output(DONE, tokens=0)
    else:
        part.output(chat_answer("hello"), tokens=2)
    part.finish()


async def is_busy(part: Part) -> None:
    """Has no room for two seconds."""
    part.reject(wire.REASON_PREFILL_BUDGET, 1.5)


async def is_silent(part: Part) -> None:
    """Send no message."""


VERDICT_TIMEOUT_S = 5.0
"""How long a router waits for a verdict, by default."""


async def exceeds_verdict_timeout(part: Part) -> None:
    """Send no message until the router's verdict timeout has passed, in virtual time."""
    await skip(VERDICT_TIMEOUT_S)


async def serves_as_backup(part: Part) -> None:
    """Has no room, but takes best effort."""
    if not part.submit.backup:
        part.reject(wire.REASON_PREFILL_BUDGET, 1.5)
        return
    part.accept_best_effort()
    part.output(chat_answer("late"), tokens=1)
    part.finish()


class ScriptedReplica(ReplicaServicer):
    """One replica. `script` is what it does with each request, `snapshot` what it says of itself."""

    def __init__(self, name: str, script: Script = answers) -> None:
        self.name, self.script = name, script
        self.parts: list[Part] = []
        self.sessions = 0
        self.snapshot = wire.Snapshot(engine_ready=True)
        self.time_model_json = ""
        self.described = 0
        self.describes_once = False
        self.texts: Callable[[list[int]], str] | None = None  # of tokens, if its engine reports them
        self.hangs = False  # sends nothing, over open connections
        self.port = self.engine_port = self.engine_tls_port = 0
        self._frames: list[asyncio.Queue[wire.ReplicaFrame]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def open_sessions(self) -> int:
        return len(self._frames)

    async def start(self) -> None:
        """Listen: the first time anywhere, after that where it was."""
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        add_ReplicaServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(self.address)
        await self._server.start()

    async def die(self) -> None:
        """Close all connections immediately."""
        for task in self._tasks:
            task.cancel()
        await self._server.stop(None)

    def send_snapshot(self, **snapshot: float) -> None:
        """Say something new of itself to every router."""
        self.snapshot = wire.Snapshot(**({"engine_ready": True} | snapshot))  # type: ignore[arg-type]
        for frames in self._frames:
            frames.put_nowait(wire.ReplicaFrame(snapshot=self.snapshot))

    def send_prefixes(
        self, added: Sequence[int] = (), removed: Sequence[int] = (), complete: bool = False
    ) -> None:
        """Say what its prefix cache has, to every router."""
        message = wire.CachedPrefixes(added=added, removed=removed, complete=complete)
        for frames in self._frames:
            frames.put_nowait(wire.ReplicaFrame(cached_prefixes=message))

    async def Describe(
        self,
        request: wire.DescribeRequest,
        context: "grpc.aio.ServicerContext[wire.DescribeRequest, Awaitable[wire.DescribeReply]]",
    ) -> wire.DescribeReply:
        self.described += 1
        if self.describes_once and self.described > 1:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "too busy")
        while self.hangs:  # noqa: ASYNC110  until the test, or the router, has had enough
            await asyncio.sleep(0.002)
        return wire.DescribeReply(
            replica=self.name,
            max_model_len=4096,
            time_model_json=self.time_model_json,
            engine_ready=True,
            engine_port=self.engine_port,
            engine_tls_port=self.engine_tls_port,
        )

    async def Detokenize(
        self,
        request: wire.DetokenizeRequest,
        context: "grpc.aio.ServicerContext[wire.DetokenizeRequest, Awaitable[wire.DetokenizeReply]]",
    ) -> wire.DetokenizeReply:
        if self.texts is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the engine does not report it")
        return wire.DetokenizeReply(text=self.texts(list(request.tokens)))

    async def Session(
        self,
        request_iterator: AsyncIterator[wire.RouterFrame],
        context: SessionContext,
    ) -> AsyncIterator[wire.ReplicaFrame]:
        frames: asyncio.Queue[wire.ReplicaFrame] = asyncio.Queue()
        self._frames.append(frames)
        self.sessions += 1
        reading = asyncio.create_task(self._read_until_stopped(request_iterator, frames))
        yield wire.ReplicaFrame(snapshot=self.snapshot)
        try:
            while True:
                yield await frames.get()
        finally:
            reading.cancel()
            self._frames.remove(frames)

    async def _read_until_stopped(
        self, request: AsyncIterator[wire.RouterFrame], frames: "asyncio.Queue[wire.ReplicaFrame]"
    ) -> None:
        with suppress(grpc.aio.BaseError):  # the server was stopped while it waited for a frame
            await self._read(request, frames)

    async def _read(
        self, request: AsyncIterator[wire.RouterFrame], frames: "asyncio.Queue[wire.ReplicaFrame]"
    ) -> None:
        mine: dict[int, Part] = {}
        async for frame in request:
            for submit in frame.submits:
                part = mine[submit.id] = Part(submit, frames)
                self.parts.append(part)
                task = asyncio.ensure_future(self.script(part))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            for answer in frame.engine_answers:
                mine[answer.id].receive_answer(answer)
            for id in frame.cancels:
                mine[id].cancelled.set()

    async def Drain(
        self,
        request: wire.DrainRequest,
        context: "grpc.aio.ServicerContext[wire.DrainRequest, Awaitable[wire.DrainReply]]",
    ) -> wire.DrainReply:
        raise NotImplementedError

    async def Resume(
        self,
        request: wire.ResumeRequest,
        context: "grpc.aio.ServicerContext[wire.ResumeRequest, Awaitable[wire.ResumeReply]]",
    ) -> wire.ResumeReply:
        raise NotImplementedError
