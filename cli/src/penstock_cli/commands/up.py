"""`penstock up`: runs a pool on this machine."""

import asyncio
import signal
import tempfile
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from penstock_pool import Pool, load_keys
from rich.console import Console

from penstock_cli.commands.validate import PoolFile, headline, tiers_table
from penstock_cli.local.certificate import certificate_files
from penstock_cli.local.effective_pool import Overrides, effective_pool
from penstock_cli.local.engines import STARTED_TYPES, check_engines, engine_urls
from penstock_cli.local.layout import ADMIN_STEP, GatewayKind, Layout, LocalPoolOptions
from penstock_cli.local.local_pool import local_pool
from penstock_cli.local.log_sinks import ConsoleSink
from penstock_cli.local.vllm_engine import PYTHON_VARIABLE, vllm_engine


class Truth(StrEnum):
    """Ground truth of simulated engines."""

    MEASURED = "measured"
    EXACT = "exact"


GatewayName = Annotated[
    GatewayKind,
    typer.Option(
        help="Process that clients connect to: the built-in router, or Envoy with a picker "
        "(pip install 'penstock[envoy]')."
    ),
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port of the gateway; 0 for any free one.")]
AdminPort = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=65535,
        help="Port of metrics and the pool's state, on loopback only; 0 for any free one. By default "
        f"{ADMIN_STEP} above --port, or any free one if that is taken.",
    ),
]
Host = Annotated[str, typer.Option(help="Address on which the gateway listens.")]
Replicas = Annotated[
    int | None,
    typer.Option(min=1, max=64, help="Overrides the file's number of replicas."),
]
Engine = Annotated[
    str | None,
    typer.Option(
        metavar="simulated|vllm|URL[,URL…]",
        help="Simulated engines, vLLM with Penstock's scheduler, or running engines, one URL per replica. "
        "Overrides the file's engine type.",
    ),
]
Policy = Annotated[str | None, typer.Option(help="Overrides the file's policy.")]
TruthName = Annotated[
    Truth, typer.Option(help="Ground truth of simulated engines: measured kernel times, or the time model.")
]
Model = Annotated[
    Path | None,
    typer.Option(help="vLLM: folder of the model. By default it is downloaded by its hub id."),
]
VllmPython = Annotated[
    Path | None,
    typer.Option(
        help=f"Python with vLLM and penstock-vllm-plugin. By default ${PYTHON_VARIABLE}, this Python, or "
        "that of the vllm on PATH."
    ),
]
Seed = Annotated[int, typer.Option(help="Seed of simulated engines.")]
TlsCert = Annotated[
    Path | None,
    typer.Option(
        metavar="PEM",
        help="Serve the API over TLS with this certificate; it is reloaded when the file changes.",
    ),
]
TlsKey = Annotated[Path | None, typer.Option(metavar="PEM", help="Key of the certificate.")]


def up(
    *,
    file: PoolFile,
    gateway: GatewayName = GatewayKind.ROUTER,
    port: Port = 8080,
    admin_port: AdminPort = None,
    host: Host = "127.0.0.1",
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    replicas: Replicas = None,
    engine: Engine = None,
    policy: Policy = None,
    truth: TruthName = Truth.MEASURED,
    seed: Seed = 0,
    model: Model = None,
    vllm_python: VllmPython = None,
) -> None:
    """Run a pool on this machine, one process per component, until Ctrl-C.

    A process that ends is restarted. External engines are used by their URL and are not stopped.

    Examples:

      penstock up -f examples/demo-pool.yaml

      penstock up -f pool.yaml --port 9000 --replicas 4 --policy vllm

      penstock up -f pool.yaml --engine vllm --model ./tiny-model

      penstock up -f pool.yaml --engine http://10.0.0.5:8000,http://10.0.0.6:8000

      penstock up -f pool.yaml --gateway envoy

      penstock up -f pool.yaml --host 0.0.0.0 --tls-cert tls.crt --tls-key tls.key
    """
    certificate = certificate_files(tls_cert, tls_key)
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="penstock-pool-") as folder:
        urls = engine_urls(engine)
        overrides = Overrides(policy=policy, engine_type=engine if engine in STARTED_TYPES else None)
        pool_file, pool = effective_pool(file, overrides, Path(folder))
        load_keys(pool, pool_file.parent)
        check_engines(pool, file, urls, replicas)
        options = LocalPoolOptions(
            pool_file=pool_file,
            replicas=len(urls) or replicas or pool.spec.initial_replicas,
            gateway=gateway,
            host=host,
            port=port,
            admin_port=admin_port,
            certificate=certificate,
            engines=urls,
            truth=truth.value,
            seed=seed,
            vllm=None if urls or pool.spec.engine.type != "vllm" else vllm_engine(pool, vllm_python, model),
        )
        asyncio.run(_serve(pool, options, console))


async def _serve(pool: Pool, options: LocalPoolOptions, console: Console) -> None:
    """Run until a signal, and then until everything has stopped. A second signal does not wait."""
    serving = asyncio.create_task(_keep_up(pool, options, console))

    def stop() -> None:
        console.print(f"stopping: the {options.gateway} first, engines last", style="yellow")
        serving.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    with suppress(asyncio.CancelledError):
        await serving


async def _keep_up(pool: Pool, options: LocalPoolOptions, console: Console) -> None:
    sink = ConsoleSink(console, width=len(f"sidecar-r{options.replicas - 1}"))
    drain_s = max(pool.spec.router.drain_timeout_s, pool.spec.scheduling.drain_timeout_s)
    with console.status("starting") as status:

        def show(ready: int, components: int) -> None:
            status.update(f"starting: {ready} of {components} components are ready")

        async with local_pool(options, sink, drain_s, show, pool) as layout:
            status.stop()
            console.print(_summary(pool, options.replicas, layout), tiers_table(pool), "")
            await asyncio.get_running_loop().create_future()  # until cancelled


def _summary(pool: Pool, replicas: int, layout: Layout) -> str:
    return (
        f"\n{headline(pool, replicas)}\nserving at {layout.url}/v1 — Ctrl-C stops it\n"
        f"metrics and the pool's state at {layout.admin_url}\n"
    )
