"""Bounds on attainment at a rate, and on the rate at an attainment."""

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

from penstock_simulator.arrival import Arrival
from penstock_simulator.bounds.bound_setting import BoundSetting, bound_setting
from penstock_simulator.bounds.least_work import least_work
from penstock_simulator.bounds.relaxation import most_sessions
from penstock_simulator.scenarios import Scenario
from penstock_simulator.scenarios import arrivals as arrivals_of

ROOF_RPS = 1000.0
"""Highest rate that the search for a bound tries."""

WIDENING = 1.4
"""Factor between rates until the bracket has both sides."""


def bound(arrivals: Iterable[Arrival], setting: BoundSetting) -> float:
    """Return the largest share of arrivals whose every target any scheduler can meet; a session counts once.

    With speculation the bound is on the expected share; without, it holds for every run. Raises KeyError for
    a tier that the setting does not have, ValueError if there are no arrivals.
    """
    demand = least_work(list(arrivals), setting)
    sessions = demand.sessions + demand.unconstrained_sessions
    if not sessions:
        raise ValueError("there are no arrivals")
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
    """Return a rate per replica at which no scheduler reaches `attainment`, on average over the seeds.

    The bound on attainment falls with the rate. The result is the upper end of a bracket no wider than
    `relative_error`. Raises ValueError if the bound is never reached below `ROOF_RPS`.
    """
    setting = bound_setting(scenario, replicas)

    def share(rate_rps: float) -> float:
        samples = (arrivals_of(scenario, rate_rps * replicas, seed, replicas) for seed in seeds)
        return fmean(bound(sample, setting) for sample in samples)

    return _crossing(share, attainment, start_rps, 1 + relative_error)


def _crossing(share: Callable[[float], float], level: float, start_rps: float, within: float) -> float:
    """Return the upper end of a bracket, at most a factor of `within` wide, where a share crosses a level.

    Each new rate comes from linear interpolation over the logarithm of the rate, moved slightly towards the
    farther end, so that both ends converge.
    """
    low = high = None
    rate_rps = start_rps
    while low is None or high is None or high[0] > low[0] * within:
        if rate_rps > ROOF_RPS:
            raise ValueError(f"the bound is above {ROOF_RPS:g} requests/s")
        point = (rate_rps, share(rate_rps))
        low, high = (point, high) if point[1] >= level else (low, point)
        if low is None or high is None:
            rate_rps *= WIDENING if high is None else 1 / WIDENING
            continue
        part = (low[1] - level) / (low[1] - high[1])
        on_line = low[0] * (high[0] / low[0]) ** min(max(part, 0.05), 0.95)
        shift = within**0.4
        rate_rps = on_line * shift if high[0] / on_line > on_line / low[0] else on_line / shift
    return high[0]
