"""Whether a rate attains: the share of requests that meet their SLO reaches the question's target.

Attainment is computed over the requests of all samples together. The first sample alone decides if it is at
least 3 points from the target, which saves trials of the others.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import floor, inf
from typing import TypeVar

from penstock_cli.capacity.question import Question
from penstock_cli.capacity.setting import PolicySetting
from penstock_cli.capacity.trial import Trial, TrialResult, trial_of

DECISIVE_MARGIN = 0.03
"""Distance from the target at which one sample decides alone, as a share of requests."""

NO_MISS_LIMIT = 1 << 30
"""Limit on misses above that of any trial, so that it runs to its end."""

ROUNDING_REQUESTS = 1e-9
"""Tolerance for a number of misses that floating point puts slightly below a whole number."""


@dataclass(frozen=True, slots=True)
class RateProbe:
    """A setting and a rate in requests per second."""

    setting: PolicySetting
    rate_rps: float


Result = TypeVar("Result")
Trials = Generator[Sequence[Trial], Sequence[TrialResult], Result]
"""Yields trials, receives their results in the same order, and returns the result of the search."""


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


def attains(sampled: SampledQuestion, setting: PolicySetting, rate_rps: float) -> Trials[bool]:
    """Return whether a setting attains at a rate."""
    probe = RateProbe(setting, rate_rps)
    return (yield from decide(sampled, [probe]))[probe] is not None


def decide(sampled: SampledQuestion, probes: Sequence[RateProbe]) -> Trials[dict[RateProbe, int | None]]:
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
