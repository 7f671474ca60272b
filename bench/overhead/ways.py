"""The ways from a client to an engine that are measured beside each other, by name.

Each has an engine of its own, the same program with the same settings, because the one behind a sidecar
reports to it and would report the others' requests too. To add one, write the function that starts it.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from overhead.deployments import DIRECT_POOL, envoy_alone, gateway, penstock
from overhead.fast_engine import MODEL
from overhead.machine import MEASURED_CORE, Machine, Way, free_port, machine, wait_until_ready
from overhead.programs import LITELLM, SMG, VLLM_ROUTER

ROUTER, ROUTER_DIRECT, AUTHZ, PROC = "router", "router+direct", "envoy+authz", "envoy+proc"
OURS = (ROUTER, ROUTER_DIRECT, AUTHZ, PROC)


def direct(machine: Machine, step_ms: float) -> Way:
    """No router at all: what others' latency is added to."""
    return Way("direct", f"http://{machine.engine('engine-direct', step_ms, None).address}", {})


def vllm_router(machine: Machine, step_ms: float) -> Way:
    """The vLLM project's router, in Rust."""
    engine, port = machine.engine("engine-vllm-router", step_ms, None).address, free_port()
    started = machine.start(
        "vllm-router",
        [
            *(VLLM_ROUTER.installed(), "--host", "127.0.0.1", "--port", str(port), "--policy", "round_robin"),
            *("--worker-urls", f"http://{engine}", "--prometheus-port", str(free_port())),
            *("--log-level", "warning", "--max-concurrent-requests", "8192"),
        ],
        MEASURED_CORE,
    )
    wait_until_ready(f"http://127.0.0.1:{port}/readiness")
    return Way("vllm-router", f"http://127.0.0.1:{port}", {"vllm-router": started.pid})


def smg(machine: Machine, step_ms: float) -> Way:
    """Shepherd Model Gateway, which was SGLang's router, in Rust with a launcher in Python."""
    engine, port = machine.engine("engine-smg", step_ms, None).address, free_port()
    started = machine.start(
        "smg",
        [
            *(SMG.installed(), "launch", "--host", "127.0.0.1", "--port", str(port)),
            *("--worker-urls", f"http://{engine}", "--policy", "round_robin", "--log-level", "error"),
            *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())),
        ],
        MEASURED_CORE,
    )
    wait_until_ready(f"http://127.0.0.1:{port}/readiness")
    return Way("smg", f"http://127.0.0.1:{port}", {"smg": started.pid})


def litellm(machine: Machine, step_ms: float) -> Way:
    """LiteLLM's proxy, in Python, with one worker and without a database."""
    engine, port = machine.engine("engine-litellm", step_ms, None).address, free_port()
    deployment = {"model": f"openai/{MODEL}", "api_base": f"http://{engine}/v1", "api_key": "none"}
    config = machine.folder / "litellm.yaml"
    config.write_text(json.dumps({"model_list": [{"model_name": MODEL, "litellm_params": deployment}]}))
    settings = (  # it fetches nothing, and passes on the engine's chunks although all are the same
        *("env", "LITELLM_LOCAL_MODEL_COST_MAP=True", "LITELLM_LOG=ERROR"),
        "REPEATED_STREAMING_CHUNK_LIMIT=1000000",
    )
    started = machine.start(
        "litellm",
        [
            *(*settings, LITELLM.installed(), "--config", config, "--telemetry", "False"),
            *("--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"),
        ],
        MEASURED_CORE,
    )
    wait_until_ready(f"http://127.0.0.1:{port}/health/liveliness")
    return Way("litellm", f"http://127.0.0.1:{port}", {"litellm": started.pid}, most_streams=16)


WAYS: dict[str, Callable[[Machine, float], Way]] = {
    "direct": direct,
    ROUTER: partial(penstock, name=ROUTER),
    ROUTER_DIRECT: partial(penstock, name=ROUTER_DIRECT, pool_text=DIRECT_POOL),
    AUTHZ: partial(gateway, name=AUTHZ),
    PROC: partial(gateway, name=PROC),
    "envoy": partial(envoy_alone, name="envoy"),
    "vllm-router": vllm_router,
    "smg": smg,
    "litellm": litellm,
}


@contextmanager
def ways(folder: Path, step_ms: float, names: Sequence[str]) -> Iterator[dict[str, Way]]:
    """The ways of these names, up and answering; stopped on leaving."""
    with machine(folder) as host:
        yield {name: WAYS[name](host, step_ms) for name in names}
