"""Bounds as shares of a workload, and as the highest rate at which a share can be kept."""

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

from penstock_simulator.arrival import Arrival
from penstock_simulator.bounds.demand import demand_of
from penstock_simulator.bounds.relaxation import most_sessions
from penstock_simulator.bounds.setting import Setting, setting_of
from penstock_simulator.scenarios import Scenario
from penstock_simulator.scenarios import arrivals as arrivals_of

ROOF_RPS = 1000.0
"""A rate that nobody is asked to serve: where the search for a bound on it gives up."""

WIDENING = 1.4
"""Factor from rate to rate while all are on one side."""


def bound(arrivals: Iterable[Arrival], setting: Setting) -> float:
    """Largest share of these whose every target any scheduler can meet, a session counting as one.

    An average over the luck of speculation; without speculation it holds for every single run. Raises
    KeyError for a tier that the setting does not have, ValueError where there are no arrivals.
    """
    demand = demand_of(list(arrivals), setting)
    sessions = demand.sessions + demand.carefree
    if not sessions:
        raise ValueError("no arrivals, no share of them")
    return most_sessions(demand, setting) / sessions


def capacity_bound(
    scenario: Scenario,
    attainment: float = 0.9,
    seeds: Sequence[int] = (0,),
    *,
    replicas: int = 1,
    relative_error: float = 0.01,
    start_rps: float = 6.0,
) -> float:
    """Rate per replica at which no scheduler reaches `attainment` any more, on average over the seeds.

    The bound falls with the rate; the answer is the upper of two rates, at most `relative_error` apart, on
    either side of it. Raises ValueError where nothing binds below `ROOF_RPS`.
    """
    setting = setting_of(scenario, replicas)

    def share(rate_rps: float) -> float:
        samples = (arrivals_of(scenario, rate_rps * replicas, seed, replicas) for seed in seeds)
        return fmean(bound(sample, setting) for sample in samples)

    return _crossing(share, attainment, start_rps, 1 + relative_error)


def _crossing(share: Callable[[float], float], level: float, start_rps: float, within: float) -> float:
    """The upper of two rates, a factor of `within` apart or less, between which a share falls below a level.

    A straight line through the two, by the logarithm of the rate, says where; the next rate is a little to
    that side of it which is farther away, so that both sides come near.
    """
    low = high = None
    rate_rps = start_rps
    while low is None or high is None or high[0] > low[0] * within:
        if rate_rps > ROOF_RPS:
            raise ValueError(f"nothing binds below {ROOF_RPS:g} requests a second")
        here = (rate_rps, share(rate_rps))
        low, high = (here, high) if here[1] >= level else (low, here)
        if low is None or high is None:
            rate_rps *= WIDENING if high is None else 1 / WIDENING
            continue
        part = (low[1] - level) / (low[1] - high[1])
        on_line = low[0] * (high[0] / low[0]) ** min(max(part, 0.05), 0.95)
        aside = within**0.4
        rate_rps = on_line * aside if high[0] / on_line > on_line / low[0] else on_line / aside
    return high[0]
