"""One simulation of a capacity search: how many requests of a sample meet every target at a rate.

A trial consists of plain values, so that any process can run it and a file can store it. It ends early when
so many requests have missed that the result is decided. A turn of a closed loop also misses if it ends after
the time at which its session should have been there (`session_schedule`).
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import ceil
from typing import Any, NamedTuple

from penstock_core.domain.replica_view import Limits
from penstock_core.timing.builtin_models import time_model
from penstock_core.timing.speculation import Speculation
from penstock_simulator.arrival import Arrival
from penstock_simulator.engine_timing.ground_truth import TruthKind
from penstock_simulator.scenarios import Scenario, arrivals, scenario
from penstock_simulator.simulation import Fleet, LengthKnowledge, SimulatedOutcome, simulate
from penstock_simulator.simulation.disaggregated.distserve import Ratio, simulate_distserve
from penstock_simulator.simulation.outcome import FirstVerdict

from penstock_cli.capacity.question import Question
from penstock_cli.capacity.session_schedule import is_behind, latest_ends_s
from penstock_cli.capacity.setting import ORACLE, PolicySetting, base_policy, laps_of
from penstock_cli.plots.plane import spot
from penstock_cli.plots.series import Spot

QUANTILE = 0.9
"""Quantile of TTFT and TPOT that a tier's point in the TTFT–TPOT plane shows."""

MOST_HOPS = 3
"""Most replicas that a request is sent to. With prefix caches all may be tried, because the replica that
holds the prefix is tried first, whatever its load.
"""

