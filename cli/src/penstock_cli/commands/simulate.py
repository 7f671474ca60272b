"""`penstock simulate`: runs a recorded trace on a simulated pool in virtual time."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from penstock_pool import Pool
from penstock_simulator.engine_timing.ground_truth import TruthKind
from penstock_simulator.policies import VLLM_REAL
from penstock_simulator.real_vllm import NoPromptContent
from penstock_simulator.simulation import Fleet, LengthKnowledge
from penstock_simulator.simulation.run import MOST_REPLICAS
from rich.console import Console

from penstock_cli.commands.replay import (
    STANDARD_OUTPUT,
    BlockTokens,
    ClosedLoop,
    Duration,
    JsonFile,
    Rate,
    RequestsFile,
    TierMap,
    TierName,
    TraceFile,
    check_destinations,
    check_positive,
    parse_tier_map,
    write_json,
)
from penstock_cli.commands.validate import PoolFile
from penstock_cli.failure import Failure
from penstock_cli.local.effective_pool import Overrides, overridden_pool
from penstock_cli.plots.figure import check_suffix
from penstock_cli.plots.option import PlotFile
from penstock_cli.plots.request_plot import RequestPlot
from penstock_cli.replay.report import console_for_tables, number, prefix_lines, summary_line, table
from penstock_cli.replay.schedule import (
    MOONCAKE_BLOCK_TOKENS,
    Schedule,
    ScheduleOptions,
    schedule_of,
)
from penstock_cli.simulate.autoscaling import autoscaler_of
from penstock_cli.simulate.fleet import SimulationOptions, fleet_of
from penstock_cli.simulate.run import SimulationResult, run
from penstock_cli.traces import TraceSummary

PolicyName = Annotated[
    str | None,
    typer.Option(
        "--policy", help="Overrides the file's policy; vllm-real is vLLM's own scheduler (make vllm-env)."
    ),
]
Replicas = Annotated[
    int | None,
    typer.Option(min=1, max=MOST_REPLICAS, help="Overrides the file's number of replicas."),
]
LengthsKind = Annotated[
    LengthKnowledge,
    typer.Option(
        help="Answer lengths that planning uses: predicted from finished answers, or the true ones."
    ),
]
Truth = Annotated[
    TruthKind,
    typer.Option(help="Duration of iterations: measured, with noise and drift; or exactly as planned."),
]
Autoscaled = Annotated[
    bool,
    typer.Option("--autoscaling/--fixed", help="Apply spec.autoscaling, or keep the number of replicas."),
]
Startup = Annotated[
    float, typer.Option(min=1.0, metavar="S", help="Seconds until an added replica is ready.")
]
PrefixCaching = Annotated[
    bool | None,
    typer.Option(
        "--prefix-caching/--no-prefix-caching",
        help="Engines cache prefixes of prompts, which the trace's hash_ids identify. "
        "Overrides the file's engine.prefixCaching.",
    ),
]
Seed = Annotated[int, typer.Option(help="Seed of the random number generator.")]


def simulate(
    *,
    file: PoolFile,
    trace: TraceFile,
    policy: PolicyName = None,
    replicas: Replicas = None,
    rate: Rate = None,
    duration: Duration = None,
    lengths: LengthsKind = LengthKnowledge.PREDICTED,
    truth: Truth = TruthKind.MEASURED,
    autoscaling: Autoscaled = True,
    startup: Startup = 90.0,
    prefix_caching: PrefixCaching = None,
    closed_loop: ClosedLoop = None,
    block_tokens: BlockTokens = MOONCAKE_BLOCK_TOKENS,
    seed: Seed = 0,
    tier: TierName = "",
    tier_map: TierMap = None,
    json: JsonFile = None,
    requests: RequestsFile = None,
    plot: PlotFile = None,
) -> None:
    """Serve a recorded trace on a simulated pool, as fast as this machine can, and judge each request.

    Policy, admission and routing are those of a real pool; only the engines, the clock and the network are
    simulated. The same seed gives the same result.

    Examples:

      penstock simulate -f examples/demo-pool.yaml --trace examples/azure-excerpt.csv.gz

      penstock simulate -f pool.yaml --trace t.csv --policy vllm --replicas 4 --rate 12 --json out.json

      penstock simulate -f pool.yaml --trace agents.jsonl --prefix-caching --block-tokens 16 --closed-loop
    """
    check_positive({"--rate": rate, "--duration": duration})
    check_suffix(plot)
    check_destinations({"--json": json, "--plot": plot})
    pool, fleet = _pool_and_fleet(file, policy, SimulationOptions(replicas, truth, lengths, prefix_caching))
    schedule, summary = schedule_of(
        ScheduleOptions(trace, rate, duration, tier, parse_tier_map(tier_map or []), closed_loop)
    )
    _check_tiers(pool, summary, schedule)
    request_plot = RequestPlot(fleet)
    autoscaler = autoscaler_of(pool, startup) if autoscaling else None
    found = run(
        fleet,
        schedule,
        seed,
        requests,
        Console(stderr=True),
        plot=request_plot if plot else None,
        autoscaler=autoscaler,
        hash_id_tokens=block_tokens,
    )
    at_first = "" if autoscaler is None else " at first"
    counted = f"{_counted(fleet.replicas)}{at_first}"
    show(found, f"{trace} on {pool.metadata.name}: {fleet.policy}, {counted}", json)
    if plot is not None:
        request_plot.draw(plot)


def _pool_and_fleet(file: Path, policy: str | None, options: SimulationOptions) -> tuple[Pool, Fleet]:
    """Return the pool with this policy, and its fleet. Raises Failure or PoolError.

    The policy `vllm-real` is set on the fleet only, because it is not valid in a pool.
    """
    real = policy == VLLM_REAL
    pool = overridden_pool(file, Overrides(policy=None if real else policy))
    fleet = fleet_of(pool, file, options)
    if not real:
        return pool, fleet
    if fleet.prefix_caching:
        raise Failure(f"{NoPromptContent()}; choose another --policy, or --no-prefix-caching", bad_input=True)
    return pool, replace(fleet, policy=VLLM_REAL)


def show(found: SimulationResult, title: str, json: Path | None) -> None:
    """Print the table, its summary and planning times, and write JSON if requested."""
    report = found.report
    console = console_for_tables(stderr=json == STANDARD_OUTPUT)
    console.print(table(report, title))
    console.print(summary_line(report))
    if found.autoscaling_summary:
        console.print(found.autoscaling_summary)
    for line in prefix_lines(report.tally):
        console.print(line)
    console.print(planning(found), style="dim")
    for reason, times in report.tally.reasons.most_common():
        console.print(f"failed: {times} × {reason}", style="red", markup=False)
    if json is not None:
        write_json(report, json)


def planning(found: SimulationResult) -> str:
    """Return a line with the duration of decisions on this machine."""
    times = found.report.planner
    p50, p99, most = (number(value, 1, 2) for value in (times.p50_ms, times.p99_ms, times.max_ms))
    share = number(found.step_share, 100, 2)
    return (
        f"Planning time: admission p50 {p50}, p99 {p99}, max {most} ms; steps {share} % of their iterations."
    )


def _check_tiers(pool: Pool, summary: TraceSummary, schedule: Schedule) -> None:
    """Check that every tier of the trace is one of the pool's. Raises Failure."""
    known = pool.tiers()
    wanted = {schedule.renamed.get(name, name) or schedule.tier for name in summary.tiers}
    unknown = sorted(wanted - known.keys() - {""})
    if unknown:
        raise Failure(
            f'{schedule.trace}: tier "{unknown[0]}" is not one of {", ".join(known)}; rename it, '
            f"for example --tier-map {unknown[0]}={pool.spec.default_tier}",
            bad_input=True,
        )


def _counted(replicas: int) -> str:
    return f"{replicas} replica{'s' if replicas > 1 else ''}"
