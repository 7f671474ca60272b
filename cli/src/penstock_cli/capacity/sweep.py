"""Attainment at rates around a capacity, with the same setting, for figures."""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock_cli.capacity.sampled_question import NO_MISS_LIMIT, Trials
from penstock_cli.capacity.search import CapacityResult
from penstock_cli.capacity.setting import ORACLE
from penstock_cli.capacity.trial import TrialResult, trial_of
from penstock_cli.plots.series import Curve, Spot

SHARES_OF_CAPACITY = (0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5)
"""Rates of a curve, as shares of the capacity."""

SEED = 0
"""The sample of a curve."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """One policy in one scenario. paths: path of each tier in the TTFT–TPOT plane as the rate grows."""

    curve: Curve
    paths: dict[str, tuple[Spot, ...]]


def sweep(answer: CapacityResult) -> Trials[Sweep | None]:
    """Run the first sample at rates around the capacity; None for the bound, or if no rate attains."""
    if answer.low_rps == 0 or answer.question.policy == ORACLE:
        return None
    rates_rps = tuple(float(f"{answer.low_rps * share:.4g}") for share in SHARES_OF_CAPACITY)
    tallies = yield [
        trial_of(answer.question, answer.setting, rate_rps, SEED, NO_MISS_LIMIT) for rate_rps in rates_rps
    ]
    attained = tuple(1 - tally.missed / tally.requests for tally in tallies)
    curve = Curve(answer.question.scenario, answer.question.policy, rates_rps, attained)
    return Sweep(curve, _paths(tallies))


def _paths(tallies: Sequence[TrialResult]) -> dict[str, tuple[Spot, ...]]:
    tiers = dict.fromkeys(tier for tally in tallies for tier, *_ in tally.spots)
    return {
        name: tuple(Spot(ttft, tpot) for tally in tallies for tier, ttft, tpot in tally.spots if tier == name)
        for name in tiers
    }
