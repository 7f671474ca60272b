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

Attainment is computed over the requests of all samples together. The first sample alone decides if it is at
least 3 points from the target, which saves trials of the others.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import floor, inf, sqrt
from typing import TypeVar

from penstock_core.timing.builtin_models import time_model
from penstock_simulator.scenarios import Scenario, arrivals, scenario

from penstock_cli.capacity.question import Question
from penstock_cli.capacity.setting import Grid, PolicySetting, grid_of, laps_of
from penstock_cli.capacity.trial import Trial, TrialResult, requests_in, trial_of, with_sessions

GROWTH = 1.5
"""Factor between the rates of a bracket that is wide."""

COARSE, FINE = 1.1, 1.02
"""Factors to which a bracket is narrowed: while settings are compared, and at the end."""

HIGHER_RATES = (1.05, 1.1, 1.2, 1.4)
"""Higher rates that are also tried, as multiples of a rate that attains."""

DECISIVE_MARGIN = 0.03
"""Distance from the target at which one sample decides alone, as a share of requests."""

NO_MISS_LIMIT = 1 << 30
"""Limit on misses above that of any trial, so that it runs to its end."""

MOST_STEPS = 12
"""Most steps of the bracket: rates from 1/130 of the guess to 130 times the guess."""

ANY_RATE_RPS = 1.0
"""Rate at which a scenario is sampled to count its requests. Their number and lengths do not depend on it."""

ROUNDING_REQUESTS = 1e-9
"""Tolerance for a number of misses that floating point puts slightly below a whole number."""

FULL_SPEED_SHARE = 0.25
"""The guess, as a share of the rate at which an engine computes at full speed without limits."""


@dataclass(frozen=True, slots=True)
class RateProbe:
    """A setting and a rate in requests per second."""

    setting: PolicySetting
    rate_rps: float


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


Result = TypeVar("Result")
Trials = Generator[Sequence[Trial], Sequence[TrialResult], Result]
"""Yields trials, receives their results in the same order, and returns the result of the search."""

Bracket = tuple[float, float]
"""A rate that attains, 0 for none, and a higher one that does not."""


@dataclass(frozen=True, slots=True)
class SampledQuestion:
    """A question, and the number of requests of each sample of its scenario.

    most_rps: a rate that need not be exceeded.
    """

    question: Question
    samples: tuple[int, ...]
    most_rps: float = inf

    def allowed(self, requests: int) -> int:
        """Return the most misses among so many requests that still attain the target."""
        return floor(requests * (1 - self.question.conditions.attainment) + ROUNDING_REQUESTS)

    def trial(self, probe: RateProbe, seed: int, most_misses: int = NO_MISS_LIMIT) -> Trial:
        """Return the trial of one sample at a probe."""
        return trial_of(self.question, probe.setting, probe.rate_rps, seed, most_misses)


class UnboundedCapacity(Exception):
    """Every rate attains, so there is no capacity. probe: the highest rate that was tried."""

    def __init__(self, question: Question, probe: RateProbe) -> None:
        self.probe = probe
        super().__init__(
            f"{question.scenario}, {question.policy}: {probe.rate_rps:g} requests/s still attain"
        )


def capacity(
    question: Question, before: RateProbe | None = None, most_rps: float = inf
) -> Trials[CapacityResult]:
    """Search a capacity. before: the result of an earlier search. most_rps: rate that need not be exceeded.

    Raises UnknownScenario, UnknownPolicy, UnboundedCapacity.
    """
    conditions = question.conditions
    workload = with_sessions(scenario(question.scenario), conditions.sessions)
    samples = (
        arrivals(workload, ANY_RATE_RPS, seed, laps=laps_of(question.policy, conditions.replicas))
        for seed in range(conditions.seeds)
    )
    counts = tuple(requests_in(list(sample)) for sample in samples)
    sampled = SampledQuestion(question, counts, most_rps)
    grid = grid_of(question.policy, workload)
    if before is not None and before.rate_rps > 0 and grid.has(before.setting):
        setting = before.setting
        low, high = yield from _bracket(sampled, setting, before.rate_rps, FINE)
    else:
        first = replace(sampled, samples=sampled.samples[:1])
        setting, rate_rps = yield from _first_estimate(first, grid, guess_rps(workload))
        low, high = yield from _bracket(sampled, setting, rate_rps, COARSE)
    low, high = yield from _narrow(sampled, setting, low, high, FINE)
    setting, low, high = yield from _tune(sampled, grid, setting, (low, high), FINE)
    low, high = yield from _try_higher_rates(sampled, setting, low, high)
    return (yield from _confirm(sampled, setting, low, high))


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
    return _rounded(FULL_SPEED_SHARE / (tokens * token_s))


