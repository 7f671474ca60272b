"""`penstock demo`: a minute of real traffic through the same engines twice, under Penstock and under vLLM.

Both runs are whole pools of real processes in real time. They differ in what decides: Penstock's admission
and scheduling with a second replica asked where the first says no, against first come, first served with
chunked prefill on the replica whose turn it is.
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
from penstock_cli.local.layout import LOOPBACK, Wanted
from penstock_cli.local.local_pool import local_pool
from penstock_cli.local.log_sinks import FileSink
from penstock_cli.replay.judging import promises_of
from penstock_cli.replay.outcome import Ending
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
from penstock_cli.replay.run import Settings, replay

EXAMPLES = Path("examples")


@dataclass(frozen=True, slots=True)
class Contender:
    """One of the two runs. label: in the table."""

    label: str
    overrides: Overrides


@dataclass(frozen=True, slots=True)
class Inputs:
    """What both runs share."""

    pool_file: Path
    trace: Path
    seed: int


CONTENDERS = (
    Contender("slos-serve", Overrides()),
    Contender("vllm", Overrides(policy="vllm", order="round-robin")),
)

PoolFile = Annotated[Path, typer.Option("-f", "--file", help="The pool.")]
TraceFile = Annotated[Path, typer.Option(help="What is replayed on it.")]
Seed = Annotated[int, typer.Option(help="Of the simulated engines and the prompts.")]


def demo(
    *,
    file: PoolFile = EXAMPLES / "demo-pool.yaml",
    trace: TraceFile = EXAMPLES / "azure-excerpt.csv.gz",
    seed: Seed = 0,
) -> None:
    """Replay a minute of Azure's chat and code traffic through Penstock, and through vLLM's own policy.

    Two simulated replicas, real HTTP, real time; about three minutes. Ends with one table.

    Example: penstock demo
    """
    for needed in (file, trace):
        if not needed.exists():
            raise Failure(f"{needed}: no such file; run this in the project's folder, or name both files")
    pool = load_pool(file)
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as folder:
        reports = {
            contender.label: uvloop.run(_run(contender, Inputs(file, trace, seed), Path(folder), console))
            for contender in CONTENDERS
        }
    _show(pool, reports)


async def _run(contender: Contender, inputs: Inputs, folder: Path, console: Console) -> Report:
    """One pool, started, measured and stopped."""
    pool_file, pool = effective_pool(inputs.pool_file, contender.overrides, folder)
    replicas = pool.spec.initial_replicas
    wanted = Wanted(pool_file, replicas, LOOPBACK, port=0, seed=inputs.seed)
    with FileSink((folder / f"{contender.label}.log").open("w")) as sink:
        console.print(f"{contender.label}: starting {replicas} replicas")
        async with local_pool(wanted, sink, drain_s=5.0, on_progress=lambda ready, parts: None) as layout:
            settings = Settings(
                trace=inputs.trace,
                url=layout.url,
                seed=inputs.seed,
                promises=promises_of(pool),
            )
            return await replay(settings, console, contender.label)


def _show(pool: Pool, reports: dict[str, Report]) -> None:
    console = console_for_tables()
    console.print()
    console.print(_side_by_side(pool, reports))
    console.print(_meaning(reports))
    for label, report in reports.items():
        console.print(f"{label}: {lateness(report.tally)}", style="dim")
    broken = [
        f"{label}: {times} × {reason}"
        for label, report in reports.items()
        for reason, times in report.tally.reasons.items()
    ]
    if broken:
        raise Failure("requests failed that should not have:", *broken)


def _side_by_side(pool: Pool, reports: dict[str, Report]) -> Table:
    lines = list(_lines(reports))
    heads = (HEADS[0], "policy", *HEADS[1:])
    spec = pool.spec
    title = f"{spec.model.name} on {spec.initial_replicas} simulated replicas, a minute of Azure's traffic"
    return aligned(title, heads, lines, left=2)


def _lines(reports: dict[str, Report]) -> Iterator[list[str]]:
    """Each tier under every policy, the tier that Penstock serves worst first; then all tiers."""
    first = next(iter(reports.values()))
    for name, _ in worst_first(first.tally):
        for label, report in reports.items():
            targeted = name not in report.tally.without_targets
            tier, *rest = cells(name, report.tally.tiers[name], targeted)
            yield [tier, label, *rest]
    for label, report in reports.items():
        tier, *rest = cells(all_label(report.tally), report.tally.all)
        yield [tier, label, *rest]


def _meaning(reports: dict[str, Report]) -> str:
    ours, theirs = reports.values()
    here, there = (number(report.tally.all.attainment, 100, 1) for report in (ours, theirs))
    unpromised = ours.tally.all.endings[Ending.BEST_EFFORT]
    rejected = ours.tally.all.endings[Ending.REJECTED]
    return (
        f"At {number(ours.rate_rps, 1, 1)} requests/s the same engines keep {here} % of all promises under "
        f"Penstock, which told {unpromised} requests that it promises nothing and turned {rejected} away, "
        f"and {there} % first come, first served."
    )
