"""What one observation adds to the memory: a period, and what it teaches of a replica's capacity.

Capacity is never configured. It is learned where it shows, at the point where refusals begin: so many
requests with a promise, a second, over the replicas that were there. That is a figure of this pool's own mix
of requests, with its bursts, its policy and its GPUs in it. It moves when refusals show another one, or when
more is carried without any; and while replicas say of themselves that they are not half full it is slowly
forgotten, so that a mix that has become lighter is found out.

Periods count only while as many replicas are ready as now: what fewer had to refuse says nothing of these.
"""

from dataclasses import replace

from penstock_core.autoscaling.demand import Demand, TierDemand
from penstock_core.autoscaling.memory import Memory, Period, Share, with_period
from penstock_core.autoscaling.shortfall import Shortfall, shortfall
from penstock_core.autoscaling.terms import Scaling
from penstock_core.autoscaling.utilization import filling

FORGOTTEN_GROWTH = 1.5
HALF_FULL = 0.5


def observed(scaling: Scaling, demand: Demand, memory: Memory, now_s: float) -> Memory:
    """The memory after this observation."""
    ready = len(demand.ready())
    periods = memory.periods
    if demand.elapsed_s > 0:
        now = _period(demand, min(ready, memory.ready), now_s)
        periods = with_period(periods, now, scaling.observed_s)
    busy_s = now_s if memory.busy_s is None or is_busy(demand) else memory.busy_s
    seen = replace(memory, periods=periods, ready=ready, busy_s=busy_s)
    return replace(seen, capacity_rps=_capacity_rps(scaling, demand, seen))


def is_busy(demand: Demand) -> bool:
    """Whether anybody wants anything: a request came, is held, or is under way."""
    return (
        demand.held > 0
        or any(tier.arrived for tier in demand.tiers.values())
        or any(replica.snapshot.running or replica.snapshot.waiting for replica in demand.replicas)
    )


def offered_rps(periods: tuple[Period, ...]) -> float:
    """Requests that wanted a promise, a second."""
    seconds = sum(period.seconds for period in periods)
    arrived = sum(share.arrived for period in periods for share in period.shares.values())
    return arrived / seconds if seconds else 0.0


def shortfall_now(scaling: Scaling, memory: Memory) -> Shortfall | None:
    """What the replicas that are ready now could not keep; None where that is no more than may be."""
    ready = memory.ready
    same = [period for period in memory.periods if period.ready == ready]
    return shortfall(scaling, same) if ready else None


def _period(demand: Demand, ready: int, now_s: float) -> Period:
    promised = {name: tier for name, tier in demand.tiers.items() if tier.promises}
    tries = sum(tier.hops for tier in promised.values())
    admitted = sum(tier.admitted for tier in promised.values())
    return Period(
        ended_s=now_s,
        seconds=demand.elapsed_s,
        ready=ready,
        filled=sum(filling(replica.snapshot) for replica in demand.ready()),
        tries=tries,
        tries_refused=max(tries - admitted, 0),
        shares={name: _share(tier) for name, tier in promised.items()},
    )


def _share(tier: TierDemand) -> Share:
    return Share(tier.arrived, tier.best_effort + tier.rejected, tier.judged, tier.met)


def _capacity_rps(scaling: Scaling, demand: Demand, seen: Memory) -> float | None:
    """One replica's, after this period."""
    known = seen.capacity_rps
    if not seen.ready or not seen.periods or not demand.elapsed_s:
        return known
    carried_rps = offered_rps(seen.periods) / seen.ready
    short = shortfall_now(scaling, seen)
    if short is not None:
        carried_rps /= short.times(seen.ready)
        return carried_rps if known is None else _towards(scaling, demand, known, carried_rps)
    if known is None:
        return None
    if carried_rps > known:
        return _towards(scaling, demand, known, carried_rps)
    half_full = seen.periods[-1].filled >= HALF_FULL * seen.ready
    return known if half_full else known * FORGOTTEN_GROWTH ** (demand.elapsed_s / scaling.forget_s)


def _towards(scaling: Scaling, demand: Demand, known: float, shown: float) -> float:
    """Half of the way in the time that demand is averaged over."""
    left: float = 0.5 ** (demand.elapsed_s / scaling.observed_s)
    return shown + (known - shown) * left
