"""One simulation of a capacity search: how many requests of a sample meet every target at a rate.

A trial is plain values, so that any process can run it and a file can remember it. It ends early once so
many requests have missed that the result is decided.
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
from penstock_cli.capacity.setting import ORACLE, PolicySetting, base_policy, laps_of
from penstock_cli.plots.plane import spot
from penstock_cli.plots.series import Spot

MOST = 0.9
"""The quantile of requests that a tier's point in the plane shows."""

MOST_HOPS = 3
"""Replicas that may reject a request. With prefix caches all of them may: the holder is asked first, whatever
its load.
"""

WHOLE = 1e-6
"""A bound this little above a whole number of requests is that number."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The input of one simulation.

    rate_rps: for each replica, or each GPU where they are split by phase.
    ratio: of one group of GPUs that are; there are `replicas` such groups.
    most_misses: it ends as soon as there are more.
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
    """What a trial found. A session counts once, and has missed where one of its requests has.

    complete: whether all were served; otherwise `missed` is what there was when it ended early.
    spots: where each tier is in the plane of its targets: name, then TTFT and TPOT that 90 % of those that
        were served stay within, as shares of the targets. Of complete trials only.
    promoted: that met every target although they were answered "best effort" first. Of complete trials only.
    prompt_tokens, cached_tokens: of served requests, and of these, found in prefix caches, if engines have
        any. Of complete trials only, like the next three.
    admitted, admitted_missed: requests that were admitted at once, and those of them that missed.
    imbalance: tokens that the busiest replica computed, over the mean of all; 0 where nothing was computed.
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
    """What is counted of served requests where engines have prefix caches."""

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
    asked = question.conditions
    return Trial(
        scenario=question.scenario,
        policy=base_policy(question.policy),
        batch_tokens=setting.batch_tokens,
        drafts=setting.drafts,
        replicas=asked.replicas,
        order=asked.order,
        lengths=asked.lengths.value,
        truth=asked.truth.value,
        rate_rps=rate_rps,
        seed=seed,
        most_misses=most_misses,
        ratio=setting.ratio,
        slots=setting.slots,
        block_tokens=asked.block_tokens,
        sessions=asked.sessions,
    )


def run_trial(trial: Trial) -> TrialResult:
    """Run the simulation."""
    here = with_sessions(scenario(trial.scenario), trial.sessions)
    coming = arrivals_of(trial, here)
    if trial.policy == ORACLE:
        return _bound(coming, here, trial.replicas)
    fleet, total = fleet_of(trial, here), requests_in(coming)
    counts = _CacheCounts(trial.replicas)
    missed, best_effort, seen = set[str](), set[str](), defaultdict[str, list[Spot]](list)
    for outcome in _outcomes(trial, fleet, coming):
        place = spot(
            here.tiers[outcome.tier].slo,
            fleet.model.prefill_seconds(outcome.prompt_tokens),
            outcome.ttft_s,
            outcome.tpot_s,
        )
        if place is not None:
            seen[outcome.tier].append(place)
        counted = outcome.id if here.sessions is not None else outcome.session or outcome.id
        if not outcome.met:
            missed.add(counted)
        if outcome.verdict is FirstVerdict.BEST_EFFORT:
            best_effort.add(counted)
        if outcome.replica and fleet.prefix_caching:
            counts.add(outcome)
        if len(missed) > trial.most_misses:
            return TrialResult(total, len(missed), complete=False)
    spots = tuple((tier, *_most_within(seen[tier])) for tier in here.tiers if seen[tier])
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


def with_sessions(here: Scenario, sessions: int | None) -> Scenario:
    """Return the scenario with samples of so many recorded sessions; None for its own number."""
    if sessions is None or here.sessions is None:
        return here
    return replace(here, sessions=replace(here.sessions, count=sessions))


def _outcomes(trial: Trial, fleet: Fleet, coming: Sequence[Arrival]) -> Iterator[SimulatedOutcome]:
    if trial.ratio is None:
        return simulate(fleet, coming, trial.seed)
    return simulate_distserve(fleet, _all_gpus(trial.ratio, trial.replicas), coming, trial.seed)


def _all_gpus(ratio: Ratio, groups: int) -> Ratio:
    return Ratio(ratio.prefill * groups, ratio.decode * groups)


def _most_within(spots: Sequence[Spot]) -> tuple[float, float]:
    """Return the 90th percentiles of TTFT and TPOT as shares of their targets, each on its own."""
    ttft, tpot = (sorted(shares) for shares in zip(*spots, strict=True))
    place = ceil(MOST * len(spots)) - 1
    return round(ttft[place], 4), round(tpot[place], 4)


def _bound(coming: Sequence[Arrival], here: Scenario, replicas: int) -> TrialResult:
    """Return the fewest misses of any scheduler, from the upper bound."""
    from penstock_simulator.bounds import bound, bound_setting  # its solver takes a second to import

    total = requests_in(coming)
    at_most = bound(coming, bound_setting(here, replicas))
    return TrialResult(total, ceil(total * (1 - at_most) - WHOLE), complete=True)


def arrivals_of(trial: Trial, here: Scenario) -> list[Arrival]:
    """Return its requests: one lap of the scenario per replica, so that load lasts as long as for one."""
    gpus = trial.replicas if trial.ratio is None else _all_gpus(trial.ratio, trial.replicas).gpus
    laps = laps_of(trial.policy, trial.replicas)
    coming = arrivals(here, trial.rate_rps * gpus, trial.seed, laps=laps)
    if trial.block_tokens is None:
        return list(coming)
    return [arrival._replace(hash_id_tokens=trial.block_tokens) for arrival in coming]


def requests_in(coming: Sequence[Arrival]) -> int:
    """Return the number of requests; a session counts once, unless it is a closed loop."""
    return len({_counted_as(arrival) for arrival in coming})


def _counted_as(arrival: Arrival) -> str:
    return arrival.id if arrival.think_s is not None else arrival.session or arrival.id


def fleet_of(trial: Trial, here: Scenario) -> Fleet:
    """Return the fleet of a trial."""
    return Fleet(
        policy=trial.policy,
        model=time_model(here.time_model),
        kv_tokens=here.kv_tokens,
        tiers=here.tiers,
        default_tier=next(iter(here.tiers)),
        replicas=trial.replicas,
        limits=Limits(trial.batch_tokens, trial.slots or here.limits.running),
        truth=TruthKind(trial.truth),
        lengths=LengthKnowledge(trial.lengths),
        max_output_tokens=here.max_output_tokens,
        speculation=_drafting(here.speculation, trial.drafts),
        order=trial.order,
        max_hops=trial.replicas if here.prefix_caching else MOST_HOPS,
        prefix_caching=here.prefix_caching,
        block_tokens=here.block_tokens,
    )


def _drafting(drafter: Speculation | None, drafts: int) -> Speculation | None:
    return replace(drafter, max_tokens=drafts) if drafter is not None and drafts else None
