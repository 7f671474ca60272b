"""The processes of a pool on this machine, and their command lines.

Each replica has a sidecar and, unless engines are external, an engine. One router is in front. The programs
are taken from this interpreter's folder, so that the pool runs the same release as this command.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from penstock_pool import Pool
from penstock_pool.engine_spec import AUTO

from penstock_cli.failure import Failure
from penstock_cli.local.certificate import CertificateFiles
from penstock_cli.local.ports import check_free, free_ports, is_free
from penstock_cli.local.vllm_engine import LOAD_TIMEOUT_S, VllmEngine, argv, environment

LOOPBACK = "127.0.0.1"
START_TIMEOUT_S = 60.0
ADMIN_STEP = 1000
"""Default distance of the admin port from the router's port: 8080 and 9080."""


class Role(StrEnum):
    """Roles of processes, in the order in which they are stopped, so that each can drain."""

    ROUTER = "router"
    SIDECAR = "sidecar"
    ENGINE = "engine"


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process. name: prefix of its log lines. environment: added to that of this command."""

    name: str
    role: Role
    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LocalPoolOptions:
    """Options of a pool on this machine.

    pool_file: the file that every process reads.
    engines: URLs of external engines; empty to start simulated ones or `vllm`.
    port: port of the router; 0 for any free one.
    admin_port: the router's admin port, on loopback; 0 for any free one. None: `ADMIN_STEP` above `port`, or
        any free one if that is taken.
    certificate: certificate of the API; None for plain HTTP.
    """

    pool_file: Path
    replicas: int
    host: str
    port: int
    engines: tuple[str, ...] = ()
    truth: str = "measured"
    seed: int = 0
    admin_port: int | None = None
    certificate: CertificateFiles | None = None
    vllm: VllmEngine | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """A pool's processes and their addresses.

    url: base URL of the API. admin_url: base URL of the router's admin port.
    engines: base URLs of engines, one per replica.
    metrics: URLs of the sidecars' metrics.
    start_s: timeout in seconds until all are ready.
    """

    processes: tuple[ProcessSpec, ...]
    url: str
    admin_url: str
    engines: tuple[str, ...]
    metrics: tuple[str, ...]
    start_s: float = START_TIMEOUT_S


def plan_layout(options: LocalPoolOptions, socket_dir: Path, pool: Pool | None = None) -> Layout:
    """Choose ports and sockets, and return the command lines. Raises Failure if the port is taken.

    pool: the pool; required to start vLLM.
    """
    if options.port:
        check_free(options.host, options.port, "--port")
    count = options.replicas
    ports = free_ports(3 * count + 2, LOOPBACK)
    sidecar_ports, metrics_ports, engine_ports = ports[:count], ports[count : 2 * count], ports[2 * count :]
    router_port = options.port or engine_ports.pop()
    admin_port = _admin_port(options) or engine_ports.pop()
    engines = options.engines or tuple(f"http://{LOOPBACK}:{port}" for port in engine_ports[:count])
    replicas = [
        _LocalReplica(index, engines[index], sidecar_ports[index], metrics_ports[index], socket_dir)
        for index in range(count)
    ]
    own_engines = [] if options.engines else [_engine(options, replica, pool) for replica in replicas]
    sidecars = [_sidecar(options, replica) for replica in replicas]
    router = _router(options, router_port, admin_port, replicas)
    return Layout(
        processes=(*own_engines, *sidecars, router),
        url=f"{'https' if options.certificate else 'http'}://{options.host}:{router_port}",
        admin_url=f"http://{LOOPBACK}:{admin_port}",
        engines=engines,
        metrics=tuple(f"http://{LOOPBACK}:{port}/metrics" for port in metrics_ports),
        start_s=_start_s(options, pool),
    )


def _admin_port(options: LocalPoolOptions) -> int:
    """Return the given admin port, or the default one if it is free, else 0. Raises Failure."""
    if options.admin_port is None:
        usual = options.port + ADMIN_STEP
        return usual if options.port and usual < 65536 and is_free(LOOPBACK, usual) else 0
    if options.admin_port:
        check_free(LOOPBACK, options.admin_port, "--admin-port")
    return options.admin_port


def _start_s(options: LocalPoolOptions, pool: Pool | None) -> float:
    """Return the timeout, which includes loading weights and measuring a time model."""
    engine = None if pool is None else pool.spec.engine
    measured_s = 0.0 if engine is None or engine.time_model != AUTO else 2 * engine.profile_timeout_s
    return START_TIMEOUT_S + measured_s + (0.0 if options.vllm is None else LOAD_TIMEOUT_S)


@dataclass(frozen=True, slots=True)
class _LocalReplica:
    index: int
    engine: str
    port: int
    metrics_port: int
    socket_dir: Path

    @property
    def name(self) -> str:
        return f"r{self.index}"

    @property
    def socket(self) -> str:
        return str(self.socket_dir / f"{self.name}.sock")


def _engine(options: LocalPoolOptions, replica: _LocalReplica, pool: Pool | None) -> ProcessSpec:
    host, port = replica.engine.removeprefix("http://").rsplit(":", 1)
    if options.vllm is not None and pool is not None:
        command, told = argv(options.vllm, pool, host, port), environment(pool, replica.socket)
        return ProcessSpec(f"engine-{replica.name}", Role.ENGINE, command, told)
    flags = ("--host", host, "--port", port, "--telemetry", replica.socket)
    seeds = ("--seed", str(options.seed + replica.index), "--truth", options.truth)
    return _process(options, f"engine-{replica.name}", Role.ENGINE, (*flags, *seeds))


def _sidecar(options: LocalPoolOptions, replica: _LocalReplica) -> ProcessSpec:
    flags = ("--name", replica.name, "--listen", f"{LOOPBACK}:{replica.port}", "--engine", replica.engine)
    metrics = ("--metrics-port", str(replica.metrics_port))
    # Only an engine that was started with the socket can report to it.
    telemetry = () if options.engines else ("--telemetry", replica.socket)
    return _process(options, f"sidecar-{replica.name}", Role.SIDECAR, (*flags, *metrics, *telemetry))


def _router(
    options: LocalPoolOptions, port: int, admin_port: int, replicas: Sequence[_LocalReplica]
) -> ProcessSpec:
    flags = ["--host", options.host, "--port", str(port)]
    flags += ["--admin-host", LOOPBACK, "--admin-port", str(admin_port)]
    if options.certificate is not None:
        flags += ["--tls-cert", str(options.certificate.cert), "--tls-key", str(options.certificate.key)]
    for replica in replicas:
        flags += ["--replica", f"{replica.name}={LOOPBACK}:{replica.port}"]
    return _process(options, "router", Role.ROUTER, tuple(flags))


def _process(options: LocalPoolOptions, name: str, role: Role, flags: tuple[str, ...]) -> ProcessSpec:
    program = Path(sys.executable).parent / f"penstock-{role}"
    if not program.exists():
        raise Failure(f"{program}: not installed; a pool needs penstock-{role} beside {sys.executable}")
    return ProcessSpec(name, role, (str(program), "-f", str(options.pool_file), *flags))
