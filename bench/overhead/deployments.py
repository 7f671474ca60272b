"""Penstock in front of fast engines: sidecars, and a router or an Envoy with its picker in front of them."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import orjson
from overhead.machine import (
    MEASURED_CORE,
    OTHER_CORE,
    EngineRoute,
    FastEngine,
    Machine,
    Started,
    wait_until_ready,
)
from overhead.tls_files import TlsFiles
from penstock_cli.local.envoy import envoy_command, envoy_program
from penstock_cli.local.ports import free_ports
from penstock_runtime.envoy import ext_authz, ext_proc
from penstock_runtime.envoy.bootstrap import bootstrap
from penstock_runtime.envoy.endpoints import write_endpoints
from penstock_runtime.envoy.json_parts import Json
from penstock_runtime.envoy.settings import EnvoySettings, SocketAddress

BIN = Path(sys.executable).parent
BENCH = Path(__file__).resolve().parents[1]

POOL = """\
apiVersion: penstock.dev/v1alpha1
kind: ServingPool
metadata: {name: bench}
spec:
  model: {name: bench}
  engine: {type: vllm, timeModel: llama-3-8b-a100, kvCacheTokens: 16000000}
  replicas: 1
  tiers:
  - {name: chat, slo: {ttft: 60s, tpot: 1s}}
  - {name: batch, bestEffort: true}
  defaultTier: chat
  scheduling: {policy: slos-serve, maxRunning: 4096, maxWaiting: 4096}
