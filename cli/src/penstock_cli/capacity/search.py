"""The search for a capacity: which trials to run next, by what the ones before have found.

A search is a generator: it yields trials that may run at the same time, and is sent their tallies. It decides
nothing by time or chance, so the same trials have the same answer on any machine.

1. Bracket: from a guess, rates grow or shrink by half until one attains and the next does not.
2. Narrow the bracket by bisection to a tenth.
3. Challenge: whoever attains a tenth above the champion's rate takes its place and climbs on. A setting that
   does not is dropped for one trial. Until here the first sample speaks for all.
4. Bracket again, with every sample, narrow to 2 %, challenge again by 2 %. Where a search before is known to
   have ended, this one begins here, and looks 2 % away first.
5. Look ahead: with few samples attainment need not fall steadily with the rate. Where one up to 40 % higher
   attains, go on from there.
6. Confirm: run every sample in full at the rate that was found; where it does not hold, go down by 2 %.

Attaining is judged over the requests of all samples together. The first sample alone decides where it is
3 points from the target or more, which spares the others where they could hardly change anything.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import floor, sqrt
from typing import TypeVar

from penstock_core.timing.builtin_models import time_model
from penstock_simulator.scenarios import Scenario, arrivals, scenario

from penstock_cli.capacity.question import Question
from penstock_cli.capacity.setting import Grid, Setting, grid_of, laps_of
from penstock_cli.capacity.trial import Tally, Trial, requests_in, trial_of

GROWTH = 1.5
COARSE, FINE = 1.1, 1.02
AHEAD = (1.05, 1.1, 1.2, 1.4)
"""Rates that are looked at above one that attains, as multiples of it."""

SURE = 0.03
"""Share of requests by which one sample has to be off the target to decide alone."""

NOBODY_GIVES_UP = 1 << 30
"""More misses than any trial has: it runs to its end."""

MOST_STEPS = 12
"""Of the bracket: beyond 130 times the guess, or under a 130th of it, is no rate to look for."""

FULL_SPEED_SHARE = 0.25
"""The guess, as a share of the rate at which an engine would do nothing but compute at its fastest."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A setting at a rate."""

    setting: Setting
    rate_rps: float


@dataclass(frozen=True, slots=True)
class Answer:
    """A capacity.

    low_rps: the highest rate found to attain; 0 where none did.
    high_rps: the lowest found not to.
    requests, missed, promoted: at `low_rps`, in all samples together; promoted ones are None where nobody
        counted them.
    """

    question: Question
    setting: Setting
    low_rps: float
    high_rps: float
    requests: int
    missed: int
    promoted: int | None = None


Found = TypeVar("Found")
Trials = Generator[Sequence[Trial], Sequence[Tally], Found]
"""Yields trials, is sent their tallies in the same order, and returns what it looked for."""

Bracket = tuple[float, float]
"""A rate that attains, 0 for none, and a higher one that does not."""


@dataclass(frozen=True, slots=True)
class Sought:
    """A question, and how many requests each sample of its scenario has."""

    question: Question
    samples: tuple[int, ...]

    def allowed(self, requests: int) -> int:
        """Misses among so many that leave the target attained."""
        return floor(requests * (1 - self.question.conditions.attainment) + 1e-9)

    def trial(self, probe: Probe, seed: int, most_misses: int = NOBODY_GIVES_UP) -> Trial:
        """One sample of a probe."""
        return trial_of(self.question, probe.setting, probe.rate_rps, seed, most_misses)


class NoEnd(Exception):
    """Every rate attains, however high: the question makes no sense."""

    def __init__(self, question: Question, rate_rps: float) -> None:
        super().__init__(f"{question.scenario}, {question.policy}: {rate_rps:g} requests/s still attain")


def capacity(question: Question, before: Probe | None = None) -> Trials[Answer]:
    """Find it. before: where a search for it has ended. Raises UnknownScenario, UnknownPolicy, NoEnd."""
    here, asked = scenario(question.scenario), question.conditions
    samples = (
        arrivals(here, 1.0, seed, laps=laps_of(question.policy, asked.replicas))
        for seed in range(asked.seeds)
    )
    sought = Sought(question, tuple(requests_in(list(sample)) for sample in samples))
    grid = grid_of(question.policy, here)
    if before is not None and before.rate_rps > 0 and grid.has(before.setting):
        setting = before.setting
        low, high = yield from _bracket(sought, setting, before.rate_rps, FINE)
    else:
        first = replace(sought, samples=sought.samples[:1])
        setting, rate_rps = yield from _roughly(first, grid, guess_rps(here))
        low, high = yield from _bracket(sought, setting, rate_rps, COARSE)
    low, high = yield from _narrow(sought, setting, low, high, FINE)
    setting, low, high = yield from _challenge(sought, grid, setting, (low, high), FINE)
    low, high = yield from _look_ahead(sought, setting, low, high)
    return (yield from _confirm(sought, setting, low, high))


def _roughly(first: Sought, grid: Grid, start_rps: float) -> Trials[tuple[Setting, float]]:
    """A setting, and a rate near its capacity, by the first sample."""
    low, high = yield from _bracket(first, grid.start, start_rps, GROWTH)
    low, high = yield from _narrow(first, grid.start, low, high, COARSE)
    setting, low, high = yield from _challenge(first, grid, grid.start, (low, high), COARSE)
    return setting, low or high


def guess_rps(here: Scenario) -> float:
    """Where to begin: a share of what the engine could do at full speed, without memory or targets."""
    asked = list(arrivals(here, 1.0, seed=0))
    tokens = sum(arrival.prompt_tokens + arrival.output_tokens for arrival in asked) / requests_in(asked)
    token_s = min(term.token_s for term in time_model(here.time_model).terms)
    return _rounded(FULL_SPEED_SHARE / (tokens * token_s))


