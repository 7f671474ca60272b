"""The search for a capacity: decides which trials to run next from the results of the previous ones.

A rate *attains* if, at this rate, the share of requests that meet their SLO reaches the question's target.

A search is a generator: it yields trials that may run concurrently, and receives their results. It is
deterministic, so the result is the same on any machine.

1. Bracket: from a guess, rates grow or shrink by half until one attains and the next does not.
2. Narrow the bracket by bisection to a tenth.
3. Tune: a setting that attains 10 % above the best setting's rate becomes the best, and its rate is raised
   further. Other settings are rejected after one trial. Steps 1 to 3 use the first sample only.
4. Bracket again with all samples, narrow to 2 %, tune again by 2 %. If the result of an earlier search is
   known, this one begins here, with a bracket of 2 %.
5. Try higher rates: with few samples attainment need not fall monotonically with the rate. If a rate up to
   40 % higher attains, continue from there.
6. Confirm: run every sample in full at the rate found; if it does not attain, go down by 2 %.

Whether a rate attains is decided in `sampled_question`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, sqrt

from penstock_core.timing.builtin_models import time_model
from penstock_simulator.scenarios import Scenario, arrivals, scenario

from penstock_cli.capacity.question import Question
from penstock_cli.capacity.sampled_question import RateProbe, SampledQuestion, Trials, attains, decide
from penstock_cli.capacity.setting import Grid, PolicySetting, grid_of, laps_of
from penstock_cli.capacity.trial import TrialResult, requests_in, with_sessions

GROWTH = 1.5
"""Factor between the rates of a bracket that is wide."""

COARSE, FINE = 1.1, 1.02
"""Factors to which a bracket is narrowed: while settings are compared, and at the end."""

HIGHER_RATES = (1.05, 1.1, 1.2, 1.4)
"""Higher rates that are also tried, as multiples of a rate that attains."""

MOST_STEPS = 12
"""Most steps of the bracket: rates from 1/130 of the guess to 130 times the guess."""

ANY_RATE_RPS = 1.0
"""Rate at which a scenario is sampled to count its requests. Their number and lengths do not depend on it."""

FULL_SPEED_SHARE = 0.25
"""The guess, as a share of the rate at which an engine computes at full speed without limits."""


@dataclass(frozen=True, slots=True)
class CapacityResult:
    """A capacity.

    low_rps: highest rate that attains; 0 if none does. high_rps: lowest rate that does not.
    requests, missed, promoted: counts at `low_rps`, over all samples. promoted: None if it was not counted.
    cached_share: share of the prompt tokens of served requests that was found in prefix caches; None without
        prefix caches.
    admitted_attainment: share of admitted requests that met every target. imbalance: tokens that the busiest
        replica computed, over the mean. Both None without prefix caches.
    """

    question: Question
    setting: PolicySetting
    low_rps: float
    high_rps: float
    requests: int
    missed: int
    promoted: int | None = None
    cached_share: float | None = None
    admitted_attainment: float | None = None
    imbalance: float | None = None


Bracket = tuple[float, float]
"""A rate that attains, 0 for none, and a higher one that does not."""


class UnboundedCapacity(Exception):
    """Every rate attains, so there is no capacity. probe: the highest rate that was tried."""

    def __init__(self, question: Question, probe: RateProbe) -> None:
        self.probe = probe
        more = "; give more --sessions" if question.conditions.sessions else ""
        super().__init__(
            f"{question.scenario}, {question.policy}: {probe.rate_rps:g} requests/s still attain{more}"
        )


def capacity(
    question: Question, before: RateProbe | None = None, most_rps: float = inf
) -> Trials[CapacityResult]:
    """Search a capacity. before: the result of an earlier search. most_rps: rate that need not be exceeded.

    Raises UnknownScenario, UnknownPolicy, UnboundedCapacity.
    """
    sampled, grid = _sampled(question, most_rps)
    if before is not None and before.rate_rps > 0 and grid.has(before.setting):
        setting = before.setting
        low, high = yield from _bracket(sampled, setting, before.rate_rps, FINE)
    else:
        first = replace(sampled, samples=sampled.samples[:1])
        setting, rate_rps = yield from _first_estimate(first, grid, guess_rps(_workload(question)))
        low, high = yield from _bracket(sampled, setting, rate_rps, COARSE)
    low, high = yield from _narrow(sampled, setting, low, high, FINE)
    setting, low, high = yield from _tune(sampled, grid, setting, (low, high), FINE)
    low, high = yield from _try_higher_rates(sampled, setting, low, high)
    return (yield from _confirm(sampled, setting, low, high))


def capacity_above(question: Question, rate_rps: float, most_rps: float = inf) -> Trials[CapacityResult]:
    """Search a capacity only if it is above a rate, which is all that a comparison with a better one needs.

    Every setting is tried at the rate. If none attains, the result's `low_rps` is 0 and its `high_rps` the
    rate; if one does, the search goes on from the best. Raises as `capacity` does.
    """
    sampled, grid = _sampled(question, most_rps)
    found = yield from decide(sampled, [RateProbe(setting, rate_rps) for setting in grid.settings()])
    attaining = {probe: missed for probe, missed in found.items() if missed is not None}
    if not attaining:
        below = result_of(question, RateProbe(grid.start, 0.0), ())
        return replace(below, high_rps=rate_rps, requests=sum(sampled.samples))
    best = min(attaining, key=lambda probe: (attaining[probe], probe.setting.batch_tokens))
    return (yield from capacity(question, best, most_rps))


def _sampled(question: Question, most_rps: float) -> tuple[SampledQuestion, Grid]:
    """Return the question with its samples' sizes, and the settings to try."""
    conditions, workload = question.conditions, _workload(question)
    laps = laps_of(question.policy, conditions.replicas)
    samples = (arrivals(workload, ANY_RATE_RPS, seed, laps=laps) for seed in range(conditions.seeds))
    counts = tuple(requests_in(list(sample)) for sample in samples)
    return SampledQuestion(question, counts, most_rps), grid_of(question.policy, workload)


