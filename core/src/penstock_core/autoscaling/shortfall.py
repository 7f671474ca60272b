"""Shortfall of a pool: demand that was rejected, and admitted requests that missed their SLO.

A tier falls short if more of its requests than its target allows were rejected or late. The worst tier
decides for the pool. Few requests are no evidence, and missed SLOs on a lightly loaded replica are not caused
by too few replicas.
"""

from collections.abc import Sequence
from typing import NamedTuple

from penstock_core.autoscaling.memory import Period, Share
from penstock_core.autoscaling.terms import Scaling, ScalingReason

FEWEST = 3
"""Fewest requests below target that count as a shortfall."""

LEAST_KEPT = 0.5
"""Lowest share that is assumed: a pool that rejects no request meets almost no SLO when it is overloaded,
even if half of the load could have been served.
"""

MOST_TIMES, MOST_MORE = 2, 4
"""One scale-up multiplies the replicas by at most the first or adds at most the second, whichever is more, as
in Kubernetes' autoscaler: the effect of more replicas is measured only when they run.
"""

LOADED = 0.25
"""Utilization of replicas below which missed SLOs are not attributed to load."""


class Shortfall(NamedTuple):
    """Shortfall of the worst tier. kept: share of its demand that met its SLO."""

    tier: str
    reason: ScalingReason
    kept: float

    def times(self, ready: int) -> float:
        """Return the estimated factor by which more replicas would have met all demand."""
        most = max(MOST_TIMES, 1 + MOST_MORE / ready)
        return 1 / max(self.kept, 1 / most)


def shortfall(scaling: Scaling, periods: Sequence[Period]) -> Shortfall | None:
    """Return the shortfall in these periods, all with the same number of replicas; None if there is none."""
    loaded = any(period.filled >= LOADED * period.ready for period in periods)
    tiers = sorted({tier for period in periods for tier in period.shares})
    found = [_of_tier(tier, _together(tier, periods), loaded) for tier in tiers]
    short = [one for one in found if one.kept < scaling.target_attainment]
    return min(short, key=lambda one: one.kept, default=None)


def _together(tier: str, periods: Sequence[Period]) -> Share:
    shares = [period.shares[tier] for period in periods if tier in period.shares]
    return Share(*(sum(column) for column in zip(*shares, strict=True)))


def _of_tier(tier: str, share: Share, loaded: bool) -> Shortfall:
    refused = min(share.refused, share.arrived)
    taken = 1.0 - refused / share.arrived if refused >= FEWEST else 1.0
    missed = share.judged - share.met
    in_time = share.met / share.judged if loaded and missed >= FEWEST else 1.0
    reason = ScalingReason.REFUSED if taken <= in_time else ScalingReason.MISSED
    return Shortfall(tier, reason, taken * max(in_time, LEAST_KEPT))
