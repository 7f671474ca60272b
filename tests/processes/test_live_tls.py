"""Router and sidecar under mutual TLS: no session without a certificate of the pool; renewals count."""

import re
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import openai
import pytest
from authority import make_certificates
from live.pool_file import MODEL, write_pool
from live.process import Process
from patience import until
from penstock_profiler import EngineError
from penstock_profiler import connected as measured
from penstock_runtime.certificate_chains import not_strict
from penstock_runtime.client_tls import client_contexts

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


def complete(router: Process, status: int = 200) -> httpx2.Response:
    """One short completion, which has to end like this."""
    body = {"model": MODEL, "prompt": "hello", "max_tokens": 3}
    answer = httpx2.post(f"http://{router.address}/v1/completions", json=body, timeout=30)
    assert answer.status_code == status
    return answer


def connected(router: Process) -> None:
    until(lambda: httpx2.get(f"http://{router.address}/ready").status_code == 200, "a session under TLS")


def test_a_router_with_our_certificate_is_served_and_one_without_is_not(start: Start, tmp_path: Path) -> None:
    make_certificates(tmp_path)
    ca, cert, key = (str(tmp_path / name) for name in ("ca.pem", "node.pem", "node.key"))
    engine = start("engine", "--port", "0")
    beside = ["--name", "r0", "--listen", "127.0.0.1:0", "--engine", f"http://{engine.address}"]
    sidecar = start("sidecar", *beside, "--tls-cert", cert, "--tls-key", key, "--tls-client-ca", ca)
    there = ["--port", "0", "--admin-port", "0", f"--replica=r0={sidecar.address}", "--replica-tls-ca", ca]
    ours = start("router", *there, "--replica-tls-cert", cert, "--replica-tls-key", key)
    stranger = start("router", *there)

    connected(ours)
    assert complete(ours).headers["x-penstock-replica"] == "r0"
    until(lambda: "replica not connected" in stranger.printed_text, "the stranger to be turned away")
    complete(stranger, status=503)


def test_replicas_are_verified_by_service_name_and_renewed_certificates_are_used(
    start: Start, tmp_path: Path
) -> None:
    service = "llama3-8b-replicas.default.svc"
    make_certificates(tmp_path, f"DNS:{service}")
    ca, cert, key = (str(tmp_path / name) for name in ("ca.pem", "node.pem", "node.key"))
    engine = start("engine", "--port", "0")
    beside = ["--name", "r0", "--engine", f"http://{engine.address}"]
    identity = ["--tls-cert", cert, "--tls-key", key]
    sidecar = start("sidecar", *beside, "--listen", "127.0.0.1:0", *identity, "--tls-client-ca", ca)
    there = ["--port", "0", "--admin-port", "0", f"--replica=r0={sidecar.address}", "--replica-tls-ca", ca]
    there += ["--replica-tls-cert", cert, "--replica-tls-key", key]
    by_address = start("router", *there)
    by_name = start("router", *there, "--replica-tls-server-name", service)
    connected(by_name)
    until(
        lambda: "replica not connected" in by_address.printed_text,
        "a certificate without the address refused",
    )

    make_certificates(
        tmp_path, f"DNS:{service}"
    )  # of a new authority: nothing old is trusted by anything new
    complete(by_name)  # the open session continues
    candidate = start("router", *there, "--replica-tls-server-name", service)
    connected(candidate)  # the sidecar shows the new one
    sidecar.kill()
    start("sidecar", *beside, "--listen", sidecar.address, *identity, "--tls-client-ca", ca)
    connected(by_name)  # the router trusts it
    complete(by_name)


