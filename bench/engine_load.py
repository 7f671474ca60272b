"""Measures the CPU cost of a simulated engine, and its largest load.

Starts the engine with iterations of a fixed length, and opens streams that decode without end. For each
number of streams it prints the tokens per second and the engine's share of a core, from /proc while all
streams run. Step reports are read as by a sidecar. When iterations become longer than their fixed length, the
machine limits the engine: that is its largest load.
"""

import argparse
import asyncio
import os
import re
import socket
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import httpx2
import orjson
import uvloop
from penstock_pool import load_pool
from penstock_runtime.logs import configure_logs
from penstock_runtime.serving import run_process
from penstock_simulator import main as engine
from penstock_simulator.engine_timing.batch_shape import BatchShape

SOCKET = "telemetry.sock"

POOL = """
apiVersion: penstock.dev/v1alpha1
kind: ServingPool
metadata: {{name: bench}}
spec:
  model: {{name: bench}}
  engine: {{type: simulated, timeModel: llama-3-8b-a100, kvCacheTokens: {kv_tokens}, maxModelLen: 100000}}
  scheduling: {{policy: {policy}, maxRunning: {running}}}
  tiers:
  - {{name: chat, slo: {{ttft: 10s, tpot: 200ms}}}}
"""


class CountingClient(asyncio.Protocol):
    """A client that only counts tokens."""

    def __init__(self) -> None:
        self.events = 0

    def data_received(self, data: bytes) -> None:
        self.events += data.count(b"data: ")


def request(prompt_tokens: int) -> bytes:
    body = orjson.dumps(
        {
            "prompt": [7] * prompt_tokens,
            "max_tokens": 50_000,
            "ignore_eos": True,
            "stream": True,
            "vllm_xargs": {"penstock_tpot_s": 0.2, "penstock_ttft_s": 10.0, "penstock_best_effort": False},
        }
    )
    return b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@dataclass(frozen=True)
class ConstantSteps:
    """A ground truth in which all iterations have equal durations."""

    step_s: float

    def seconds(self, shape: BatchShape, at_s: float) -> float:
        return self.step_s


def serve(pool: str, step_s: float, telemetry: str) -> int:
    """Run the engine's process with this ground truth."""
    flags = ["-f", pool, "--port", "0", "--telemetry", telemetry, "--drain-s", "0"]
    options = engine.parser().parse_args(flags)
    configure_logs("penstock-engine", "info")
    loaded = load_pool(options.file)
    return run_process(lambda stop: engine.serve_engine(loaded, ConstantSteps(step_s), options, stop))


async def start(
    options: argparse.Namespace, running: int, folder: str
) -> tuple[asyncio.subprocess.Process, int]:
    pool = Path(folder) / "pool.yaml"
    pool.write_text(POOL.format(policy=options.policy, running=running, kv_tokens=running * 20_000))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        __file__,
        "--serve",
        str(pool),
        str(options.step_ms / 1e3),
        f"{folder}/{SOCKET}",
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    while line := (await process.stderr.readline()).decode():
        if found := re.search(r"address=\S*?:(\d+)", line):
            return process, int(found[1])
        print(line, end="", file=sys.stderr)
    raise SystemExit("the engine did not start")


def read_reports(folder: str) -> socket.socket:
    """Receive step reports as a sidecar does, and discard them."""
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    receiver.bind(f"{folder}/{SOCKET}")
    asyncio.get_running_loop().add_reader(receiver, receiver.recv, 1 << 20)
    return receiver


async def counted(port: int, name: str) -> float:
    async with httpx2.AsyncClient() as client:
        text = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name + "{"))


async def connected(port: int, streams: int, prompt_tokens: int) -> list[CountingClient]:
    """Return open streams, all of which decode."""
    loop = asyncio.get_running_loop()
    clients: list[CountingClient] = []
    for _ in range(streams):
        transport, client = await loop.create_connection(CountingClient, "127.0.0.1", port)
        transport.write(request(prompt_tokens))
        clients.append(client)
    while min(client.events for client in clients) < 5:  # noqa: ASYNC110  # counted in a callback
        await asyncio.sleep(0.1)
    return clients


async def measure(options: argparse.Namespace, streams: int, folder: str) -> str:
    reports = read_reports(folder)
    process, port = await start(options, streams, folder)
    idle_mib = rss_mib(process.pid)
    clients = await connected(port, streams, options.prompt_tokens)
    steps = await counted(port, "vllm:iteration_tokens_total_count")
    events, cpu, at_s = sum(c.events for c in clients), cpu_s(process.pid), time.perf_counter()
    await asyncio.sleep(options.seconds)
    events, cpu = sum(c.events for c in clients) - events, cpu_s(process.pid) - cpu
    seconds = time.perf_counter() - at_s
    steps = await counted(port, "vllm:iteration_tokens_total_count") - steps
    planning_ms = 1e3 * await counted(port, "penstock_engine_planning_seconds_sum")
    planning_ms /= await counted(port, "penstock_engine_planning_seconds_count")
    failures = await counted(port, "penstock_engine_policy_failures_total")
    busy_mib = rss_mib(process.pid)
    process.terminate()
    await process.wait()
    asyncio.get_running_loop().remove_reader(reports)
    reports.close()
    return (
        f"{streams:7} {events / seconds:9.0f} {seconds / steps * 1e3:8.1f} {cpu / seconds:6.2f} "
        f"{cpu / events * 1e6:9.1f} {planning_ms:12.2f} {idle_mib:9.0f} {busy_mib:9.0f} {failures:9.0f}"
    )


async def measured(options: argparse.Namespace) -> None:
    print(f"{options.policy}, iterations of {options.step_ms:g} ms")
    print("streams  tokens/s  step ms  cores  us/token  planning ms  idle MiB  busy MiB  failures")
    for streams in options.streams:
        with tempfile.TemporaryDirectory() as folder:
            print(await measure(options, streams, folder), flush=True)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--streams", default="64,256,1024", type=lambda text: [int(n) for n in text.split(",")], metavar="N,…"
    )
    add("--step-ms", default=30.0, type=float, help="length of an iteration (default %(default)s)")
    add(
        "--seconds",
        default=10.0,
        type=float,
        help="seconds to measure once all streams decode (default %(default)s)",
    )
    add("--prompt-tokens", default=300, type=int, help="prompt tokens of each stream (default %(default)s)")
    add("--policy", default="slos-serve", help="policy of the engine (default %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        sys.exit(serve(sys.argv[2], float(sys.argv[3]), sys.argv[4]))
    uvloop.run(measured(parsed()))
