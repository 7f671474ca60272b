"""`penstock capacity`: the highest request rate of each policy by scenario."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import orjson
import typer
from penstock_core.policies import UnknownPolicy
from penstock_core.timing.builtin_models import UnknownTimeModel
from penstock_simulator.engine_timing.ground_truth import TruthKind
from penstock_simulator.real_vllm.location import VllmMissing
from penstock_simulator.routing_rules import ROUTING_RULES
from penstock_simulator.scenarios import SCENARIOS, UnknownScenario, scenario
from penstock_simulator.simulation import LengthKnowledge
from penstock_simulator.simulation.replica import StuckPolicy
from penstock_simulator.simulation.run import MOST_REPLICAS
from rich.console import Console

from penstock_cli.capacity.plot import draw
from penstock_cli.capacity.progress import show_progress
from penstock_cli.capacity.question import Question, SearchConditions
from penstock_cli.capacity.report import as_json, summary_line, table
from penstock_cli.capacity.run import run_all
from penstock_cli.capacity.sampled_question import Result, Trials
from penstock_cli.capacity.search import CapacityResult, UnboundedCapacity
from penstock_cli.capacity.search import capacity as search
from penstock_cli.capacity.setting import WITHOUT_PREFIXES, base_policy
from penstock_cli.capacity.sweep import sweep
from penstock_cli.capacity.trial import run_trial
from penstock_cli.capacity.trial_log import TrialLog
from penstock_cli.commands.replay import STANDARD_OUTPUT, JsonFile, check_destinations
from penstock_cli.commands.simulate import LengthsKind, Truth
from penstock_cli.failure import Failure
from penstock_cli.plots.figure import check_suffix
from penstock_cli.plots.option import PlotFile
from penstock_cli.replay.report import console_for_tables

ScenarioNames = Annotated[
    str,
    typer.Option(
        "--scenario",
        metavar="S[,S]",
        help=f"Scenarios: {', '.join(SCENARIOS)}. NAME@ENGINE runs one on another built-in engine.",
    ),
]
PolicyNames = Annotated[
    str,
    typer.Option(
        "--policy",
        metavar="P[,P]",
        help="Policies. NAME-spec adds a fixed, tuned number of draft tokens; oracle is the upper bound.",
    ),
]
Replicas = Annotated[
    int, typer.Option(min=1, max=MOST_REPLICAS, help="Replicas of the fleet. Rates are per replica.")
]
Attainment = Annotated[
    float, typer.Option(min=0.01, max=0.999, help="Share of all requests that must meet every target.")
]
Seeds = Annotated[
    int, typer.Option(min=1, max=100, help="Samples of each scenario; their requests are counted together.")
]
Jobs = Annotated[int | None, typer.Option(min=1, help="Number of processes; by default one per CPU core.")]
ResumeFile = Annotated[
    Path | None,
    typer.Option("--resume", help="Store finished simulations in this file, and resume from it."),
]
BlockTokens = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Prompt tokens per hash id of a scenario's recording; as recorded by default.",
    ),
]
SessionCount = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Recorded sessions in a sample, for each replica; the scenario's own number by default.",
    ),
]
Order = Annotated[str, typer.Option(help=f"How routers try replicas: {', '.join(ROUTING_RULES)}.")]


def capacity(
    *,
    scenarios: ScenarioNames,
    policies: PolicyNames,
    replicas: Replicas = 1,
    attainment: Attainment = 0.9,
    lengths: LengthsKind = LengthKnowledge.PREDICTED,
    truth: Truth = TruthKind.MEASURED,
    seeds: Seeds = 3,
    order: Order = "round-robin",
    block_tokens: BlockTokens = None,
    sessions: SessionCount = None,
    jobs: Jobs = None,
    resume: ResumeFile = None,
    json: JsonFile = None,
    plot: PlotFile = None,
) -> None:
    """Find the highest request rate per replica at which a given share of requests meets every target.

    Policies with settings are tuned for each scenario; their best setting is shown.

    Examples:

      penstock capacity --scenario chatbot,coder --policy slos-serve,vllm,oracle

      penstock capacity --scenario mixed --policy vllm,vllm-spec --lengths known --truth exact

      penstock capacity --scenario coder --policy slos-serve --replicas 4 --order best-fit
    """
    check_suffix(plot)
    check_destinations({"--json": json, "--plot": plot})
    conditions = SearchConditions(replicas, attainment, lengths, truth, seeds, order, block_tokens, sessions)
    questions = questions_of(scenarios, policies, conditions)
    with TrialLog(resume) as log:
        run = SearchRun(log, jobs or os.cpu_count() or 1)
        answers = run.all([search(question) for question in questions], "capacities")
        show(answers, conditions, json)
        if plot is not None:
            draw(answers, run.all([sweep(answer) for answer in answers], "curves"), plot)


def questions_of(scenarios: str, policies: str, conditions: SearchConditions) -> list[Question]:
    """Return a question for every scenario and policy. Raises Failure."""
    if conditions.order not in ROUTING_RULES:
        raise Failure(
            f'--order "{conditions.order}": must be one of {", ".join(ROUTING_RULES)}', bad_input=True
        )
    names, chosen = _names("--scenario", scenarios), _names("--policy", policies)
    try:
        for name in names:
            scenario(name)
        for policy in chosen:
            base_policy(policy)
        _check_prefixes(names, chosen)
        _check_traced(names, conditions)
    except (UnknownScenario, UnknownTimeModel) as error:
        raise Failure(f"--scenario {scenarios}: {error}", bad_input=True) from None
    except UnknownPolicy as error:
        raise Failure(f"--policy {policies}: {error}", bad_input=True) from None
    return [Question(name, policy, conditions) for name in names for policy in chosen]


def _check_prefixes(scenarios: Sequence[str], policies: Sequence[str]) -> None:
    """Check that every policy can run every scenario. Raises Failure."""
    unsupported = [policy for policy in policies if base_policy(policy) in WITHOUT_PREFIXES]
    shared = [name for name in scenarios if scenario(name).prefix_caching]
    if unsupported and shared:
        raise Failure(
            f"--policy {unsupported[0]}: does not support prefix caches, which scenario {shared[0]} uses",
            bad_input=True,
        )


def _check_traced(scenarios: Sequence[str], conditions: SearchConditions) -> None:
    """Check that options about recorded prompts apply to a scenario. Raises Failure."""
    chosen, none = [scenario(name) for name in scenarios], f"no scenario of {', '.join(scenarios)} has"
    sessions, tokens = conditions.sessions, conditions.block_tokens
    if sessions is not None and all(one.sessions is None for one in chosen):
        raise Failure(f"--sessions {sessions}: {none} recorded sessions", bad_input=True)
    if tokens is not None and not any(one.prefix_caching for one in chosen):
        raise Failure(f"--block-tokens {tokens}: {none} prompts with hash ids", bad_input=True)


@dataclass(frozen=True, slots=True)
class SearchRun:
    """Runs searches on `jobs` processes, with a log of trials."""

    log: TrialLog
    jobs: int

    def all(
        self,
        searches: Sequence[Trials[Result]],
        what: str,
        report: Callable[[Result], None] = lambda _: None,
    ) -> list[Result]:
        """Run the searches, show their progress, and return the results in order. Raises Failure.

        what: plural noun for the results. report: called with each result when its search ends.
        """
        try:
            with show_progress(Console(stderr=True), len(searches), what) as progress:
                return run_all(searches, run_trial, self.jobs, self.log, progress, report=report)
        except VllmMissing as missing:
            raise Failure(str(missing), bad_input=True) from None
        except (UnboundedCapacity, StuckPolicy) as error:
            raise Failure(str(error)) from None


def show(answers: list[CapacityResult], conditions: SearchConditions, json: Path | None) -> None:
    """Print the table and its explanation, and write JSON if requested."""
    console = console_for_tables(stderr=json == STANDARD_OUTPUT)
    console.print(table(answers, conditions))
    console.print(summary_line(conditions), style="dim")
    if json is not None:
        write_json(answers, json)


def write_json(answers: list[CapacityResult], path: Path) -> None:
    """Write JSON to a file or standard output. Raises Failure."""
    data = orjson.dumps(as_json(answers), option=orjson.OPT_INDENT_2) + b"\n"
    if path == STANDARD_OUTPUT:
        typer.echo(data, nl=False)
        return
    try:
        path.write_bytes(data)
    except OSError as error:
        raise Failure(f"--json {path}: {error.strerror}") from None


def _names(flag: str, text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise Failure(f"{flag}: is empty; give at least one name", bad_input=True)
    return list(dict.fromkeys(names))