def test_direct_answers_are_read_from_the_engine_under_tls(start: Start, tmp_path: Path) -> None:
    write_pool(tmp_path / "pool.yaml", replicas=1, engine={"answerPath": "direct"})
    engine_name, service = "engine.llama3.svc", "llama3.svc"
    make_certificates(tmp_path, f"DNS:{service},DNS:{engine_name}")
    ca, cert, key = (str(tmp_path / name) for name in ("ca.pem", "node.pem", "node.key"))
    reports = ["--telemetry", str(tmp_path / "steps.sock")]
    engine = start("engine", "--port", "0", *reports, "--ssl-certfile", cert, "--ssl-keyfile", key)
    beside = ["--name", "r0", "--listen", "127.0.0.1:0", "--engine", f"https://{engine.address}", *reports]
    beside += ["--engine-tls-ca", ca, "--engine-tls-server-name", engine_name, "--metrics-port", "0"]
    sidecar = start("sidecar", *beside, "--tls-cert", cert, "--tls-key", key, "--tls-client-ca", ca)
    (metrics,) = re.findall(r"metrics=(\S+)", sidecar.printed_text)
    there = ["--port", "0", "--admin-port", "0", f"--replica=r0={sidecar.address}", "--replica-tls-ca", ca]
    there += ["--replica-tls-cert", cert, "--replica-tls-key", key, "--replica-tls-server-name", service]
    router = start("router", *there, "--engine-tls-server-name", engine_name)
    stranger = start("router", *there, "--engine-tls-server-name", "other.svc")

    def counted() -> dict[str, float]:
        """Requests that routers sent to the engine, by their outcome."""
        page = httpx2.get(f"http://{metrics}/metrics").text
        line = re.compile(r'penstock_replica_direct_answers_total{outcome="(\w+)"} (\S+)')
        return {outcome: float(number) for outcome, number in line.findall(page) if float(number)}

    connected(router)
    connected(stranger)
    complete(router)
    until(lambda: counted() == {"whole": 1}, "an answer past the sidecar")
    complete(stranger)  # it does not trust the engine by that name: its answer passes the sidecar
    until(lambda: counted() == {"whole": 1, "unreachable": 1}, "an engine that is not trusted")
    make_certificates(tmp_path, f"DNS:{service},DNS:{engine_name}")  # of a new authority
    engine.kill()
    start(
        "engine",
        "--port",
        engine.address.rpartition(":")[2],
        *reports,
        "--ssl-certfile",
        cert,
        "--ssl-keyfile",
        key,
    )
    connected(router)
    complete(router)
    until(lambda: counted() == {"whole": 2, "unreachable": 1}, "the new certificate is trusted by all")


async def test_an_engine_is_measured_under_tls(start: Start, tmp_path: Path) -> None:
    name = "engine.llama3.svc"
    make_certificates(tmp_path, f"DNS:{name}")
    cert, key = (str(tmp_path / file) for file in ("node.pem", "node.key"))
    url = f"https://{start('engine', '--port', '0', '--ssl-certfile', cert, '--ssl-keyfile', key).address}"
    async with measured(url, tls=client_contexts(tmp_path / "ca.pem", server_name=name)) as engine:
        assert engine.model == MODEL
    with pytest.raises(EngineError, match="CERTIFICATE_VERIFY_FAILED"):
        async with measured(url, tls=client_contexts(tmp_path / "ca.pem", server_name="other.svc")):
            pass


def test_clients_use_the_api_under_tls_with_a_renewed_certificate(start: Start, tmp_path: Path) -> None:
    make_certificates(tmp_path)
    ca, cert, key = (tmp_path / name for name in ("ca.pem", "node.pem", "node.key"))
    engine = start("engine", "--port", "0")
    beside = ["--name", "r0", "--listen", "127.0.0.1:0", "--engine", f"http://{engine.address}"]
    there = f"--replica=r0={start('sidecar', *beside).address}"
    identity = ["--tls-cert", str(cert), "--tls-key", str(key)]
    router = start("router", "--port", "0", "--admin-port", "0", there, *identity)
    until(lambda: httpx2.get(f"http://{router.admin}/ready").status_code == 200, "a session")

    def text() -> str:
        """A whole stream by the official client, which trusts the authority of now and no other."""
        trust = openai.DefaultHttpxClient(verify=not_strict(ssl.create_default_context(cafile=str(ca))))
        with (
            trust,
            openai.OpenAI(base_url=f"https://{router.address}/v1", api_key="-", http_client=trust) as client,
        ):
            parts = client.completions.create(model=MODEL, prompt="hello", max_tokens=3, stream=True)
            return "".join(part.choices[0].text for part in parts if part.choices)

    assert text()
    make_certificates(tmp_path)
    assert text()
    assert "files renewed" in router.printed_text
    with pytest.raises(httpx2.TransportError):
        httpx2.get(f"http://{router.address}/health")
