"""Which processes a pool on this machine consists of, and the command line of each.

Each replica is a sidecar and, where it is simulated, an engine of its own; one router stands in front. The
programs are found beside this one's interpreter, so that the pool runs the release that its user called.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from penstock_pool import Pool
from penstock_pool.engine_spec import AUTO

from penstock_cli.failure import Failure
from penstock_cli.local.certificate import Certificate
from penstock_cli.local.ports import check_free, free_ports, is_free
from penstock_cli.local.vllm_engine import LOAD_TIMEOUT_S, Vllm, argv, environment

LOOPBACK = "127.0.0.1"
START_TIMEOUT_S = 60.0
ADMIN_STEP = 1000
"""From the router's port to that of its admin pages: 8080 and 9080."""


class Role(StrEnum):
    """What a process is, in the order in which a pool is stopped: no request is cut off from behind."""

    ROUTER = "router"
    SIDECAR = "sidecar"
    ENGINE = "engine"


@dataclass(frozen=True, slots=True)
class Process:
    """One process. name: before each of its log lines. environment: beside that of this command."""

    name: str
    role: Role
    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user asked for.

    pool_file: that every process reads.
    engines: URLs of engines that run already; empty: they are started, simulated ones or `vllm`.
    port: of the router; 0: any.
    admin_port: of the router's admin pages, on loopback; 0: any. None: `ADMIN_STEP` above `port`, or any
        where that is taken.
    certificate: of the API; None: plain HTTP.
    """

    pool_file: Path
    replicas: int
    host: str
    port: int
    engines: tuple[str, ...] = ()
    truth: str = "measured"
    seed: int = 0
    admin_port: int | None = None
    certificate: Certificate | None = None
    vllm: Vllm | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """A pool's processes and where they can be asked.

    url: of the API. admin_url: of the router's metrics and the state of the pool.
    engines: base URLs, one a replica.
    metrics: URLs of the sidecars' metrics.
    start_s: longest that they may take until all are ready.
    """

    processes: tuple[Process, ...]
    url: str
    admin_url: str
    engines: tuple[str, ...]
    metrics: tuple[str, ...]
    start_s: float = START_TIMEOUT_S


def lay_out(wanted: Wanted, socket_dir: Path, pool: Pool | None = None) -> Layout:
    """Choose ports and sockets and write the command lines. Raises Failure where the port is taken.

    pool: where vLLM is started, what it is started for.
    """
    if wanted.port:
        check_free(wanted.host, wanted.port, "--port")
    count = wanted.replicas
    ports = free_ports(3 * count + 2, LOOPBACK)
    sidecar_ports, metrics_ports, engine_ports = ports[:count], ports[count : 2 * count], ports[2 * count :]
    router_port = wanted.port or engine_ports.pop()
    admin_port = _admin_port(wanted) or engine_ports.pop()
    engines = wanted.engines or tuple(f"http://{LOOPBACK}:{port}" for port in engine_ports[:count])
    replicas = [
        _Replica(index, engines[index], sidecar_ports[index], metrics_ports[index], socket_dir)
        for index in range(count)
    ]
    own_engines = [] if wanted.engines else [_engine(wanted, replica, pool) for replica in replicas]
    sidecars = [_sidecar(wanted, replica) for replica in replicas]
    router = _router(wanted, router_port, admin_port, replicas)
    return Layout(
        processes=(*own_engines, *sidecars, router),
        url=f"{'https' if wanted.certificate else 'http'}://{wanted.host}:{router_port}",
        admin_url=f"http://{LOOPBACK}:{admin_port}",
        engines=engines,
        metrics=tuple(f"http://{LOOPBACK}:{port}/metrics" for port in metrics_ports),
        start_s=_start_s(wanted, pool),
    )


def _admin_port(wanted: Wanted) -> int:
    """The port that was asked for, or the usual one where it is free; 0: any. Raises Failure."""
    if wanted.admin_port is None:
        usual = wanted.port + ADMIN_STEP
        return usual if wanted.port and usual < 65536 and is_free(LOOPBACK, usual) else 0
    if wanted.admin_port:
        check_free(LOOPBACK, wanted.admin_port, "--admin-port")
    return wanted.admin_port


def _start_s(wanted: Wanted, pool: Pool | None) -> float:
    """Weights are loaded, and an engine may be measured, before a pool is ready."""
    engine = None if pool is None else pool.spec.engine
    measured_s = 0.0 if engine is None or engine.time_model != AUTO else 2 * engine.profile_timeout_s
    return START_TIMEOUT_S + measured_s + (0.0 if wanted.vllm is None else LOAD_TIMEOUT_S)


@dataclass(frozen=True, slots=True)
class _Replica:
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


def _engine(wanted: Wanted, replica: _Replica, pool: Pool | None) -> Process:
    host, port = replica.engine.removeprefix("http://").rsplit(":", 1)
    if wanted.vllm is not None and pool is not None:
        command, told = argv(wanted.vllm, pool, host, port), environment(pool, replica.socket)
        return Process(f"engine-{replica.name}", Role.ENGINE, command, told)
    flags = ("--host", host, "--port", port, "--telemetry", replica.socket)
    seeds = ("--seed", str(wanted.seed + replica.index), "--truth", wanted.truth)
    return _process(wanted, f"engine-{replica.name}", Role.ENGINE, (*flags, *seeds))


def _sidecar(wanted: Wanted, replica: _Replica) -> Process:
    flags = ("--name", replica.name, "--listen", f"{LOOPBACK}:{replica.port}", "--engine", replica.engine)
    metrics = ("--metrics-port", str(replica.metrics_port))
    # Only an engine that was started with the socket can report to it.
    telemetry = () if wanted.engines else ("--telemetry", replica.socket)
    return _process(wanted, f"sidecar-{replica.name}", Role.SIDECAR, (*flags, *metrics, *telemetry))


def _router(wanted: Wanted, port: int, admin_port: int, replicas: Sequence[_Replica]) -> Process:
    flags = ["--host", wanted.host, "--port", str(port)]
    flags += ["--admin-host", LOOPBACK, "--admin-port", str(admin_port)]
    if wanted.certificate is not None:
        flags += ["--tls-cert", str(wanted.certificate.cert), "--tls-key", str(wanted.certificate.key)]
    for replica in replicas:
        flags += ["--replica", f"{replica.name}={LOOPBACK}:{replica.port}"]
    return _process(wanted, "router", Role.ROUTER, tuple(flags))


def _process(wanted: Wanted, name: str, role: Role, flags: tuple[str, ...]) -> Process:
    program = Path(sys.executable).parent / f"penstock-{role}"
    if not program.exists():
        raise Failure(f"{program}: not installed; a pool needs penstock-{role} beside {sys.executable}")
    return Process(name, role, (str(program), "-f", str(wanted.pool_file), *flags))