def _bracket(
    sampled: SampledQuestion, setting: PolicySetting, start_rps: float, growth: float
) -> Trials[Bracket]:
    """Return a rate that attains and a higher one that does not, at least a factor of `growth` apart."""
    rate_rps, grows = start_rps, (yield from _attains(sampled, setting, start_rps))
    for _ in range(MOST_STEPS):
        if grows and rate_rps >= sampled.most_rps:
            break
        before, rate_rps = rate_rps, _rounded(rate_rps * growth if grows else rate_rps / growth)
        growth = min(growth**2, GROWTH)
        if (yield from _attains(sampled, setting, rate_rps)) != grows:
            return (before, rate_rps) if grows else (rate_rps, before)
    if grows:
        raise UnboundedCapacity(sampled.question, RateProbe(setting, rate_rps))
    return 0.0, rate_rps


def _narrow(
    sampled: SampledQuestion, setting: PolicySetting, low: float, high: float, step: float
) -> Trials[Bracket]:
    """Return the bracket narrowed to a factor of `step`."""
    while low > 0 and high > low * step:
        middle = _rounded(sqrt(low * high))
        if (yield from _attains(sampled, setting, middle)):
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
                bar_rps = _rounded(low * step) if low > 0 else high
                found = yield from _decide(
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
        high = _rounded(low * step**2)
        if not (yield from _attains(sampled, setting, high)):
            return (yield from _narrow(sampled, setting, low, high, step))
        low = high
    return (yield from _narrow(sampled, setting, *(yield from _bracket(sampled, setting, low, GROWTH)), step))


def _try_higher_rates(
    sampled: SampledQuestion, setting: PolicySetting, low: float, high: float
) -> Trials[Bracket]:
    """Return the bracket above the highest rate that attains, of those up to 40 % above `low`."""
    while low > 0:
        higher = [RateProbe(setting, _rounded(low * factor)) for factor in HIGHER_RATES]
        found = yield from _decide(sampled, higher)
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
        low, high = _rounded(low / FINE), low
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


def _attains(sampled: SampledQuestion, setting: PolicySetting, rate_rps: float) -> Trials[bool]:
    probe = RateProbe(setting, rate_rps)
    return (yield from _decide(sampled, [probe]))[probe] is not None


def _decide(sampled: SampledQuestion, probes: Sequence[RateProbe]) -> Trials[dict[RateProbe, int | None]]:
    """Return the counted misses of each probe; None for a probe that does not attain.

    The first sample decides if it is at least `DECISIVE_MARGIN` from the target, else all samples do.
    """
    first_requests, *others = sampled.samples
    margin = floor(DECISIVE_MARGIN * first_requests) if others else 0
    allowed = sampled.allowed(first_requests)
    tallies = yield [sampled.trial(probe, 0, allowed + margin) for probe in probes]
    results = dict(zip(probes, tallies, strict=True))
    decided = {probe: tally.missed for probe, tally in results.items() if tally.missed <= allowed - margin}
    allowed_of_all = sampled.allowed(sum(sampled.samples))
    close = {
        probe: tally.missed
        for probe, tally in results.items()
        if tally.complete and tally.missed <= allowed_of_all and probe not in decided
    }
    by_all_samples = (yield from _decide_by_all_samples(sampled, close, allowed_of_all)) if close else {}
    return {probe: decided.get(probe, by_all_samples.get(probe)) for probe in probes}


def _decide_by_all_samples(
    sampled: SampledQuestion, close: Mapping[RateProbe, int], allowed: int
) -> Trials[dict[RateProbe, int | None]]:
    """Return the misses of each probe in all samples; None for a probe that does not attain.

    close: misses of each probe in the first sample, at most `allowed`.
    """
    seeds = range(1, len(sampled.samples))
    tallies = iter(
        (
            yield [
                sampled.trial(probe, seed, allowed - missed)
                for probe, missed in close.items()
                for seed in seeds
            ]
        )
    )
    found: dict[RateProbe, int | None] = {}
    for probe, missed in close.items():
        others = list(islice(tallies, len(seeds)))
        total = missed + sum(tally.missed for tally in others)
        found[probe] = total if total <= allowed else None
    return found


def _rounded(rate_rps: float) -> float:
    """Round to four digits, so that rates are readable and repeat in the trial log."""
    return float(f"{rate_rps:.4g}")
