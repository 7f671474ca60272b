"""One vLLM server on a CPU, with or without the plug-in, and how to ask it."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from penstock_sidecar.bounds import Bounds
from penstock_sidecar.engine.client import EngineClient
from served import python

NAME = "tiny"
PATIENCE_S = 600.0
"""For a start or an answer, on a machine that does other things too."""

QUIET = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "PENSTOCK_TIME_MODEL": "llama-3-8b-a100",
}

SHAPE = {
    "--served-model-name": NAME,
    "--dtype": "float32",
    "--max-model-len": "1024",
    "--max-num-seqs": "16",
    "--max-num-batched-tokens": "512",
    "--distributed-executor-backend": "uni",
    "--structured-outputs-config": '{"backend": "xgrammar", "disable_any_whitespace": true}',
}

SCHEDULER = "penstock_vllm.scheduler.PenstockScheduler"

Body = Mapping[str, Any]
JSON = {"content-type": "application/json"}


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers at `url`. said: everything that it has printed."""

    url: str
    log: Path

    @property
    def printed_text(self) -> str:
        return self.log.read_text(errors="replace")

    def counted(self, name: str) -> float:
        """A counter of its metrics, over all labels."""
        page = httpx2.get(f"{self.url}/metrics", timeout=PATIENCE_S).text
        return sum(float(found) for found in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", page, re.MULTILINE))

    async def complete(self, **body: Any) -> dict[str, Any]:
        """A completion, whole."""
        return await self._post("/v1/completions", body)

    async def chat(self, **body: Any) -> dict[str, Any]:
        """A chat completion, whole."""
        return await self._post("/v1/chat/completions", body)

    async def texts(self, bodies: Sequence[Body]) -> list[str]:
        """Return the answers to all of them, sent concurrently."""
        answers = await asyncio.gather(*[self.complete(**body) for body in bodies])
        return [answer["choices"][0]["text"] for answer in answers]

    async def events(self, **body: Any) -> AsyncGenerator[str]:
        """The data of every event of a streamed completion, `[DONE]` too."""
        requested = {"model": NAME, "stream": True, "temperature": 0, **body}
        async with (
            httpx2.AsyncClient(timeout=PATIENCE_S) as client,
            client.stream("POST", f"{self.url}/v1/completions", json=requested) as answer,
        ):
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    yield line.removeprefix("data: ")

    async def raw_events(self, path: str, body: bytes) -> list[bytes]:
        """Return every event of a stream, unmodified."""
        async with httpx2.AsyncClient(timeout=PATIENCE_S) as client:
            answer = await client.post(f"{self.url}{path}", content=body, headers=JSON)
        assert answer.status_code == 200, answer.text
        return [event + b"\n\n" for event in answer.content.split(b"\n\n")[:-1]]

    async def detokenized(self, tokens: Sequence[int]) -> str:
        """The text of tokens, as a sidecar asks for it."""
        client = EngineClient(self.url, Bounds(), NAME)
        async with client:
            text = await client.detokenize(tokens)
        assert text is not None
        return text

    async def _post(self, path: str, body: Body) -> dict[str, Any]:
        async with httpx2.AsyncClient(timeout=PATIENCE_S) as client:
            answer = await client.post(f"{self.url}{path}", json={"model": NAME, "temperature": 0, **body})
        assert answer.status_code == 200, answer.text
        page: dict[str, Any] = answer.json()
        return page


@contextmanager
def serving(
    model: Path,
    folder: Path,
    *flags: str,
    steered: bool = False,
    blocks: int = 256,
    env: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """A server of this model for as long as the block runs, its log in the folder.

    steered: with the plug-in. blocks: of 128 tokens each that its KV cache has. env: more variables.
    """
    port = _free_port()
    words = ["--port", str(port), "--num-gpu-blocks-override", str(blocks), *flags]
    words += ["--scheduler-cls", SCHEDULER] if steered else []
    server = Server(f"http://127.0.0.1:{port}", folder / "engine.log")
    process = _started(model, server.log, words, env or {})
    try:
        _wait_ready(server, process)
        yield server
    finally:
        _stop(process)


def failing(model: Path, folder: Path, *flags: str, env: Mapping[str, str]) -> tuple[int, str]:
    """The exit code and the log of a server with the plug-in that cannot start. env: more variables."""
    words = ["--port", str(_free_port()), "--scheduler-cls", SCHEDULER, *flags]
    process = _started(model, folder / "engine.log", words, env)
    try:
        return process.wait(PATIENCE_S), (folder / "engine.log").read_text(errors="replace")
    finally:
        _stop(process)


def _started(
    model: Path, log: Path, words: Sequence[str], env: Mapping[str, str]
) -> "subprocess.Popen[bytes]":
    shape = [word for flag, value in SHAPE.items() for word in (flag, value)]
    where = ["--model", str(model), "--host", "127.0.0.1", "--enforce-eager", "--disable-uvicorn-access-log"]
    with log.open("w") as out:
        return subprocess.Popen(
            [python.path(), "-m", "vllm.entrypoints.openai.api_server", *shape, *where, *words],
            env={**os.environ, **QUIET, **env},
            stdout=out,
            stderr=out,
            start_new_session=True,
        )


def _wait_ready(server: Server, process: "subprocess.Popen[bytes]") -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while True:
        assert process.poll() is None, f"exit code {process.returncode}:\n{server.printed_text}"
        assert time.monotonic() < give_up_s, f"never ready:\n{server.printed_text}"
        try:
            if httpx2.get(f"{server.url}/health", timeout=5.0).status_code == 200:
                return
        except httpx2.TransportError:
            time.sleep(0.2)


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """Its whole group: a server that was hurt may have left children."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(20.0)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def data_of(event: str) -> dict[str, Any]:
    """An event's JSON."""
    page: dict[str, Any] = json.loads(event)
    return page
