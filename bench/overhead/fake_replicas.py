"""Many replicas in one process, for measuring routers and pickers in front of them.

Each has a port for routers and pickers, where it admits every request at once with a one-token answer and
sends a changed snapshot every second, as a busy sidecar does, and a port for gateways, which answers as a
fast engine. None of them has an engine. Once a second the log has the total of sent frames and bytes. With
`--idle` snapshots are those of an idle sidecar in front of a fast engine.
"""

import argparse
import asyncio
from contextlib import AsyncExitStack
from math import inf

import uvloop
from overhead.fast_engine import BLOCK_TOKENS, COMPLETE_CHAT, KV_BLOCKS, MODEL, EngineLoop, ServerConnection
from penstock_proto import replica_pb2 as wire
from penstock_proto.replica_methods import DESCRIBE, SESSION
from penstock_runtime.grpc.call import GrpcCall
from penstock_runtime.grpc.server import Handlers, grpc_serving, unary
from penstock_runtime.serving import listen

SNAPSHOT_S = 1.0
"""Interval of snapshots, as in a sidecar."""

ANSWER = COMPLETE_CHAT.partition(b"\r\n\r\n")[2]
IDLE = wire.Snapshot(
    kv_tokens_free=KV_BLOCKS * BLOCK_TOKENS,
    kv_tokens_total=KV_BLOCKS * BLOCK_TOKENS,
    engine_ready=True,
    prefill_slack_s=inf,
    prefill_tokens_s=14_000.0,
    tightest_tpot_s=inf,
    kv_tokens_headroom=KV_BLOCKS * BLOCK_TOKENS,
)

Frames = asyncio.Queue[wire.ReplicaFrame]


class FakeReplicas:
    """All replicas, which behave alike. idle: whether their snapshots are those of idle replicas."""

    def __init__(self, *, idle: bool) -> None:
        self.idle = idle
        self.frames = self.bytes = self.changes = 0
        self.sessions: set[Frames] = set()

    def snapshot(self) -> wire.Snapshot:
        """Return a snapshot: an idle one, or one of ordinary size that differs from the previous one."""
        if self.idle:
            return IDLE
        self.changes += 1
        return wire.Snapshot(
            running=self.changes % 64,
            prefill_tokens_left=1000 + self.changes % 1000,
            kv_tokens_free=400_000 + self.changes % 1000,
            kv_tokens_total=500_000,
            engine_ready=True,
            work_s=0.5,
            prefill_wait_s=0.05,
            prefill_slack_s=0.2,
            prefill_tokens_s=20_000.0 + self.changes % 100,
            step_s=0.02,
            tightest_tpot_s=0.1,
            kv_tokens_headroom=300_000,
        )

    def handlers(self, http_port: int) -> Handlers:
        """Return the methods that routers call, of the replica that serves gateways at a port."""

        async def describe(request: wire.DescribeRequest, peer: str) -> wire.DescribeReply:
            return wire.DescribeReply(
                model=MODEL,
                max_model_len=131072,
                policy="slos-serve",
                engine_ready=True,
                http_port=http_port,
            )

        return {DESCRIBE: unary(wire.DescribeRequest, describe), SESSION: self._session}

    async def _session(self, call: GrpcCall) -> None:
        frames: Frames = asyncio.Queue()
        self.sessions.add(frames)
        frames.put_nowait(wire.ReplicaFrame(snapshot=self.snapshot()))
        writing = asyncio.create_task(self._write(call, frames))

        def answer(frame: wire.RouterFrame) -> None:
            events = [event for submit in frame.submits for event in _answer(submit.id)]
            if events:
                frames.put_nowait(wire.ReplicaFrame(events=events, snapshot=self.snapshot()))

        try:
            await call.receive(wire.RouterFrame, answer)
        finally:
            writing.cancel()
            self.sessions.remove(frames)

    async def _write(self, call: GrpcCall, frames: Frames) -> None:
        while True:
            frame = await frames.get()
            self.frames, self.bytes = self.frames + 1, self.bytes + frame.ByteSize()
            await call.write(frame)

    async def report_forever(self) -> None:
        """Send every session a snapshot, at staggered times, and log the totals."""
        loop = asyncio.get_running_loop()
        while True:
            sessions = list(self.sessions)
            for number, frames in enumerate(sessions):
                delay_s = SNAPSHOT_S * number / len(sessions)
                loop.call_later(delay_s, frames.put_nowait, wire.ReplicaFrame(snapshot=self.snapshot()))
            await asyncio.sleep(SNAPSHOT_S)
            print(f"sent {len(sessions)} {self.frames} {self.bytes}", flush=True)


def _answer(id: int) -> tuple[wire.Event, ...]:
    return (
        wire.Event(id=id, admitted=wire.Admitted(ttft_predicted_s=0.1, tpot_predicted_s=0.02)),
        wire.Event(id=id, output=wire.Output(data=ANSWER, tokens=1)),
        wire.Event(id=id, finished=wire.Finished(prompt_tokens=8, completion_tokens=1, ttft_s=0.01)),
    )


async def serve(replicas: int, *, idle: bool) -> None:
    fake_replicas, engine = FakeReplicas(idle=idle), EngineLoop(1.0, None)
    loop = asyncio.get_running_loop()
    listeners = [listen("127.0.0.1", 0) for _ in range(replicas)]
    servers = [
        await loop.create_server(lambda: ServerConnection(engine), "127.0.0.1", 0) for _ in range(replicas)
    ]
    http_ports = [server.sockets[0].getsockname()[1] for server in servers]
    async with AsyncExitStack() as stack:
        for listener, http_port in zip(listeners, http_ports, strict=True):
            await stack.enter_async_context(grpc_serving(fake_replicas.handlers(http_port), listener))
        ports = [listener.getsockname()[1] for listener in listeners]
        print(f"ready {_listed(ports)} http {_listed(http_ports)}", flush=True)
        await fake_replicas.report_forever()


def _listed(ports: list[int]) -> str:
    return ",".join(map(str, ports))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("replicas", type=int)
    parser.add_argument("--idle", action="store_true", help="send snapshots of idle replicas")
    options = parser.parse_args()
    uvloop.run(serve(options.replicas, idle=options.idle))


if __name__ == "__main__":
    main()
