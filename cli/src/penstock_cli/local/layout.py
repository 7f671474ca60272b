"""The processes of a pool on this machine, and their command lines.

Each replica has a sidecar and, unless engines are external, an engine. In front is one router, or an Envoy
with its picker. The programs are taken from this interpreter's folder, so that the pool runs the
same release as this command.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from penstock_pool import Pool
from penstock_pool.engine_spec import AUTO
from penstock_runtime.envoy.bootstrap import FILE as ENVOY_FILE
from penstock_runtime.envoy.bootstrap import configuration_files
from penstock_runtime.envoy.endpoints import endpoints_document
from penstock_runtime.envoy.settings import EnvoySettings, SocketAddress

from penstock_cli.failure import Failure
from penstock_cli.local.certificate import CertificateFiles
from penstock_cli.local.envoy import GatewayAddresses, envoy_command, envoy_program, envoy_settings
from penstock_cli.local.ports import check_free, free_ports, is_free
from penstock_cli.local.vllm_engine import LOAD_TIMEOUT_S, VllmEngine, argv, environment

LOOPBACK = "127.0.0.1"
START_TIMEOUT_S = 60.0
"""Timeout of a process's start; loading vLLM has its own."""
ADMIN_STEP = 1000
"""Default distance of the admin port from the router's port: 8080 and 9080."""


class GatewayKind(StrEnum):
    """The process that clients connect to."""

    ROUTER = "router"
    ENVOY = "envoy"


class Role(StrEnum):
    """Roles of processes, in the order in which they are stopped, so that each can drain."""

    ROUTER = "router"
    PICKER = "picker"  # drains Envoy before it ends
    ENVOY = "envoy"
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
    gateway: the process that clients connect to.
    port: port of the gateway; 0 for any free one.
    admin_port: admin port of the router or the picker, on loopback; 0 for any free one. None: `ADMIN_STEP`
        above `port`, or any free one if that is taken.
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
    gateway: GatewayKind = GatewayKind.ROUTER


@dataclass(frozen=True, slots=True)
class Layout:
    """A pool's processes and their addresses.

    url: base URL of the API. admin_url: base URL of the router's or picker's admin port.
    engines: base URLs of engines, one per replica.
    metrics: URLs of the sidecars' metrics.
    ready: URLs that answer 200 when requests are served.
    files: contents of files that processes read, by path; written before they start.
    start_s: timeout in seconds until all are ready.
    """

    processes: tuple[ProcessSpec, ...]
    url: str
    admin_url: str
    engines: tuple[str, ...]
    metrics: tuple[str, ...]
    ready: tuple[str, ...]
    files: Mapping[Path, bytes] = field(default_factory=dict)
    start_s: float = START_TIMEOUT_S


def plan_layout(options: LocalPoolOptions, socket_dir: Path, pool: Pool | None = None) -> Layout:
    """Choose ports and sockets, and return the command lines. Raises Failure if the port is taken.

    pool: the pool; required to start vLLM or Envoy.
    """
    if options.port:
        check_free(options.host, options.port, "--port")
    ports = free_ports(4 * options.replicas + 4, LOOPBACK)
    port = options.port or ports.pop()
    admin_port = _admin_port(options) or ports.pop()
    replicas = [_replica(options, index, ports, socket_dir) for index in range(options.replicas)]
    own_engines = [] if options.engines else [_engine(options, replica, pool) for replica in replicas]
    sidecars = [_sidecar(options, replica) for replica in replicas]
    front = _front(options, _FrontPorts(port, admin_port, ports.pop(), ports.pop()), replicas, pool)
    admin_url = f"http://{LOOPBACK}:{admin_port}"
    return Layout(
        processes=(*own_engines, *sidecars, *front.processes),
        url=f"{'https' if options.certificate else 'http'}://{options.host}:{port}",
        admin_url=admin_url,
        engines=tuple(replica.engine for replica in replicas),
        metrics=tuple(f"http://{LOOPBACK}:{replica.metrics_port}/metrics" for replica in replicas),
        ready=(f"{admin_url}/ready", *front.ready),
        files=front.files,
        start_s=_start_s(options, pool),
    )


def _admin_port(options: LocalPoolOptions) -> int:
    """Return the given admin port, or the default one if it is free, else 0. Raises Failure."""
    if options.admin_port is None:
        default = options.port + ADMIN_STEP
        return default if options.port and default < 65536 and is_free(LOOPBACK, default) else 0
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
    http_port: int
    socket_dir: Path

    @property
    def name(self) -> str:
        return f"r{self.index}"

    @property
    def socket(self) -> str:
        return str(self.socket_dir / f"{self.name}.sock")


