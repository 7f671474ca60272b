"""Updates the memory with an observation: a period, and the learned capacity of a replica.

Capacity is not configured. It is learned where rejections begin: admitted requests per second over the number
of replicas. The value holds for this pool's mix of requests, its bursts, policy and GPUs. It changes when
rejections show another value, or when more requests are served without rejections. While replicas report to
be less than half full, it grows slowly, so that a lighter mix of requests is detected.

Only periods with the present number of ready replicas count, because rejections by fewer replicas do not show
the capacity of more.
"""

from dataclasses import replace

from penstock_core.autoscaling.demand import DemandObservation, TierDemand
from penstock_core.autoscaling.memory import AutoscalerState, Period, Share, with_period
from penstock_core.autoscaling.shortfall import Shortfall, shortfall
from penstock_core.autoscaling.terms import Scaling
from penstock_core.autoscaling.utilization import filling

FORGOTTEN_GROWTH = 1.5
HALF_FULL = 0.5


def observed(
    scaling: Scaling, demand: DemandObservation, memory: AutoscalerState, now_s: float
) -> AutoscalerState:
    """Return the memory after this observation."""
    ready = len(demand.ready())
    periods = memory.periods
    if demand.elapsed_s > 0:
        now = _period(demand, min(ready, memory.ready), now_s)
        periods = with_period(periods, now, scaling.observed_s)
    busy_s = now_s if memory.busy_s is None or is_busy(demand) else memory.busy_s
    observed = replace(memory, periods=periods, ready=ready, busy_s=busy_s)
    return replace(observed, capacity_rps=_capacity_rps(scaling, demand, observed))


def is_busy(demand: DemandObservation) -> bool:
    """Return whether there is any request: new, held, or running."""
    return (
        demand.held > 0
        or any(tier.arrived for tier in demand.tiers.values())
        or any(replica.snapshot.running or replica.snapshot.waiting for replica in demand.replicas)
    )


def offered_rps(periods: tuple[Period, ...]) -> float:
    """Return the requests per second that asked for admission."""
    seconds = sum(period.seconds for period in periods)
    arrived = sum(share.arrived for period in periods for share in period.shares.values())
    return arrived / seconds if seconds else 0.0


def shortfall_now(scaling: Scaling, memory: AutoscalerState) -> Shortfall | None:
    """Return the shortfall of the replicas that are ready now; None if it is within the target."""
    ready = memory.ready
    same = [period for period in memory.periods if period.ready == ready]
    return shortfall(scaling, same) if ready else None


def _period(demand: DemandObservation, ready: int, now_s: float) -> Period:
    with_slo = {name: tier for name, tier in demand.tiers.items() if tier.has_slo}
    tries = sum(tier.hops for tier in with_slo.values())
    admitted = sum(tier.admitted for tier in with_slo.values())
    return Period(
        ended_s=now_s,
        seconds=demand.elapsed_s,
        ready=ready,
        filled=sum(filling(replica.snapshot) for replica in demand.ready()),
        tries=tries,
        tries_refused=max(tries - admitted, 0),
        shares={name: _share(tier) for name, tier in with_slo.items()},
    )


def _share(tier: TierDemand) -> Share:
    return Share(tier.arrived, tier.best_effort + tier.rejected, tier.judged, tier.met)


def _capacity_rps(scaling: Scaling, demand: DemandObservation, observed: AutoscalerState) -> float | None:
    """Return the capacity of one replica in requests per second after this period."""
    known = observed.capacity_rps
    if not observed.ready or not observed.periods or not demand.elapsed_s:
        return known
    served_rps = offered_rps(observed.periods) / observed.ready
    short = shortfall_now(scaling, observed)
    if short is not None:
        served_rps /= short.times(observed.ready)
        return served_rps if known is None else _towards(scaling, demand, known, served_rps)
    if known is None:
        return None
    if served_rps > known:
        return _towards(scaling, demand, known, served_rps)
    half_full = observed.periods[-1].filled >= HALF_FULL * observed.ready
    return known if half_full else known * FORGOTTEN_GROWTH ** (demand.elapsed_s / scaling.forget_s)


def _towards(scaling: Scaling, demand: DemandObservation, known: float, observed_rps: float) -> float:
    """Move the known value towards the observed one, half of the way per averaging time."""
    left: float = 0.5 ** (demand.elapsed_s / scaling.observed_s)
    return observed_rps + (known - observed_rps) * left
