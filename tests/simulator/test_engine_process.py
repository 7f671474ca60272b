"""`penstock-engine` as a process: it starts, serves its pool and stops, or reports why it cannot."""

import asyncio
import re
import signal
import subprocess
import sys
from asyncio.subprocess import Process
from pathlib import Path

import pytest
from openai import AsyncOpenAI
from penstock_runtime.serving import listen
from replica_processes import started

POOL = """
apiVersion: penstock.dev/v1alpha1
kind: ServingPool
metadata: {name: test}
spec:
  model: {name: tiny}
  engine: {type: simulated, timeModel: llama-3-8b-h100, maxModelLen: 4096}
  scheduling: {policy: slos-serve}
  tiers: [{name: chat, slo: {ttft: 1s, tpot: 100ms}}]
"""


ENGINE = "penstock_simulator.main"


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    file = tmp_path / "pool.yaml"
    file.write_text(POOL)
    return file


async def ready_port(process: Process) -> int:
    assert process.stderr is not None
    async with asyncio.timeout(30):
        line = (await process.stderr.readline()).decode()
    assert "event=ready" in line
    found = re.search(r"address=127\.0\.0\.1:(\d+)", line)
    assert found is not None
    return int(found[1])


async def test_an_engine_serves_its_pool_and_drains_on_a_signal(pool: Path) -> None:
    async with started(ENGINE, "-f", pool, "--port", "0", "--seed", "3") as process:
        port = await ready_port(process)
        async with AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none") as client:
            (model,) = (await client.models.list()).data
            assert (model.id, model.model_dump()["max_model_len"]) == ("tiny", 4096)
            stream = await client.completions.create(
                model="tiny", prompt=[1] * 100, max_tokens=60, stream=True, extra_body={"ignore_eos": True}
            )
            words = (await anext(stream)).choices[0].text
            process.send_signal(signal.SIGTERM)
            async for chunk in stream:
                words += chunk.choices[0].text
        assert len(words.split()) == 60
        async with asyncio.timeout(30):
            assert await process.wait() == 0


async def test_a_taken_port_exits_with_1_and_one_line(pool: Path) -> None:
    with listen("127.0.0.1", 0) as holder:
        port = holder.getsockname()[1]
        async with started(ENGINE, "-f", pool, "--port", str(port)) as process:
            _, output = await process.communicate()
    assert (process.returncode, output.decode()) == (1, f"cannot listen on 127.0.0.1:{port}: port taken\n")


@pytest.mark.parametrize(
    ("change", "words"),
    [(("tpot: 100ms", 'tpot: "100"'), "spec.tiers[0].slo.tpot"), (("simulated", "vllm"), "spec.engine.type")],
    ids=["a wrong field", "another engine"],
)
def test_a_pool_that_it_cannot_run_exits_with_2(pool: Path, change: tuple[str, str], words: str) -> None:
    pool.write_text(POOL.replace(*change))
    command = [sys.executable, "-m", "penstock_simulator.main", "-f", str(pool), "--port", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 2
    assert f"{pool}: {words}" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--ssl-certfile", "a.pem"], "--ssl-certfile and --ssl-keyfile belong together"),
        (["--ssl-cert-reqs", "2"], "--ssl-cert-reqs 2 needs --ssl-ca-certs"),
        (["--ssl-certfile", "a.pem", "--ssl-keyfile", "b.pem"], "a.pem: No such file or directory"),
    ],
)
async def test_an_unusable_certificate_exits_with_1_and_one_line(
    pool: Path, flags: list[str], words: str
) -> None:
    async with started(ENGINE, "-f", pool, "--port", "0", *flags) as process:
        _, stderr = await process.communicate()
    assert process.returncode == 1
    assert stderr.decode().startswith(words) and stderr.count(b"\n") == 1
