"""One simulation of a capacity search: its conditions, and how its outcomes are counted."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from math import ceil

import pytest
from penstock_cli.capacity.question import Question, SearchConditions
from penstock_cli.capacity.setting import PolicySetting
from penstock_cli.capacity.trial import (
    Trial,
    TrialResult,
    arrivals_of,
    fleet_of,
    requests_in,
    run_trial,
    trial_of,
    with_sessions,
)
from penstock_core.domain.replica_view import Limits
from penstock_simulator.engine_timing.ground_truth import TruthKind
from penstock_simulator.scenarios import scenario
from penstock_simulator.simulation import FirstVerdict, LengthKnowledge, SimulatedOutcome, simulate
from penstock_simulator.simulation.disaggregated.distserve import Ratio

PRESSED = Trial("coder", "slos-serve", 2048, 0, 1, "round-robin", "known", "exact", 3.0, 0, most_misses=10**9)
"""Beyond what one replica can carry: some miss, some are served best effort, some of those in time."""


@cache
def outcomes(trial: Trial) -> tuple[SimulatedOutcome, ...]:
    here = scenario(trial.scenario)
    return tuple(simulate(fleet_of(trial, here), arrivals_of(trial, here), trial.seed))


@cache
def result(trial: Trial) -> TrialResult:
    return run_trial(trial)


def test_each_request_counts_once_as_missed_promoted_or_attained_by_its_first_verdict() -> None:
    missed = sum(not outcome.met for outcome in outcomes(PRESSED))
    promoted = sum(
        outcome.met and outcome.verdict is FirstVerdict.BEST_EFFORT for outcome in outcomes(PRESSED)
    )
    found = result(PRESSED)
    assert (found.requests, found.missed, found.promoted) == (len(outcomes(PRESSED)), missed, promoted)
    assert found.complete
    assert promoted > 0
    assert 0 < missed < found.requests


def test_a_tiers_figures_are_ninetieth_percentiles() -> None:
    ((tier, ttft, tpot),) = result(PRESSED).spots
    slo = scenario("coder").tiers[tier].slo
    served = [outcome for outcome in outcomes(PRESSED) if outcome.tpot_s is not None]
    assert slo.tpot_s is not None
    shares = sorted(outcome.tpot_s / slo.tpot_s for outcome in served if outcome.tpot_s is not None)
    assert tpot == pytest.approx(shares[ceil(0.9 * len(shares)) - 1], abs=2e-4)
    assert ttft > 0


def test_a_trial_ends_once_misses_exceed_the_requested_number() -> None:
    missed = result(PRESSED).missed
    assert run_trial(replace(PRESSED, most_misses=missed)).complete
    cut = run_trial(replace(PRESSED, most_misses=missed - 1))
    assert (cut.complete, cut.missed, cut.spots, cut.promoted) == (False, missed, (), 0)
    assert cut.requests == result(PRESSED).requests


def test_requests_of_one_session_count_once() -> None:
    trial = Trial("toolllm", "vllm", 2048, 0, 1, "round-robin", "known", "exact", 4.0, 0, most_misses=10**9)
    sessions = {outcome.session or outcome.id for outcome in outcomes(trial)}
    missed = {outcome.session or outcome.id for outcome in outcomes(trial) if not outcome.met}
    found = result(trial)
    assert (found.requests, found.missed) == (len(sessions), len(missed))
    assert len(sessions) < len(outcomes(trial))
    assert missed


def test_a_split_fleet_gets_the_load_of_all_its_gpus() -> None:
    split = Trial(
        "coder", "distserve", 2048, 0, 2, "round-robin", "known", "exact", 0.5, 0, 10**9, ratio=Ratio(1, 2)
    )
    here = scenario("coder")
    arrivals = arrivals_of(split, here)
    span_s = arrivals[-1].arrival_s - arrivals[0].arrival_s
    assert requests_in(arrivals) / span_s == pytest.approx(0.5 * 6, rel=0.15)
    assert run_trial(split).complete


TRIAL = Trial(
    scenario="coder",
    policy="vllm",
    batch_tokens=512,
    drafts=0,
    replicas=1,
    order="round-robin",
    lengths="known",
    truth="exact",
    rate_rps=2.0,
    seed=0,
    most_misses=10_000,
)
CODER = scenario("coder")
REQUESTS = 905
TIER = CODER.tiers["coder"].slo
PROMPT_TOKENS = 1000

Counted = Callable[..., TrialResult]


def outcome(number: int, **changed: object) -> SimulatedOutcome:
    """A request that met its targets: served in half of them."""
    whole = SimulatedOutcome(
        str(number), "coder", 0.0, PROMPT_TOKENS, 5, FirstVerdict.ADMITTED, "r0", 1, None, None, None, True
    )
    return whole._replace(**changed)  # type: ignore[arg-type]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    """Return the result of a trial whose simulation has these outcomes."""

    def run(outcomes: Sequence[SimulatedOutcome], most_misses: int = 10_000) -> TrialResult:
        monkeypatch.setattr("penstock_cli.capacity.trial.simulate", lambda *_: iter(outcomes))
        return run_trial(replace(TRIAL, most_misses=most_misses))

    return run


def test_a_session_misses_once_however_many_of_its_requests_do(counted: Counted) -> None:
    missed = [outcome(number, session="s", met=False) for number in range(3)]
    alone = [outcome(3, met=False), outcome(4, met=False), outcome(5)]
    assert counted([*missed, *alone]) == TrialResult(REQUESTS, 3, complete=True)


def test_a_trial_ends_with_the_first_miss_over_the_limit(counted: Counted) -> None:
    missed = [outcome(number, met=False) for number in range(9)]
    assert counted(missed, most_misses=9) == TrialResult(REQUESTS, 9, complete=True)
    assert counted(missed, most_misses=8) == TrialResult(REQUESTS, 9, complete=False)
    assert counted(missed, most_misses=3) == TrialResult(REQUESTS, 4, complete=False)


def test_best_effort_that_met_its_targets_counts_as_promoted_once_a_session(counted: Counted) -> None:
    late = FirstVerdict.BEST_EFFORT
    outcomes = [
        outcome(0, verdict=late),
        outcome(1, verdict=late, met=False),
        outcome(2, verdict=late, session="s"),
        outcome(3, verdict=late, session="s"),
        outcome(4, verdict=late, session="t"),
        outcome(5, session="t", met=False),
        outcome(6),
    ]
    found = counted(outcomes)
    assert (found.missed, found.promoted) == (2, 2)


def test_a_tiers_percentile_is_computed_for_each_target_separately(counted: Counted) -> None:
    assert TIER.tpot_s is not None
    idle_s = fleet_of(TRIAL, CODER).model.prefill_seconds(PROMPT_TOKENS)
    ttft_s = TIER.targets(idle_s).ttft_s
    assert ttft_s is not None
    shares = [place / 7 for place in range(1, 11)]
    served = [
        outcome(number, ttft_s=share * ttft_s, tpot_s=(11 / 7 - share) * TIER.tpot_s)
        for number, share in enumerate(shares)
    ]
    assert counted([*served, outcome(10)]).spots == (("coder", 1.2857, 1.2857),)
    assert counted([*served, served[9]]).spots == (("coder", 1.4286, 1.2857),)


def test_a_trial_has_the_requested_conditions() -> None:
    conditions = SearchConditions(
        2, 0.9, LengthKnowledge.PREDICTED, TruthKind.MEASURED, seeds=3, order="best-fit"
    )
    setting = PolicySetting(512, 3, None, 16)
    trial = trial_of(Question("coder", "orca-spec", conditions), setting, 1.5, 2, 7)
    assert trial.as_json() == {
        "scenario": "coder",
        "policy": "orca",
        "batch_tokens": 512,
        "drafts": 3,
        "replicas": 2,
        "order": "best-fit",
        "lengths": "predicted",
        "truth": "measured",
        "rate_rps": 1.5,
        "seed": 2,
        "most_misses": 7,
        "ratio": None,
        "slots": 16,
        "block_tokens": None,
        "sessions": None,
    }


def test_a_fleet_is_the_scenarios_with_the_trials_setting() -> None:
    fleet = fleet_of(replace(TRIAL, replicas=3, drafts=3), CODER)
    assert (fleet.policy, fleet.replicas, fleet.order) == ("vllm", 3, "round-robin")
    assert (fleet.truth, fleet.lengths) == (TruthKind.EXACT, LengthKnowledge.KNOWN)
    assert (fleet.default_tier, fleet.kv_tokens) == ("coder", CODER.kv_tokens)
    assert fleet.limits == Limits(512, CODER.limits.running)
    assert fleet_of(replace(TRIAL, slots=16), CODER).limits == Limits(512, 16)


def test_only_a_trial_with_drafts_and_a_drafter_speculates() -> None:
    assert CODER.speculation is not None
    assert fleet_of(TRIAL, CODER).speculation is None
    assert fleet_of(replace(TRIAL, drafts=3), CODER).speculation == replace(CODER.speculation, max_tokens=3)
    toolllm = scenario("toolllm")
    assert fleet_of(replace(TRIAL, scenario="toolllm", drafts=3), toolllm).speculation is None


def test_the_load_of_n_replicas_is_n_laps_at_n_times_the_rate() -> None:
    coming = arrivals_of(replace(TRIAL, replicas=3), CODER)
    assert len(coming) == 3 * REQUESTS
    assert coming[-1].arrival_s == pytest.approx(REQUESTS / TRIAL.rate_rps, rel=0.05)


@pytest.mark.parametrize(("share", "missed"), [(1.0, 0), (1 - 90 / 905, 90), (0.9, 91), (0.0, 905)])
def test_the_bound_misses_the_fewest_whole_requests_of_its_share(
    monkeypatch: pytest.MonkeyPatch, share: float, missed: int
) -> None:
    monkeypatch.setattr("penstock_simulator.bounds.bound", lambda coming, setting: share)
    assert run_trial(replace(TRIAL, policy="oracle")) == TrialResult(REQUESTS, missed, complete=True)


@pytest.fixture
def few_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """`swe` with two sessions for each replica."""
    here = scenario("swe")
    assert here.sessions is not None
    few = replace(here, sessions=replace(here.sessions, count=2))
    monkeypatch.setattr("penstock_cli.capacity.trial.scenario", lambda name: few)


SWE = Trial("swe", "slos-serve", 2048, 0, 2, "prefix", "known", "exact", 1.0, 0, most_misses=10**9)


@pytest.mark.usefixtures("few_sessions")
def test_turns_of_recorded_sessions_count_separately_and_find_their_prefixes() -> None:
    found = run_trial(SWE)
    assert found.requests > 20
    assert (found.missed, found.complete) == (0, True)
    assert 0.8 < found.cached_tokens / found.prompt_tokens < 0.95


def test_a_sample_can_have_another_number_of_sessions() -> None:
    few = run_trial(replace(SWE, sessions=1))
    more = run_trial(replace(SWE, sessions=2))
    assert 20 < few.requests < more.requests < 100
    assert with_sessions(CODER, 5) is CODER


@pytest.mark.usefixtures("few_sessions")
def test_admitted_requests_and_the_busiest_replica_are_counted() -> None:
    found = run_trial(SWE)
    assert (found.admitted, found.admitted_missed) == (found.requests, 0)
    assert 1.0 <= found.imbalance <= SWE.replicas
    alone = run_trial(replace(SWE, replicas=1))
    assert alone.imbalance == 1.0


@pytest.mark.usefixtures("few_sessions")
def test_an_admitted_request_that_misses_is_counted() -> None:
    hasty = replace(SWE, policy="vllm", rate_rps=1000.0, order="round-robin", batch_tokens=8192)
    found = run_trial(hasty)
    assert found.admitted == found.requests
    assert found.admitted_missed == found.missed


@pytest.mark.usefixtures("few_sessions")
def test_ids_can_have_fewer_tokens_than_recorded() -> None:
    found = run_trial(replace(SWE, block_tokens=4))
    assert 0 < found.cached_tokens < 0.5 * found.prompt_tokens


def test_with_prefix_caches_every_replica_may_be_tried() -> None:
    trial = replace(SWE, replicas=8)
    assert fleet_of(trial, scenario("swe")).max_hops == 8
    assert fleet_of(replace(trial, scenario="coder"), scenario("coder")).max_hops == 3