def _workload(question: Question) -> Scenario:
    return with_sessions(scenario(question.scenario), question.conditions.sessions)


def _first_estimate(
    first: SampledQuestion, grid: Grid, start_rps: float
) -> Trials[tuple[PolicySetting, float]]:
    """Return a setting and a rate near its capacity, from the first sample."""
    low, high = yield from _bracket(first, grid.start, start_rps, GROWTH)
    low, high = yield from _narrow(first, grid.start, low, high, COARSE)
    setting, low, high = yield from _tune(first, grid, grid.start, (low, high), COARSE)
    return setting, low or high


def guess_rps(workload: Scenario) -> float:
    """Return the first rate to try: a share of the engine's rate at full speed without memory or targets."""
    sample = list(arrivals(workload, ANY_RATE_RPS, seed=0))
    tokens = sum(arrival.prompt_tokens + arrival.output_tokens for arrival in sample) / requests_in(sample)
    token_s = min(term.token_s for term in time_model(workload.time_model).terms)
    return rounded(FULL_SPEED_SHARE / (tokens * token_s))


def _bracket(
    sampled: SampledQuestion, setting: PolicySetting, start_rps: float, growth: float
) -> Trials[Bracket]:
    """Return a rate that attains and a higher one that does not, at least a factor of `growth` apart."""
    rate_rps, grows = start_rps, (yield from attains(sampled, setting, start_rps))
    for _ in range(MOST_STEPS):
        if grows and rate_rps >= sampled.most_rps:
            break
        before, rate_rps = rate_rps, rounded(rate_rps * growth if grows else rate_rps / growth)
        growth = min(growth**2, GROWTH)
        if (yield from attains(sampled, setting, rate_rps)) != grows:
            return (before, rate_rps) if grows else (rate_rps, before)
    if grows:
        raise UnboundedCapacity(sampled.question, RateProbe(setting, rate_rps))
    return 0.0, rate_rps


def _narrow(
    sampled: SampledQuestion, setting: PolicySetting, low: float, high: float, step: float
) -> Trials[Bracket]:
    """Return the bracket narrowed to a factor of `step`."""
    while low > 0 and high > low * step:
        middle = rounded(sqrt(low * high))
        if (yield from attains(sampled, setting, middle)):
            low = middle
        else:
            high = middle
    return low, high


