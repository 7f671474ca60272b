"""A simulation from end to end: reads the trace, serves it, counts outcomes."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from penstock_core.policies import POLICIES, build
from penstock_simulator.real_vllm import VllmMissing
from penstock_simulator.simulation import Arrival, Fleet, SimulatedOutcome, simulate
from penstock_simulator.simulation.replica import StuckPolicy
from penstock_simulator.warm_up import warm_up
from rich.console import Console

from penstock_cli.failure import Failure
from penstock_cli.plots.request_plot import RequestPlot
from penstock_cli.replay.outcome import RequestEnding, RequestOutcome
from penstock_cli.replay.report import Report
from penstock_cli.replay.rows_file import RowsFile
from penstock_cli.replay.schedule import (
    MOONCAKE_BLOCK_TOKENS,
    Loop,
    Schedule,
    check_hash_ids,
    requests_and_span_s,
)
from penstock_cli.replay.tally import ReplayTally
from penstock_cli.replay.tier_slos import tiers_without_targets
from penstock_cli.simulate.autoscaling import PoolAutoscaler
from penstock_cli.simulate.planner_clock import PlannerClock
from penstock_cli.simulate.progress import show_progress

TOO_LONG = "longer than spec.engine.maxModelLen or the KV cache"
ON_TIME_S = 0.0
"""A simulated client is never late."""


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """The result of a simulation.

    step_share: planning time of steps as a share of their iterations' duration; None without steps.
    autoscaling_summary: one line about autoscaling; "" without it.
    """

    report: Report
    step_share: float | None
    autoscaling_summary: str = ""


def run(
    fleet: Fleet,
    schedule: Schedule,
    seed: int,
    rows: Path | None,
    console: Console,
    *,
    plot: RequestPlot | None = None,
    autoscaler: PoolAutoscaler | None = None,
    hash_id_tokens: int = MOONCAKE_BLOCK_TOKENS,
) -> SimulationResult:
    """Serve the schedule. Raises TraceError before anything is simulated, Failure.

    plot: collects the points of the figure. autoscaler: changes the number of replicas; None keeps it.
    hash_id_tokens: tokens per hash id of the trace.
    """
    if fleet.prefix_caching:
        check_hash_ids(schedule, hash_id_tokens, console)
    requests, span_s = requests_and_span_s(schedule)
    slos = {name: tier.slo for name, tier in fleet.tiers.items()}
    tally, clock = ReplayTally(tiers_without_targets(slos), fleet.model), PlannerClock()
    if fleet.policy in POLICIES:  # as before a replica reports ready; vLLM's own scheduler needs none
        warm_up(build(fleet.policy, fleet.knobs), fleet.limits, fleet.model, fleet.speculation)
    try:
        fleet_autoscaler = None if autoscaler is None else autoscaler.fleet_autoscaler()
        outcomes = simulate(fleet, arrivals(schedule, hash_id_tokens), seed, clock.build, fleet_autoscaler)
    except VllmMissing as missing:
        raise Failure(str(missing), bad_input=True) from None
    if plot is not None:
        outcomes = plot.observe(outcomes)
    with nullcontext() if rows is None else RowsFile(rows) as file:
        try:
            for simulated in show_progress(outcomes, console, "simulating", requests):
                outcome = as_replayed(simulated, fleet.prefix_caching)
                tally.add(outcome, ON_TIME_S)
                if file is not None:
                    file.add(outcome)
        except StuckPolicy as error:
            raise Failure(f"policy {fleet.policy}: {error}") from None
    fields, autoscaling_summary = (
        ({}, "")
        if autoscaler is None
        else (autoscaler.as_json(tally.last_arrival_s), autoscaler.summary(tally.last_arrival_s))
    )
    cached = {"cached_share": tally.cached_share} if fleet.prefix_caching else {}
    report = Report(fleet.policy, fleet.replicas, span_s, tally, clock.times(), {**fields, **cached})
    return SimulationResult(report, clock.step_share, autoscaling_summary)


def arrivals(schedule: Schedule, hash_id_tokens: int = MOONCAKE_BLOCK_TOKENS) -> Iterator[Arrival]:
    """Yield the schedule's requests."""
    open_loop = schedule.loop is Loop.OPEN
    for request in schedule.requests():
        yield Arrival(
            id=str(request.number),
            arrival_s=request.arrival_s,
            tier=request.tier,
            prompt_tokens=request.prompt_tokens,
            output_tokens=request.output_tokens,
            thinking_tokens=request.thinking_tokens,
            session="" if open_loop else request.session,
            stage=request.stage,
            think_s=request.think_s,
            hash_ids=request.prefix_blocks,
            hash_id_tokens=hash_id_tokens,
        )


def as_replayed(simulated: SimulatedOutcome, prefix_caching: bool = False) -> RequestOutcome:
    """Return a simulated outcome as a replay's outcome."""
    ending = RequestEnding(simulated.verdict.value)
    return RequestOutcome(
        id=simulated.id,
        tier=simulated.tier,
        arrival_s=simulated.arrival_s,
        prompt_tokens=simulated.prompt_tokens,
        output_tokens=simulated.output_tokens,
        ending=ending,
        replica=simulated.replica,
        hops=simulated.hops,
        ttft_s=simulated.ttft_s,
        tpot_s=simulated.tpot_s,
        e2e_s=simulated.e2e_s,
        met=simulated.met,
        reason=TOO_LONG if ending is RequestEnding.FAILED else "",
        cached_tokens=simulated.cached_tokens if prefix_caching and simulated.replica else None,
        turn=simulated.stage,
    )