def _bracket(sought: Sought, setting: Setting, start_rps: float, growth: float) -> Trials[Bracket]:
    """A rate that attains and one that does not, a factor `growth` apart, or more where they are far away."""
    rate_rps, first = start_rps, (yield from _attains(sought, setting, start_rps))
    for _ in range(MOST_STEPS):
        before, rate_rps = rate_rps, _rounded(rate_rps * growth if first else rate_rps / growth)
        growth = min(growth**2, GROWTH)
        if (yield from _attains(sought, setting, rate_rps)) != first:
            return (before, rate_rps) if first else (rate_rps, before)
    if first:
        raise NoEnd(sought.question, rate_rps)
    return 0.0, rate_rps


def _narrow(sought: Sought, setting: Setting, low: float, high: float, step: float) -> Trials[Bracket]:
    """The bracket, no wider than a factor of `step`."""
    while low > 0 and high > low * step:
        middle = _rounded(sqrt(low * high))
        if not low < middle < high:
            break
        if (yield from _attains(sought, setting, middle)):
            low = middle
        else:
            high = middle
    return low, high


def _challenge(
    sought: Sought, grid: Grid, champion: Setting, bracket: Bracket, step: float
) -> Trials[tuple[Setting, float, float]]:
    """The best setting of the grid: one axis after the other, until none is better by a factor of `step`."""
    low, high = bracket
    beaten: set[Setting] = set()
    changed = not grid.single
    while changed:
        changed = False
        for line in grid.lines(champion):
            rivals = [rival for rival in line if rival not in beaten]
            while rivals:
                bar_rps = _rounded(low * step) if low > 0 else high
                found = yield from _decide(sought, [Probe(rival, bar_rps) for rival in rivals])
                better = {probe.setting: missed for probe, missed in found.items() if missed is not None}
                beaten.update(rival for rival in rivals if rival not in better)
                if not better:
                    break
                champion, changed = min(better, key=lambda rival: (better[rival], rival.batch_tokens)), True
                rivals = [rival for rival in better if rival != champion]
                low, high = yield from _climb(sought, champion, bar_rps, step)
    return champion, low, high


def _climb(sought: Sought, setting: Setting, attained_rps: float, step: float) -> Trials[Bracket]:
    """From a rate that attains to a narrow bracket above it."""
    low = attained_rps
    for _ in range(MOST_STEPS):
        high = _rounded(low * step**2)
        if not (yield from _attains(sought, setting, high)):
            return (yield from _narrow(sought, setting, low, high, step))
        low = high
    return (yield from _narrow(sought, setting, *(yield from _bracket(sought, setting, low, GROWTH)), step))


def _look_ahead(sought: Sought, setting: Setting, low: float, high: float) -> Trials[Bracket]:
    """The bracket above the highest of the rates ahead that attains, until none does."""
    while low > 0:
        ahead = [Probe(setting, _rounded(low * factor)) for factor in AHEAD]
        found = yield from _decide(sought, ahead)
        attaining = [probe.rate_rps for probe, missed in found.items() if missed is not None]
        if not attaining:
            break
        low, high = yield from _climb(sought, setting, max(attaining), FINE)
    return low, high


def _confirm(sought: Sought, setting: Setting, low: float, high: float) -> Trials[Answer]:
    """All samples in full at the rate found; one step down where they do not hold it after all."""
    requests, missed, promoted = sum(sought.samples), 0, 0
    while low > 0:
        probe = Probe(setting, low)
        tallies = yield [sought.trial(probe, seed) for seed in range(len(sought.samples))]
        missed = sum(tally.missed for tally in tallies)
        promoted = sum(tally.promoted for tally in tallies)
        if missed <= sought.allowed(requests):
            break
        low, high = _rounded(low / FINE), low
        low = low if low > high / GROWTH**MOST_STEPS else 0.0
    return Answer(sought.question, setting, low, high, requests, missed, promoted)


def _attains(sought: Sought, setting: Setting, rate_rps: float) -> Trials[bool]:
    probe = Probe(setting, rate_rps)
    return (yield from _decide(sought, [probe]))[probe] is not None


def _decide(sought: Sought, probes: Sequence[Probe]) -> Trials[dict[Probe, int | None]]:
    """For each probe what it missed, as far as it was counted, or None where it does not attain."""
    first, *others = sought.samples
    sure = floor(SURE * first) if others else 0
    allowed = sought.allowed(first)
    tallies = yield [sought.trial(probe, 0, allowed + sure) for probe in probes]
    seen = dict(zip(probes, tallies, strict=True))
    decided = {probe: tally.missed for probe, tally in seen.items() if tally.missed <= allowed - sure}
    close = {probe: tally.missed for probe, tally in seen.items() if tally.complete and probe not in decided}
    by_all = (yield from _by_all(sought, close)) if close and others else {}
    return {probe: decided.get(probe, by_all.get(probe)) for probe in probes}


def _by_all(sought: Sought, close: Mapping[Probe, int]) -> Trials[dict[Probe, int | None]]:
    """The same by every sample. close: what each missed in the first."""
    allowed, seeds = sought.allowed(sum(sought.samples)), range(1, len(sought.samples))
    tallies = iter(
        (
            yield [
                sought.trial(probe, seed, max(allowed - missed, 0))
                for probe, missed in close.items()
                for seed in seeds
            ]
        )
    )
    found: dict[Probe, int | None] = {}
    for probe, missed in close.items():
        others = list(islice(tallies, len(seeds)))
        total = missed + sum(tally.missed for tally in others)
        found[probe] = total if total <= allowed else None
    return found


def _rounded(rate_rps: float) -> float:
    """Four digits: rates that people can read, and that a file finds again."""
    return float(f"{rate_rps:.4g}")
