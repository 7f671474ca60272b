"""Router and sidecar under mutual TLS: who has no certificate of ours gets no session."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from live.pool_file import MODEL, write_pool
from live.process import Process
from live.waiting import until

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificates with openssl")

Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a process on this test's pool file and waits until it serves."""
    pool = write_pool(tmp_path / "pool.yaml", replicas=1)
    processes: list[Process] = []

    def start(kind: str, *flags: str) -> Process:
        command = [f"penstock-{kind}", "-f", str(pool), *flags]
        processes.append(Process(kind, command, tmp_path / f"{kind}-{len(processes)}.log"))
        processes[-1].wait_ready()
        return processes[-1]

    yield start
    for process in processes:
        process.kill()


def make_certificates(folder: Path) -> None:
    """A CA, and one identity that it has signed for 127.0.0.1."""
    new = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    for command in (
        f"{new} -subj /CN=ca -keyout ca.key -out ca.pem",
        f"{new} -subj /CN=node -addext subjectAltName=IP:127.0.0.1 -CA ca.pem -CAkey ca.key "
        "-keyout node.key -out node.pem",
    ):
        subprocess.run(["openssl", *command.split()], cwd=folder, check=True, capture_output=True)


def test_a_router_with_our_certificate_is_served_and_one_without_is_not(start: Start, tmp_path: Path) -> None:
    make_certificates(tmp_path)
    ca, cert, key = (str(tmp_path / name) for name in ("ca.pem", "node.pem", "node.key"))
    engine = start("engine", "--port", "0")
    beside = ["--name", "r0", "--listen", "127.0.0.1:0", "--engine", f"http://{engine.address}"]
    sidecar = start("sidecar", *beside, "--tls-cert", cert, "--tls-key", key, "--tls-client-ca", ca)
    there = ["--port", "0", f"--replica=r0={sidecar.address}", "--tls-ca", ca]
    ours = start("router", *there, "--tls-cert", cert, "--tls-key", key)
    stranger = start("router", *there)

    until(lambda: httpx.get(f"http://{ours.address}/ready").status_code == 200, "a session under TLS")
    body = {"model": MODEL, "prompt": "hello", "max_tokens": 3}
    answer = httpx.post(f"http://{ours.address}/v1/completions", json=body, timeout=30)
    assert (answer.status_code, answer.headers["x-penstock-replica"]) == (200, "r0")
    until(lambda: "replica not connected" in stranger.said, "the stranger to be turned away")
    refused = httpx.post(f"http://{stranger.address}/v1/completions", json=body, timeout=30)
    assert refused.status_code == 503