"""
"""A pool with loose targets: every request is planned, as in a real pool, and none is rejected."""

DIRECT_POOL = POOL.replace("type: vllm", "type: vllm, answerPath: direct")

PICKER = {"envoy+authz": "ext_authz", "envoy+direct": "ext_authz", "envoy+proc": "ext_proc"}
"""Protocol between Envoy and picker, by way."""


@dataclass(frozen=True, slots=True)
class FastReplica:
    """A sidecar with a fast engine. grpc, http: its addresses for routers and gateways."""

    name: str
    grpc: str
    http: str
    pid: int
    engine_pid: int


def replicas(
    machine: Machine,
    name: str,
    pools: Sequence[str],
    step_ms: float,
    programs: Path = BIN,
    *,
    http: bool,
    tls: TlsFiles | None = None,
) -> list[FastReplica]:
    """Start a sidecar and its engine for each pool file.

    http: whether gateways are served too, with `answerPath: direct` at the engine's port. tls: files of the
    servers that routers read from.
    """
    started: list[tuple[Started, FastEngine]] = []
    for number, text in enumerate(pools):
        pool, telemetry = (
            pool_file(machine, f"{name}-r{number}", text),
            machine.folder / f"{name}{number}.sock",
        )
        direct = "answerPath: direct" in text
        engine_tls = tls if direct else None
        scheme = "https" if engine_tls else "http"
        engine = machine.engine(
            f"engine-{name}-r{number}",
            step_ms,
            telemetry,
            (*(engine_tls.engine if engine_tls else ()), *(("--asks",) if direct and http else ())),
        )
        command: list[str | Path] = [
            *(programs / "penstock-sidecar", "-f", pool, "--name", f"r{number}", "--listen", "127.0.0.1:0"),
            *("--engine", f"{scheme}://{engine.address}", "--telemetry", telemetry),
            *(("--http-port", "0") if http else ()),
            *(tls.sidecar if tls else ()),
            *(engine_tls.to_engine if engine_tls else ()),
        ]
        sidecar = machine.start(f"sidecar-{name}-r{number}", command, MEASURED_CORE)
        if direct and http:
            sidecar.wait_for(r"(event=.?engine connected)")
        started.append((sidecar, engine))
    return [
        FastReplica(
            f"r{number}",
            _serving(sidecar, "address"),
            _for_gateways(sidecar, engine, pools[number]) if http else "",
            sidecar.pid,
            engine.pid,
        )
        for number, (sidecar, engine) in enumerate(started)
    ]


def _for_gateways(sidecar: Started, engine: FastEngine, pool_text: str) -> str:
    """Return the address of a replica for gateways."""
    return engine.address if "answerPath: direct" in pool_text else _serving(sidecar, "http")


def fake_replicas(machine: Machine, count: int, *flags: str) -> Started:
    """Start fake replicas, in one process on the core of engines and client."""
    command = [f"PYTHONPATH={BENCH}", sys.executable, "-m", "overhead.fake_replicas", str(count), *flags]
    return machine.start("fake-replicas", ["env", *command], OTHER_CORE)


def idle_replicas(machine: Machine, count: int) -> list[FastReplica]:
    """Start fake replicas that report themselves idle."""
    process = fake_replicas(machine, count, "--idle")
    ports, http_ports = process.wait_for(r"ready (\S+ http \S+)").split(" http ")
    return [
        FastReplica(f"fake{n}", f"127.0.0.1:{port}", f"127.0.0.1:{http}", process.pid, process.pid)
        for n, (port, http) in enumerate(zip(ports.split(","), http_ports.split(","), strict=True))
    ]


def penstock(
    machine: Machine, step_ms: float, name: str = "penstock", programs: Path = BIN, pool_text: str = POOL
) -> EngineRoute:
    """Start router, sidecar and engine. programs: folder of the first two, of this or another checkout."""
    behind = replicas(machine, name, [pool_text], step_ms, programs, http=False)
    return router(machine, name, behind, programs, pool_text)


def gateway(machine: Machine, step_ms: float, name: str, pool_text: str = POOL) -> EngineRoute:
    """Start Envoy, its picker, a sidecar and its engine. name: selects the protocol of the picker."""
    behind = replicas(machine, name, [pool_text], step_ms, http=True)
    return envoy(machine, name, behind, PICKER[name], pool_text)


def router(
    machine: Machine,
    name: str,
    behind: Sequence[FastReplica],
    programs: Path = BIN,
    pool_text: str = POOL,
    *,
    tls: TlsFiles | None = None,
) -> EngineRoute:
    """Start a router in front of replicas. tls: files for its connections to replicas."""
    pool = pool_file(machine, name, pool_text)
    front = machine.start(
        f"router-{name}",
        [
            *(programs / "penstock-router", "-f", pool, "--host", "127.0.0.1", "--port", "0"),
            *_replica_flags(behind),
            *_admin_port(programs),
            *(tls.router if tls else ()),
        ],
        MEASURED_CORE,
    )
    url = f"http://{_serving(front, 'address')}"
    wait_until_ready(f"{url}/ready")
    return EngineRoute(name, url, {"router": front.pid} | _pids(behind))


def envoy(
    machine: Machine, name: str, behind: Sequence[FastReplica], protocol: str, pool_text: str = POOL
) -> EngineRoute:
    """Start an Envoy and a picker in front of replicas. protocol: between Envoy and picker."""
    folder = machine.folder / name
    folder.mkdir()
    picker = machine.start(
        f"picker-{name}",
        [
            *(BIN / "penstock-picker", "-f", pool_file(machine, name, pool_text), "--admin-port", "0"),
            *(f"--{protocol.replace('_', '-')}-port", "0"),
            *_replica_flags(behind),
        ],
        MEASURED_CORE,
    )
    wait_until_ready(f"http://{_serving(picker, 'admin')}/ready")
    settings = _envoy_settings(folder, _address(_serving(picker, protocol)))
    write_endpoints(Path(settings.endpoints_file), [replica.http for replica in behind])
    picker_filter = {"ext_authz": ext_authz.ext_authz, "ext_proc": ext_proc.ext_proc}[protocol](settings)
    front = _start_envoy(machine, name, settings, bootstrap(settings, picker_filter))
    return EngineRoute(name, _url(settings.api), {"envoy": front.pid, "picker": picker.pid} | _pids(behind))


def envoy_alone(machine: Machine, step_ms: float, name: str) -> EngineRoute:
    """Start an Envoy in front of an engine: the same configuration without a picker."""
    folder = machine.folder / name
    folder.mkdir()
    engine = machine.engine(f"engine-{name}", step_ms, None).address
    settings = _envoy_settings(folder, SocketAddress("127.0.0.1", *free_ports(1, "127.0.0.1")))
    write_endpoints(Path(settings.endpoints_file), [engine])
    config = bootstrap(settings)
    manager = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    del manager["http_filters"][0]
    return EngineRoute(name, _url(settings.api), {"envoy": _start_envoy(machine, name, settings, config).pid})


def pool_file(machine: Machine, name: str, text: str) -> Path:
    file = machine.folder / f"pool-{name}.yaml"
    file.write_text(text)
    return file


def _start_envoy(machine: Machine, name: str, settings: EnvoySettings, config: Json) -> Started:
    file = Path(settings.folder) / "envoy.json"
    file.write_bytes(orjson.dumps(config))
    front = machine.start(f"envoy-{name}", list(envoy_command(envoy_program(), file)), MEASURED_CORE)
    wait_until_ready(f"{_url(settings.pages)}/ready")
    return front


def _envoy_settings(folder: Path, picker: SocketAddress) -> EnvoySettings:
    api, pages = (SocketAddress("127.0.0.1", port) for port in free_ports(2, "127.0.0.1"))
    return EnvoySettings(api=api, pages=pages, picker=picker, folder=PurePosixPath(folder))


def _serving(started: Started, what: str) -> str:
    """Return the address of this name in the log line of a ready process."""
    return started.wait_for(rf"(?m)^(?=.*\bevent=ready\b).*\b{what}=(127\.0\.0\.1:\d+)")


def _pids(behind: Sequence[FastReplica]) -> dict[str, int]:
    if len(behind) == 1:
        return {"sidecar": behind[0].pid}
    return {f"sidecar {replica.name}": replica.pid for replica in behind}


def _replica_flags(behind: Sequence[FastReplica]) -> tuple[str, ...]:
    return tuple(word for each in behind for word in ("--replica", f"{each.name}={each.grpc}"))


def _address(text: str) -> SocketAddress:
    host, _, port = text.rpartition(":")
    return SocketAddress(host, int(port))


def _url(at: SocketAddress) -> str:
    return f"http://{at.host}:{at.port}"


def _admin_port(programs: Path) -> tuple[str, ...]:
    """Return the flag of a free admin port, if the router has one; early versions have none."""
    flags = subprocess.run(
        [programs / "penstock-router", "--help"], capture_output=True, text=True, check=True
    )
    return ("--admin-port", "0") if "--admin-port" in flags.stdout else ()
