"""The picker's process: its ports, its end, and its start errors."""

import asyncio
import runpy
import ssl
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest
from gateway.picking import chat
from gateway.replica import HttpReplica
from grpc_health.v1 import health_pb2, health_pb2_grpc
from patience import eventually
from penstock_picker import main
from penstock_picker.options import parse
from penstock_picker.picker import Picker
from penstock_pool import load_pool
from penstock_routing import front_process
from penstock_routing.applications.api_keys import Keys
from penstock_routing.discovery.endpoints import Endpoint, Endpoints, Fixed, Source
from penstock_routing.front_process import Configuration
from penstock_runtime.serving import StartError, listen
from scripted.router import POOL_FILE
from self_signed import Identity
from structlog.testing import capture_logs

LIMITED = POOL_FILE + (
    "  applications:\n"
    "  - {name: ide, tier: chat, keys: {file: ide}, limits: {concurrentRequests: 3}}\n"
    "  - {name: web, tier: chat, keys: {file: web}, limits: {requestsPerMinute: 3}}\n"
)
FRONTS = ("--ext-authz-port", "0", "--ext-proc-port", "0")
ANSWERS_S = 20.0


@pytest.fixture(autouse=True)
def logs_of_the_test_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the logs as they are: other tests of this process capture them."""
    monkeypatch.setattr(front_process, "configure_logs", lambda *given: None)


@pytest.fixture
def pool() -> str:
    return POOL_FILE


@pytest.fixture
def pool_file(tmp_path: Path, pool: str) -> Path:
    path = tmp_path / "pool.yaml"
    path.write_text(pool)
    return path


@asynccontextmanager
async def served(
    pool_file: Path,
    replica: HttpReplica,
    *flags: str,
    source: Source | None = None,
    stop: asyncio.Event | None = None,
) -> AsyncIterator[tuple[Mapping[str, str], list[Any]]]:
    """A running picker: its addresses, and its log. It is stopped at the end, and ends well."""
    await replica.start()
    options = parse(["-f", str(pool_file), "--replica", "x=h:1", "--admin-port", "0", *flags])
    pool = load_pool(pool_file)
    stop = stop or asyncio.Event()
    source = source or Fixed({"r0": replica.address})
    with capture_logs() as logs:
        keys = Keys(pool.spec.applications, {})
        picker = asyncio.create_task(main.serve(Configuration(pool, keys, source), options, stop))
        try:
            await eventually(lambda: picker.done() or any(line["event"] == "ready" for line in logs))
            if not picker.done():
                yield next(line for line in logs if line["event"] == "ready"), logs
            stop.set()
            await picker
        finally:
            picker.cancel()
            await asyncio.wait([picker])
            await replica.die()
    assert logs[-1]["event"] == "stopped"


async def ready(http: httpx2.AsyncClient, admin: str) -> httpx2.Response:
    async with asyncio.timeout(ANSWERS_S):
        while (page := await http.get(f"http://{admin}/ready")).status_code != 200:  # noqa: ASYNC110  as probes do
            await asyncio.sleep(0.002)
    return page


async def test_both_front_ends_and_the_admin_port_are_served_until_stopped(pool_file: Path) -> None:
    r0 = HttpReplica("r0")
    async with served(pool_file, r0, *FRONTS) as (at, _), httpx2.AsyncClient(timeout=ANSWERS_S) as http:
        page = (await ready(http, at["admin"])).json()
        assert page == {"status": "ready", "endpoints": {"r0": r0.endpoint}}
        url = f"http://{at['ext_authz']}/v1/chat/completions"
        answer = await http.post(url, json=chat())
        assert (answer.status_code, answer.content) == (200, b"")
        assert answer.headers["x-gateway-destination-endpoint"].startswith(r0.endpoint)
        async with grpc.aio.insecure_channel(at["ext_proc"]) as channel:
            health = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
            assert health.status == health_pb2.HealthCheckResponse.SERVING
        index = (await http.get(f"http://{at['admin']}/")).text
        assert index.startswith("penstock-picker of the pool tests")
        paths = [line.split()[0] for line in index.splitlines() if line.startswith("/")]
        assert paths == ["/metrics", "/penstock/v1/demand", "/health", "/ready"]
        pages = {path: await http.get(f"http://{at['admin']}{path}") for path in paths}
        assert {page.status_code for page in pages.values()} == {200}
        assert 'penstock_picker_requests_total{tier="chat"} 1.0' in pages["/metrics"].text
        assert pages["/penstock/v1/demand"].json()["tiers"]["chat"]["arrived"] == 1
        assert pages["/health"].json() == {"status": "ok"}
    with pytest.raises(httpx2.TransportError):
        async with httpx2.AsyncClient(timeout=ANSWERS_S) as http:
            await http.get(f"http://{at['admin']}/health")


@pytest.mark.parametrize("front", ["ext_authz", "ext_proc"])
async def test_a_front_end_that_is_not_configured_is_not_started(pool_file: Path, front: str) -> None:
    flags = (f"--{front.replace('_', '-')}-port", "0")
    async with served(pool_file, HttpReplica("r0"), *flags) as (at, _):
        assert {name for name in at if name.startswith("ext")} == {front}


async def test_without_replicas_a_picker_is_not_ready(pool_file: Path) -> None:
    r0 = HttpReplica("r0")
    async with (
        served(pool_file, r0, *FRONTS, source=Fixed({"r0": "127.0.0.1:1"})) as (at, _),
        httpx2.AsyncClient(timeout=ANSWERS_S) as http,
    ):
        page = await http.get(f"http://{at['admin']}/ready")
        assert (page.status_code, page.json()["error"]["code"]) == (503, "no_replicas")
        answer = await http.post(f"http://{at['ext_authz']}/v1/chat/completions", json=chat())
        assert answer.status_code == 503
        page = await http.get(f"http://{at['admin']}/metrics")
        assert 'penstock_picker_refused_total{status="503"} 1.0' in page.text


async def test_a_stopping_picker_answers_and_is_not_ready(
    pool_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, drained = asyncio.Event(), asyncio.Event()
    monkeypatch.setattr(main, "_drain", lambda options, pool: drained.wait())
    async with (
        served(pool_file, HttpReplica("r0"), *FRONTS, stop=stop) as (at, _),
        httpx2.AsyncClient(timeout=ANSWERS_S) as http,
    ):
        await ready(http, at["admin"])
        stop.set()
        page = await http.get(f"http://{at['admin']}/ready")
        assert (page.status_code, page.json()["error"]["code"]) == (503, "draining")
        answer = await http.post(f"http://{at['ext_authz']}/v1/chat/completions", json=chat())
        assert answer.status_code == 200
        drained.set()


@pytest.mark.parametrize("pool", [POOL_FILE + "  router: {maxHeaderBytes: 4096}\n"])
async def test_a_head_over_the_pools_bound_is_refused(pool_file: Path) -> None:
    r0 = HttpReplica("r0")
    async with (
        served(pool_file, r0, *FRONTS) as (at, _),
        httpx2.AsyncClient(base_url=f"http://{at['ext_authz']}", timeout=ANSWERS_S) as http,
    ):
        statuses = [
            (await http.get("/v1/models", headers={"x-long": "x" * length})).status_code
            for length in (3000, 5000)
        ]
        assert statuses[1] == 431 and statuses[0] != 431


async def test_with_a_certificate_front_ends_use_tls(pool_file: Path, tmp_path: Path) -> None:
    identity = Identity(tmp_path)
    flags = (*FRONTS, "--tls-cert", str(identity.cert), "--tls-key", str(identity.key))
    async with served(pool_file, HttpReplica("r0"), *flags) as (at, _):
        for front in ("ext_authz", "ext_proc"):
            host, port = at[front].split(":")
            pem = await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)))
            assert ssl.PEM_cert_to_DER_cert(pem) == identity.shown


@pytest.mark.parametrize(("pool", "unkept"), [(LIMITED, [["ide"]]), (POOL_FILE, [])], ids=["limits", "none"])
async def test_limits_that_a_picker_cannot_enforce_are_logged(
    pool_file: Path, unkept: list[list[str]]
) -> None:
    async with served(pool_file, HttpReplica("r0"), *FRONTS) as (_, logs):
        warned = [line for line in logs if line["event"].startswith("concurrentRequests")]
        assert [line["applications"] for line in warned] == unkept


class Broken:
    """A source of replicas that fails."""

    connected, malformed = False, 0

    async def sets(self) -> AsyncIterator[Endpoints]:
        yield {"r0": Endpoint("127.0.0.1:1")}
        raise ZeroDivisionError


async def test_a_failed_background_task_ends_the_process_with_its_error(pool_file: Path) -> None:
    options = parse(["-f", str(pool_file), "--replica", "x=h:1", "--admin-port", "0", *FRONTS])
    pool = load_pool(pool_file)
    keys = Keys(pool.spec.applications, {})
    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.timeout(ANSWERS_S):
            await main.serve(Configuration(pool, keys, Broken()), options, asyncio.Event())
    assert caught.group_contains(ZeroDivisionError)


async def test_a_taken_port_is_a_start_error(pool_file: Path) -> None:
    with listen("127.0.0.1", 0) as holder:
        taken = ("--ext-authz-port", str(holder.getsockname()[1]))
        with pytest.raises(StartError, match="port taken"):
            async with served(pool_file, HttpReplica("r0"), *taken):
                pass


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["-f", "/no/such.yaml"], "/no/such.yaml"),
        (["--key-secret", "ide=apps/keys"], "--key-secret: tests has no application ide\n"),
        (["--tls-cert", "/no/c.pem", "--tls-key", "/no/k.pem"], "/no/c.pem: No such file or directory\n"),
        (["--replica-tls-ca", "/no/such.pem"], "/no/such.pem: No such file or directory\n"),
    ],
    ids=["no pool", "a secret of nobody", "no certificate", "no authority"],
)
def test_invalid_options_end_the_process_with_exit_code_2(
    pool_file: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    flags: list[str],
    words: str,
) -> None:
    monkeypatch.setattr(front_process, "run_process", lambda serve: 1)
    flags = ["-f", str(pool_file), "--replica", "r0=h:1", *FRONTS, *flags]
    assert main.main(flags) == 2
    assert words in capsys.readouterr().err


def test_an_unreachable_cluster_exits_with_2(pool_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["-f", str(pool_file), "--discover", "n/s", "--kubeconfig", "/no/such", *FRONTS]
    assert main.main(flags) == 2
    assert capsys.readouterr().err.startswith("--discover: /no/such: ")


@pytest.mark.parametrize("code", [0, 1])
def test_the_exit_code_is_that_of_serving(
    pool_file: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(front_process, "run_process", lambda serve: code)
    assert main.main(["-f", str(pool_file), "--replica", "r0=h:1", *FRONTS]) == code


async def test_pickers_start_round_robin_at_different_offsets(
    pool_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []

    def noted(*given: Any, first_number: int, **more: Any) -> Any:
        begun.append(first_number)
        return Picker(*given, first_number=first_number, **more)

    monkeypatch.setattr(main, "Picker", noted)
    for _ in range(2):
        async with served(pool_file, HttpReplica("r0"), *FRONTS):
            pass
    assert begun[0] != begun[1]  # they are equal once in 2^16 runs


async def test_a_stopped_picker_answers_while_its_envoy_is_drained(
    pool_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statuses: list[int] = []

    async def drained(*_: object) -> None:
        async with httpx2.AsyncClient(timeout=ANSWERS_S) as http:
            statuses.append((await http.post(url, json=chat())).status_code)

    monkeypatch.setattr(main, "_drain", drained)
    async with (
        served(pool_file, HttpReplica("r0"), *FRONTS) as (at, _),
        httpx2.AsyncClient(timeout=ANSWERS_S) as http,
    ):
        await ready(http, at["admin"])
        url = f"http://{at['ext_authz']}/v1/chat/completions"
    assert statuses == [200]


def test_the_picker_is_an_installed_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["penstock-picker", "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(main.__file__, run_name="__main__")
    assert ended.value.code == 0
    assert "usage: penstock-picker" in capsys.readouterr().out
