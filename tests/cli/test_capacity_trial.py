"""What one simulation of a capacity search counts, beside the outcomes that it is counted from."""

from dataclasses import replace
from functools import cache
from math import ceil

import pytest
from penstock_cli.capacity.trial import Trial, TrialResult, arrivals_of, fleet_of, requests_in, run_trial
from penstock_simulator.scenarios import scenario
from penstock_simulator.simulation import SimulatedOutcome, simulate
from penstock_simulator.simulation.disaggregated.distserve import Ratio
from penstock_simulator.simulation.outcome import FirstVerdict

PRESSED = Trial("coder", "slos-serve", 2048, 0, 1, "round-robin", "known", "exact", 3.0, 0, most_misses=10**9)
"""Beyond what one replica can carry: some miss, some are served best effort, some of those in time."""


@cache
def outcomes(trial: Trial) -> tuple[SimulatedOutcome, ...]:
    here = scenario(trial.scenario)
    return tuple(simulate(fleet_of(trial, here), arrivals_of(trial, here), trial.seed))


@cache
def result(trial: Trial) -> TrialResult:
    return run_trial(trial)


def test_each_request_counts_once_as_missed_promoted_or_kept_by_its_first_verdict() -> None:
    missed = sum(not outcome.met for outcome in outcomes(PRESSED))
    promoted = sum(
        outcome.met and outcome.verdict is FirstVerdict.BEST_EFFORT for outcome in outcomes(PRESSED)
    )
    found = result(PRESSED)
    assert (found.requests, found.missed, found.promoted) == (len(outcomes(PRESSED)), missed, promoted)
    assert found.complete
    assert promoted > 0
    assert 0 < missed < found.requests


def test_a_tier_is_where_nine_tenths_of_its_requests_stay_within() -> None:
    ((tier, ttft, tpot),) = result(PRESSED).spots
    slo = scenario("coder").tiers[tier].slo
    served = [outcome for outcome in outcomes(PRESSED) if outcome.tpot_s is not None]
    assert slo.tpot_s is not None
    shares = sorted(outcome.tpot_s / slo.tpot_s for outcome in served if outcome.tpot_s is not None)
    assert tpot == pytest.approx(shares[ceil(0.9 * len(shares)) - 1], abs=2e-4)
    assert ttft > 0


def test_a_trial_ends_once_more_have_missed_than_were_asked_about() -> None:
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