def _replica(options: LocalPoolOptions, index: int, ports: list[int], socket_dir: Path) -> _LocalReplica:
    """Return a replica. ports: free ports, from which it takes its own."""
    engine = options.engines[index] if options.engines else f"http://{LOOPBACK}:{ports.pop()}"
    return _LocalReplica(index, engine, ports.pop(), ports.pop(), ports.pop(), socket_dir)


def _engine(options: LocalPoolOptions, replica: _LocalReplica, pool: Pool | None) -> ProcessSpec:
    host, _, port = replica.engine.removeprefix("http://").rpartition(":")
    behind_gateway = options.gateway is GatewayKind.ENVOY and pool is not None and pool.spec.engine.direct
    if options.vllm is not None and pool is not None:
        command = argv(options.vllm, pool, host, port, behind_gateway=behind_gateway)
        variables = environment(pool, replica.socket)
        return ProcessSpec(f"engine-{replica.name}", Role.ENGINE, command, variables)
    flags = ("--host", host, "--port", port, "--telemetry", replica.socket)
    seeds = ("--seed", str(options.seed + replica.index), "--truth", options.truth)
    asking = ("--gateway-requests",) if behind_gateway else ()
    return _process(options, f"engine-{replica.name}", Role.ENGINE, (*flags, *seeds, *asking))


def _sidecar(options: LocalPoolOptions, replica: _LocalReplica) -> ProcessSpec:
    flags = ("--name", replica.name, "--listen", f"{LOOPBACK}:{replica.port}", "--engine", replica.engine)
    metrics = ("--metrics-port", str(replica.metrics_port))
    # Only an engine that was started with the socket can report to it.
    telemetry = () if options.engines else ("--telemetry", replica.socket)
    http = () if options.gateway is GatewayKind.ROUTER else ("--http-port", str(replica.http_port))
    return _process(options, f"sidecar-{replica.name}", Role.SIDECAR, (*flags, *metrics, *http, *telemetry))


class _FrontPorts(NamedTuple):
    """Ports of the processes in front of replicas. picker: Envoy's picker. pages: Envoy's own pages."""

    api: int
    admin: int
    picker: int
    pages: int


class _Front(NamedTuple):
    """The processes in front of replicas. Fields as in `Layout`."""

    processes: tuple[ProcessSpec, ...]
    ready: tuple[str, ...] = ()
    files: Mapping[Path, bytes] = MappingProxyType({})


def _front(
    options: LocalPoolOptions, ports: _FrontPorts, replicas: Sequence[_LocalReplica], pool: Pool | None
) -> _Front:
    common_flags = [flag for one in replicas for flag in ("--replica", f"{one.name}={LOOPBACK}:{one.port}")]
    common_flags += ["--admin-host", LOOPBACK, "--admin-port", str(ports.admin)]
    if options.gateway is GatewayKind.ROUTER:
        return _Front((_router(options, ports.api, common_flags),))
    assert pool is not None
    at = GatewayAddresses(
        SocketAddress(options.host, ports.api),
        SocketAddress(LOOPBACK, ports.pages),
        SocketAddress(LOOPBACK, ports.picker),
    )
    settings = envoy_settings(pool, at, replicas[0].socket_dir, options.certificate)
    files = {Path(settings.file(name)): text for name, text in configuration_files(settings).items()}
    config = envoy_command(envoy_program(), Path(settings.file(ENVOY_FILE)))
    return _Front(
        (_picker(options, settings, common_flags), ProcessSpec("envoy", Role.ENVOY, config)),
        (f"http://{LOOPBACK}:{ports.pages}/ready",),
        {**files, Path(settings.endpoints_file): endpoints_document(())},
    )


def _router(options: LocalPoolOptions, port: int, common_flags: Sequence[str]) -> ProcessSpec:
    flags = ["--host", options.host, "--port", str(port), *common_flags]
    if options.certificate is not None:
        flags += ["--tls-cert", str(options.certificate.cert), "--tls-key", str(options.certificate.key)]
    return _process(options, "router", Role.ROUTER, tuple(flags))


def _picker(options: LocalPoolOptions, settings: EnvoySettings, common_flags: Sequence[str]) -> ProcessSpec:
    flags = ("--host", settings.picker.host, "--ext-authz-port", str(settings.picker.port), *common_flags)
    envoy_flags = ("--endpoints-file", settings.endpoints_file, "--envoy-admin", settings.admin_socket)
    return _process(options, "picker", Role.PICKER, (*flags, *envoy_flags))


def _process(options: LocalPoolOptions, name: str, role: Role, flags: tuple[str, ...]) -> ProcessSpec:
    program = Path(sys.executable).parent / f"penstock-{role}"
    if not program.exists():
        raise Failure(
            f"{program}: not installed; a pool needs penstock-{role} in the folder of {sys.executable}"
        )
    return ProcessSpec(name, role, (str(program), "-f", str(options.pool_file), *flags))
