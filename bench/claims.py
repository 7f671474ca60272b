"""Shared parts of the benches of papers' claims: one replica, Poisson arrivals, attainment by rate."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import log, sqrt
from random import Random
from typing import Any

from penstock_core.domain.policy import Policy
from penstock_core.domain.replica_view import Limits
from penstock_simulator.engine_timing.ground_truth import TruthKind
from penstock_simulator.simulation import Arrival, Fleet, LengthKnowledge, SimulatedOutcome, simulate

Shape = Callable[[Random], tuple[str, int, int]]
"""Draws a request: tier, prompt tokens, output tokens."""


@dataclass(frozen=True)
class ConfiguredPolicy:
    """A scheduler with its settings. policy: a name, or an instance if its knobs differ from the defaults."""

    name: str
    policy: str | Policy[Any]
    limits: Limits = field(default_factory=Limits)


def poisson(shape: Shape, rate_rps: float, count: int, seed: int) -> Iterator[Arrival]:
    """Yield requests that are the same at every rate, with scaled arrival times."""
    random, at_s = Random(seed), 0.0
    for i in range(count):
        at_s += random.expovariate(1.0) / rate_rps
        yield Arrival(f"{i:05d}", at_s, *shape(random))


def exact(fleet: Fleet) -> Fleet:
    """Return the fleet with an exact ground truth and known lengths."""
    return replace(fleet, truth=TruthKind.EXACT, lengths=LengthKnowledge.KNOWN)


@dataclass(frozen=True)
class RequestLoad:
    """The requests: their shape and number, and the seed."""

    shape: Shape
    count: int
    seed: int


def served(
    fleet: Fleet, contender: ConfiguredPolicy, load: RequestLoad, rate_rps: float
) -> list[SimulatedOutcome]:
    """Serve all requests at a rate, and return their outcomes."""
    policy = contender.policy
    fleet = replace(fleet, limits=contender.limits)
    arrivals = poisson(load.shape, rate_rps, load.count, load.seed)
    if isinstance(policy, str):
        return list(simulate(replace(fleet, policy=policy), arrivals, load.seed))
    return list(simulate(fleet, arrivals, load.seed, lambda _name, _knobs: policy))


def attainment(outcomes: Sequence[SimulatedOutcome]) -> float:
    """Return the share of all requests that met every target."""
    return sum(outcome.met for outcome in outcomes) / len(outcomes)


def print_highest_rates(
    title: str,
    fleet: Fleet,
    contenders: Sequence[ConfiguredPolicy],
    load: RequestLoad,
    targets: Sequence[float],
    *,
    most_rps: float,
    least_rps: float = 0.0,
    steps: int = 6,
) -> None:
    """Print a table of the highest rate at which each contender attains each target."""
    width = max(len(contender.name) for contender in contenders) + 2
    heads = (f"req/s at {100 * target:.0f} %" for target in targets)
    print(f"\n{title}\n{'':<{width}}" + "".join(f"{head:>15}" for head in heads))
    for contender in contenders:

        def attained(rate_rps: float, contender: ConfiguredPolicy = contender) -> float:
            return attainment(served(fleet, contender, load, rate_rps))

        rates = highest_rates(attained, targets, most_rps, least_rps=least_rps, steps=steps)
        print(f"{contender.name:<{width}}" + "".join(f"{rate:>15.2f}" for rate in rates), flush=True)


def highest_rates(
    attained: Callable[[float], float],
    targets: Sequence[float],
    most_rps: float,
    *,
    least_rps: float = 0.0,
    steps: int = 6,
) -> list[float]:
    """Return the highest rate that attains each target, by bisection; `least_rps` if none does.

    The error is at most 1 / 2^steps of the range.
    """
    known = cache(attained)
    rates: list[float] = []
    for target in targets:
        low, high = least_rps, most_rps
        for _ in range(steps):
            middle = (low + high) / 2
            low, high = (middle, high) if known(middle) >= target else (low, middle)
        rates.append(low)
    return rates


def log_normal(random: Random, mean: float, spread: float, most: int) -> int:
    """Return a log-normal length with this mean and deviation, clipped to 2 to `most`."""
    variance = log(1 + (spread / mean) ** 2)
    return max(2, min(most, int(random.lognormvariate(log(mean) - variance / 2, sqrt(variance)))))