ROUNDING_REQUESTS = 1e-6
"""Tolerance for a bound that floating point puts slightly above a whole number of requests."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The input of one simulation.

    rate_rps: rate per replica, or per GPU if GPUs are split by phase.
    ratio: prefill GPUs to decode GPUs of one group, if GPUs are split by phase; there are `replicas` groups.
    most_misses: the trial ends when more requests have missed.
    slots: most requests that run at once; None for the engine's own number.
    block_tokens: tokens per hash id of the scenario's recording; None: as recorded.
    sessions: recorded sessions in a sample, for each replica; None for the scenario's own number.
    """

    scenario: str
    policy: str
    batch_tokens: int
    drafts: int
    replicas: int
    order: str
    lengths: str
    truth: str
    rate_rps: float
    seed: int
    most_misses: int
    ratio: Ratio | None = None
    slots: int | None = None
    block_tokens: int | None = None
    sessions: int | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the trial as JSON values."""
        return asdict(self)


class TrialResult(NamedTuple):
    """The result of a trial. A session counts once, and has missed if one of its requests has.

    complete: whether all requests were served. If not, the trial ended early: `missed` counts the misses
        until then, and the fields below are not set.
    spots: each tier's name, and the 90th percentiles of TTFT and TPOT of its served requests as shares of
        the targets.
    promoted: requests that met every target although they were answered "best effort" first.
    prompt_tokens, cached_tokens: prompt tokens of served requests, and those of them found in prefix
        caches; 0 without prefix caches, as are the next three.
    admitted, admitted_missed: requests that were admitted at once, and those of them that missed.
    imbalance: tokens that the busiest replica computed, over the mean of all; 0 if none were computed.
    """

    requests: int
    missed: int
    complete: bool
    spots: tuple[tuple[str, float, float], ...] = ()
    promoted: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    admitted: int = 0
    admitted_missed: int = 0
    imbalance: float = 0.0


@dataclass(slots=True)
class _CacheCounts:
    """Counts of served requests for engines with prefix caches."""

    replicas: int
    prompt_tokens: int = 0
    cached_tokens: int = 0
    admitted: int = 0
    admitted_missed: int = 0
    computed_tokens: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: SimulatedOutcome) -> None:
        """Count a request that was served."""
        self.prompt_tokens += outcome.prompt_tokens
        self.cached_tokens += outcome.cached_tokens
        computed_tokens = outcome.prompt_tokens - outcome.cached_tokens + outcome.output_tokens
        self.computed_tokens[outcome.replica] += computed_tokens
        if outcome.verdict is FirstVerdict.ADMITTED:
            self.admitted += 1
            self.admitted_missed += not outcome.met

    def imbalance(self) -> float:
        """Return the tokens that the busiest replica computed, over the mean of all replicas."""
        total = self.computed_tokens.total()
        return round(self.replicas * max(self.computed_tokens.values()) / total, 4) if total else 0.0


def trial_of(
    question: Question, setting: PolicySetting, rate_rps: float, seed: int, most_misses: int
) -> Trial:
    """Return the trial of a question with one setting."""
    conditions = question.conditions
    return Trial(
        scenario=question.scenario,
        policy=base_policy(question.policy),
        batch_tokens=setting.batch_tokens,
        drafts=setting.drafts,
        replicas=conditions.replicas,
        order=conditions.order,
        lengths=conditions.lengths.value,
        truth=conditions.truth.value,
        rate_rps=rate_rps,
        seed=seed,
        most_misses=most_misses,
        ratio=setting.ratio,
        slots=setting.slots,
        block_tokens=conditions.block_tokens,
        sessions=conditions.sessions,
    )


def run_trial(trial: Trial) -> TrialResult:
    """Run the simulation."""
    workload = with_sessions(scenario(trial.scenario), trial.sessions)
    sample = arrivals_of(trial, workload)
    if trial.policy == ORACLE:
        return _bound(sample, workload, trial.replicas)
    fleet, total = fleet_of(trial, workload), requests_in(sample)
    latest_s = latest_ends_s(sample, workload.tiers, fleet.default_tier, fleet.model)
    counts = _CacheCounts(trial.replicas)
    missed, best_effort, points = set[str](), set[str](), defaultdict[str, list[Spot]](list)
    for outcome in _outcomes(trial, fleet, sample):
        point = spot(
            workload.tiers[outcome.tier].slo,
            fleet.model.prefill_seconds(outcome.prompt_tokens),
            outcome.ttft_s,
            outcome.tpot_s,
        )
        if point is not None:
            points[outcome.tier].append(point)
        counted = outcome.id if workload.sessions is not None else outcome.session or outcome.id
        if not outcome.met or is_behind(outcome, latest_s):
            missed.add(counted)
        if outcome.verdict is FirstVerdict.BEST_EFFORT:
            best_effort.add(counted)
        if outcome.replica and fleet.prefix_caching:
            counts.add(outcome)
        if len(missed) > trial.most_misses:
            return TrialResult(total, len(missed), complete=False)
    spots = tuple((tier, *_percentiles(points[tier])) for tier in workload.tiers if points[tier])
    promoted = len(best_effort - missed)
    return TrialResult(
        total,
        len(missed),
        True,
        spots,
        promoted,
        counts.prompt_tokens,
        counts.cached_tokens,
        counts.admitted,
        counts.admitted_missed,
        counts.imbalance(),
    )


def with_sessions(workload: Scenario, sessions: int | None) -> Scenario:
    """Return the scenario with `sessions` recorded sessions in a sample; None keeps its own number."""
    if sessions is None or workload.sessions is None:
        return workload
    return replace(workload, sessions=replace(workload.sessions, count=sessions))


def _outcomes(trial: Trial, fleet: Fleet, sample: Sequence[Arrival]) -> Iterator[SimulatedOutcome]:
    if trial.ratio is None:
        return simulate(fleet, sample, trial.seed)
    return simulate_distserve(fleet, _all_gpus(trial.ratio, trial.replicas), sample, trial.seed)


def _all_gpus(ratio: Ratio, groups: int) -> Ratio:
    return Ratio(ratio.prefill * groups, ratio.decode * groups)


def _percentiles(spots: Sequence[Spot]) -> tuple[float, float]:
    """Return the 90th percentiles of TTFT and TPOT, independently, as shares of their targets."""
    ttft, tpot = (sorted(shares) for shares in zip(*spots, strict=True))
    index = ceil(QUANTILE * len(spots)) - 1
    return round(ttft[index], 4), round(tpot[index], 4)


def _bound(sample: Sequence[Arrival], workload: Scenario, replicas: int) -> TrialResult:
    """Return the fewest misses of any scheduler, from the upper bound."""
    from penstock_simulator.bounds import bound, bound_setting  # its solver takes a second to import

    total = requests_in(sample)
    bound_share = bound(sample, bound_setting(workload, replicas))
    return TrialResult(total, ceil(total * (1 - bound_share) - ROUNDING_REQUESTS), complete=True)


def arrivals_of(trial: Trial, workload: Scenario) -> list[Arrival]:
    """Return the trial's requests: a lap of the scenario per replica, so load lasts as long as for one."""
    gpus = trial.replicas if trial.ratio is None else _all_gpus(trial.ratio, trial.replicas).gpus
    laps = laps_of(trial.policy, trial.replicas)
    sample = arrivals(workload, trial.rate_rps * gpus, trial.seed, laps=laps)
    if trial.block_tokens is None:
        return list(sample)
    return [arrival._replace(hash_id_tokens=trial.block_tokens) for arrival in sample]


def requests_in(sample: Sequence[Arrival]) -> int:
    """Return the number of requests; a session counts once, unless it is a closed loop."""
    return len({_counted_as(arrival) for arrival in sample})


def _counted_as(arrival: Arrival) -> str:
    return arrival.id if arrival.think_s is not None else arrival.session or arrival.id


def fleet_of(trial: Trial, workload: Scenario) -> Fleet:
    """Return the fleet of a trial."""
    return Fleet(
        policy=trial.policy,
        model=time_model(workload.time_model),
        kv_tokens=workload.kv_tokens,
        tiers=workload.tiers,
        default_tier=next(iter(workload.tiers)),
        replicas=trial.replicas,
        limits=Limits(trial.batch_tokens, trial.slots or workload.limits.running),
        truth=TruthKind(trial.truth),
        lengths=LengthKnowledge(trial.lengths),
        max_output_tokens=workload.max_output_tokens,
        speculation=_drafting(workload.speculation, trial.drafts),
        order=trial.order,
        max_hops=trial.replicas if workload.prefix_caching else MOST_HOPS,
        prefix_caching=workload.prefix_caching,
        block_tokens=workload.block_tokens,
    )


def _drafting(drafter: Speculation | None, drafts: int) -> Speculation | None:
    return replace(drafter, max_tokens=drafts) if drafter is not None and drafts else None
