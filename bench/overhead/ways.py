"""The ways from a client to an engine that are compared, by name.

Each has its own engine, the same program with the same settings, because an engine behind a sidecar reports
to it and would report other ways' requests too. To add a way, write a function that starts it.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from overhead.deployments import DIRECT_POOL, envoy_alone, gateway, penstock
from overhead.fast_engine import MODEL
from overhead.machine import MEASURED_CORE, EngineRoute, Machine, machine, wait_until_ready
from overhead.programs import LITELLM, SMG, VLLM_ROUTER
from penstock_cli.local.ports import free_ports

ROUTER, ROUTER_DIRECT = "router", "router+direct"
AUTHZ, ENVOY_DIRECT, PROC = "envoy+authz", "envoy+direct", "envoy+proc"
OURS = (ROUTER, ROUTER_DIRECT, AUTHZ, ENVOY_DIRECT, PROC)


def direct(machine: Machine, step_ms: float) -> EngineRoute:
    """Return direct access to the engine, the baseline of added latency."""
    return EngineRoute("direct", f"http://{machine.engine('engine-direct', step_ms, None).address}", {})


def vllm_router(machine: Machine, step_ms: float) -> EngineRoute:
    """Start the vLLM project's router, in Rust."""
    engine = machine.engine("engine-vllm-router", step_ms, None).address
    port, metrics_port = free_ports(2, "127.0.0.1")
    command: list[str | Path] = [
        *(VLLM_ROUTER.installed(), "--host", "127.0.0.1", "--port", str(port), "--policy", "round_robin"),
        *("--worker-urls", f"http://{engine}", "--prometheus-port", str(metrics_port)),
        *("--log-level", "warning", "--max-concurrent-requests", "8192"),
    ]
    return _started(machine, "vllm-router", command, port, "/readiness")


def smg(machine: Machine, step_ms: float) -> EngineRoute:
    """Start Shepherd Model Gateway, formerly SGLang's router, in Rust with a launcher in Python."""
    engine = machine.engine("engine-smg", step_ms, None).address
    port, metrics_port = free_ports(2, "127.0.0.1")
    command: list[str | Path] = [
        *(SMG.installed(), "launch", "--host", "127.0.0.1", "--port", str(port)),
        *("--worker-urls", f"http://{engine}", "--policy", "round_robin", "--log-level", "error"),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port)),
    ]
    return _started(machine, "smg", command, port, "/readiness")


def litellm(machine: Machine, step_ms: float) -> EngineRoute:
    """Start LiteLLM's proxy, in Python, with one worker and without a database."""
    engine = machine.engine("engine-litellm", step_ms, None).address
    (port,) = free_ports(1, "127.0.0.1")
    deployment = {"model": f"openai/{MODEL}", "api_base": f"http://{engine}/v1", "api_key": "none"}
    config = machine.folder / "litellm.yaml"
    config.write_text(json.dumps({"model_list": [{"model_name": MODEL, "litellm_params": deployment}]}))
    settings = (  # no downloads, and no error for equal chunks of a stream
        *("env", "LITELLM_LOCAL_MODEL_COST_MAP=True", "LITELLM_LOG=ERROR"),
        "REPEATED_STREAMING_CHUNK_LIMIT=1000000",
    )
    command: list[str | Path] = [
        *(*settings, LITELLM.installed(), "--config", config, "--telemetry", "False"),
        *("--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"),
    ]
    return replace(_started(machine, "litellm", command, port, "/health/liveliness"), most_streams=16)


def _started(machine: Machine, name: str, command: list[str | Path], port: int, ready: str) -> EngineRoute:
    """Start a third-party router on the measured core, and wait until its page `ready` answers."""
    started = machine.start(name, command, MEASURED_CORE)
    wait_until_ready(f"http://127.0.0.1:{port}{ready}")
    return EngineRoute(name, f"http://127.0.0.1:{port}", {name: started.pid})


WAYS: dict[str, Callable[[Machine, float], EngineRoute]] = {
    "direct": direct,
    ROUTER: partial(penstock, name=ROUTER),
    ROUTER_DIRECT: partial(penstock, name=ROUTER_DIRECT, pool_text=DIRECT_POOL),
    AUTHZ: partial(gateway, name=AUTHZ),
    ENVOY_DIRECT: partial(gateway, name=ENVOY_DIRECT, pool_text=DIRECT_POOL),
    PROC: partial(gateway, name=PROC),
    "envoy": partial(envoy_alone, name="envoy"),
    "vllm-router": vllm_router,
    "smg": smg,
    "litellm": litellm,
}


@contextmanager
def ways(folder: Path, step_ms: float, names: Sequence[str]) -> Iterator[dict[str, EngineRoute]]:
    """Start the ways of these names, and stop them after the block."""
    with machine(folder) as host:
        yield {name: WAYS[name](host, step_ms) for name in names}
