"""Many replicas in one process, for measuring routers and pickers in front of them.

Each has a port, speaks the protocol between router and sidecar, admits every request at once with a one-token
answer, and sends a changed snapshot every second, as a busy sidecar does. None of them has an engine.
Once a second the log has the total of sent frames and bytes.
"""

import argparse
import asyncio
from contextlib import AsyncExitStack

import uvloop
from overhead.fast_engine import COMPLETE_CHAT, MODEL
from penstock_proto import replica_pb2 as wire
from penstock_proto.replica_methods import DESCRIBE, SESSION
from penstock_runtime.grpc.call import GrpcCall
from penstock_runtime.grpc.server import Handlers, grpc_serving, unary
from penstock_runtime.serving import listen

SNAPSHOT_S = 1.0
"""Interval of snapshots, as in a sidecar."""

ANSWER = COMPLETE_CHAT.partition(b"\r\n\r\n")[2]
HTTP_PORT = 1
"""HTTP port of every replica. It is never connected to, but pickers need one."""

Frames = asyncio.Queue[wire.ReplicaFrame]


class FakeReplicas:
    """All replicas, which behave alike."""

    def __init__(self) -> None:
        self.frames = self.bytes = self.changes = 0
        self.sessions: set[Frames] = set()

    def snapshot(self) -> wire.Snapshot:
        """Return a snapshot of ordinary size that differs from the previous one."""
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

    @property
    def handlers(self) -> Handlers:
        """The methods that routers call."""
        return {DESCRIBE: unary(wire.DescribeRequest, self._describe), SESSION: self._session}

    async def _describe(self, request: wire.DescribeRequest, peer: str) -> wire.DescribeReply:
        return wire.DescribeReply(
            model=MODEL, max_model_len=131072, policy="slos-serve", engine_ready=True, http_port=HTTP_PORT
        )

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


async def serve(replicas: int) -> None:
    fake_replicas = FakeReplicas()
    listeners = [listen("127.0.0.1", 0) for _ in range(replicas)]
    async with AsyncExitStack() as stack:
        for listener in listeners:
            await stack.enter_async_context(grpc_serving(fake_replicas.handlers, listener))
        print("ready " + ",".join(str(listener.getsockname()[1]) for listener in listeners), flush=True)
        await fake_replicas.report_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("replicas", type=int)
    uvloop.run(serve(parser.parse_args().replicas))


if __name__ == "__main__":
    main()