def _tune(
    sampled: SampledQuestion, grid: Grid, best: PolicySetting, bracket: Bracket, step: float
) -> Trials[tuple[PolicySetting, float, float]]:
    """Return the best setting: along one axis after the other, until none is better by a factor of `step`."""
    low, high = bracket
    rejected: set[PolicySetting] = set()
    changed = not grid.single
    while changed:
        changed = False
        for line in grid.lines(best):
            candidates = [candidate for candidate in line if candidate not in rejected]
            while candidates:
                bar_rps = rounded(low * step) if low > 0 else high
                found = yield from decide(
                    sampled, [RateProbe(candidate, bar_rps) for candidate in candidates]
                )
                better = {probe.setting: missed for probe, missed in found.items() if missed is not None}
                rejected.update(candidate for candidate in candidates if candidate not in better)
                if not better:
                    break
                best = min(better, key=lambda candidate: (better[candidate], candidate.batch_tokens))
                changed = True
                candidates = [candidate for candidate in better if candidate != best]
                low, high = yield from _climb(sampled, best, bar_rps, step)
    return best, low, high


def _climb(
    sampled: SampledQuestion, setting: PolicySetting, attained_rps: float, step: float
) -> Trials[Bracket]:
    """Return a narrow bracket above a rate that attains."""
    low = attained_rps
    for _ in range(MOST_STEPS):
        high = rounded(low * step**2)
        if not (yield from attains(sampled, setting, high)):
            return (yield from _narrow(sampled, setting, low, high, step))
        low = high
    return (yield from _narrow(sampled, setting, *(yield from _bracket(sampled, setting, low, GROWTH)), step))


def _try_higher_rates(
    sampled: SampledQuestion, setting: PolicySetting, low: float, high: float
) -> Trials[Bracket]:
    """Return the bracket above the highest rate that attains, of those up to 40 % above `low`."""
    while low > 0:
        higher = [RateProbe(setting, rounded(low * factor)) for factor in HIGHER_RATES]
        found = yield from decide(sampled, higher)
        attaining = [probe.rate_rps for probe, missed in found.items() if missed is not None]
        if not attaining:
            break
        low, high = yield from _climb(sampled, setting, max(attaining), FINE)
    return low, high


def _confirm(
    sampled: SampledQuestion, setting: PolicySetting, low: float, high: float
) -> Trials[CapacityResult]:
    """Run all samples in full at the rate found, and lower the rate until they attain."""
    requests, tallies = sum(sampled.samples), list[TrialResult]()
    lowest_rps = low / GROWTH**MOST_STEPS
    while low > 0:
        probe = RateProbe(setting, low)
        tallies = list((yield [sampled.trial(probe, seed) for seed in range(len(sampled.samples))]))
        if sum(tally.missed for tally in tallies) <= sampled.allowed(requests):
            break
        low, high = rounded(low / FINE), low
        low = low if low > lowest_rps else 0.0
    found = result_of(sampled.question, RateProbe(setting, low), tallies)
    return replace(found, high_rps=high, requests=requests)


def result_of(question: Question, probe: RateProbe, tallies: Sequence[TrialResult]) -> CapacityResult:
    """Return the result of complete trials at a rate, if no higher rate is known that does not attain."""
    requests, missed, promoted = (
        sum(getattr(tally, name) for tally in tallies) for name in ("requests", "missed", "promoted")
    )
    figures = _of_prefix_caches(tallies)
    setting, low_rps = probe.setting, probe.rate_rps
    return CapacityResult(question, setting, low_rps, low_rps, requests, missed, promoted, **figures)


def _of_prefix_caches(tallies: Sequence[TrialResult]) -> Mapping[str, float | None]:
    """Return the figures of a result that only engines with prefix caches have."""
    prompt_tokens = sum(tally.prompt_tokens for tally in tallies)
    if not prompt_tokens:
        return {}
    admitted = sum(tally.admitted for tally in tallies)
    admitted_missed = sum(tally.admitted_missed for tally in tallies)
    return {
        "cached_share": sum(tally.cached_tokens for tally in tallies) / prompt_tokens,
        "admitted_attainment": 1 - admitted_missed / admitted if admitted else None,
        "imbalance": max(tally.imbalance for tally in tallies),
    }


def rounded(rate_rps: float) -> float:
    """Round to four digits, so that rates are readable and repeat in the trial log."""
    return float(f"{rate_rps:.4g}")
