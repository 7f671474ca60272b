"""`penstock demo`: a minute of recorded traffic on the same engines, with Penstock and with vLLM's policy.

Both runs are pools of processes in real time. One has Penstock's admission, scheduling and hops to further
replicas; the other has round-robin routing and first come, first served with chunked prefill.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from penstock_pool import Pool, load_pool
from rich.console import Console
from rich.table import Table

from penstock_cli.failure import Failure
from penstock_cli.local.effective_pool import Overrides, effective_pool
from penstock_cli.local.layout import LOOPBACK, LocalPoolOptions
from penstock_cli.local.local_pool import local_pool
from penstock_cli.local.log_sinks import FileSink
from penstock_cli.replay.outcome import RequestEnding
from penstock_cli.replay.report import (
    HEADS,
    Report,
    aligned,
    all_label,
    cells,
    console_for_tables,
    lateness,
    number,
    worst_first,
)
from penstock_cli.replay.run import ReplaySettings, replay
from penstock_cli.replay.slo_options import slos_of_pool

EXAMPLES = Path("examples")


@dataclass(frozen=True, slots=True)
class DemoRun:
    """One of the two runs. label: its name in the table."""

    label: str
    overrides: Overrides


@dataclass(frozen=True, slots=True)
class DemoInputs:
    """The input of both runs."""

    pool_file: Path
    trace: Path
    seed: int


RUNS = (
    DemoRun("slos-serve", Overrides()),
    DemoRun("vllm", Overrides(policy="vllm", order="round-robin")),
)

PoolFile = Annotated[Path, typer.Option("-f", "--file", help="The pool file.")]
TraceFile = Annotated[Path, typer.Option(help="The trace to replay.")]
Seed = Annotated[int, typer.Option(help="Seed of the simulated engines and the prompts.")]


def demo(
    *,
    file: PoolFile = EXAMPLES / "demo-pool.yaml",
    trace: TraceFile = EXAMPLES / "azure-excerpt.csv.gz",
    seed: Seed = 0,
) -> None:
    """Replay a minute of Azure's chat and code traffic with Penstock, and with vLLM's policy.

    Each run has two simulated replicas and sends HTTP requests in real time. Both runs together take about
    three minutes. Prints one table at the end.

    Example: penstock demo
    """
    for needed in (file, trace):
        if not needed.exists():
            raise Failure(
                f"{needed}: no such file; run this in the project's folder, or give --file and --trace"
            )
    pool = load_pool(file)
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as folder:
        reports = {
            demo_run.label: uvloop.run(_run(demo_run, DemoInputs(file, trace, seed), Path(folder), console))
            for demo_run in RUNS
        }
    _show(pool, reports)


async def _run(demo_run: DemoRun, inputs: DemoInputs, folder: Path, console: Console) -> Report:
    """Start a pool, replay the trace, and stop the pool."""
    pool_file, pool = effective_pool(inputs.pool_file, demo_run.overrides, folder)
    replicas = pool.spec.initial_replicas
    options = LocalPoolOptions(pool_file, replicas, LOOPBACK, port=0, seed=inputs.seed)
    with FileSink((folder / f"{demo_run.label}.log").open("w")) as sink:
        console.print(f"{demo_run.label}: starting {replicas} replicas")
        async with local_pool(
            options, sink, drain_s=5.0, on_progress=lambda ready, components: None
        ) as layout:
            settings = ReplaySettings(
                trace=inputs.trace,
                url=layout.url,
                seed=inputs.seed,
                tier_slos=slos_of_pool(pool),
            )
            return await replay(settings, console, demo_run.label)


def _show(pool: Pool, reports: dict[str, Report]) -> None:
    console = console_for_tables()
    console.print()
    console.print(_side_by_side(pool, reports))
    console.print(_conclusion(reports))
    for label, report in reports.items():
        console.print(f"{label}: {lateness(report.tally)}", style="dim")
    failures = [
        f"{label}: {times} × {reason}"
        for label, report in reports.items()
        for reason, times in report.tally.reasons.items()
    ]
    if failures:
        raise Failure("requests failed:", *failures)


def _side_by_side(pool: Pool, reports: dict[str, Report]) -> Table:
    lines = list(_lines(reports))
    heads = (HEADS[0], "policy", *HEADS[1:])
    spec = pool.spec
    title = f"{spec.model.name} on {spec.initial_replicas} simulated replicas, a minute of Azure's traffic"
    return aligned(title, heads, lines, left=2)


def _lines(reports: dict[str, Report]) -> Iterator[list[str]]:
    """Yield the lines of each tier by policy, worst tier under Penstock first; then of all tiers."""
    first = next(iter(reports.values()))
    for name, _ in worst_first(first.tally):
        for label, report in reports.items():
            tier, *rest = cells(name, report.tally.tiers[name])
            yield [tier, label, *rest]
    for label, report in reports.items():
        tier, *rest = cells(all_label(report.tally), report.tally.all)
        yield [tier, label, *rest]


def _conclusion(reports: dict[str, Report]) -> str:
    ours, theirs = reports.values()
    ours_met, vllm_met = (number(report.tally.all.attainment, 100, 1) for report in (ours, theirs))
    best_effort = ours.tally.all.endings[RequestEnding.BEST_EFFORT]
    rejected = ours.tally.all.endings[RequestEnding.REJECTED]
    return (
        f"At {number(ours.rate_rps, 1, 1)} requests/s the same engines meet {ours_met} % of SLOs with "
        f"Penstock, which served {best_effort} requests best effort and rejected {rejected}, and "
        f"{vllm_met} % first come, first served."
    )
