"""What a pool's replicas could not keep: demand refused, and promises broken.

A tier falls short where more of its requests were refused, or late, than its target allows. The worst tier
speaks for the pool: another one that fares well is no comfort to it. A few requests prove nothing, and a
promise broken on a replica that is not loaded is no want of replicas.
"""

from collections.abc import Sequence
from typing import NamedTuple

from penstock_core.autoscaling.memory import Period, Share
from penstock_core.autoscaling.terms import Reason, Scaling

FEWEST = 3
"""So many requests have to have fallen short."""

LEAST_KEPT = 0.5
"""An overloaded pool that refuses nobody keeps nearly nothing, though half the load might have been well."""

MOST_TIMES, MOST_MORE = 2, 4
"""A shortfall asks for at most twice the replicas there are, or so many more, as Kubernetes' own autoscaler
does: whether growth helps shows only when it is there."""

LOADED = 0.25
"""Replicas less full than this are not why promises were broken."""


class Shortfall(NamedTuple):
    """Of the worst tier. kept: share of its demand that was served as promised."""

    tier: str
    reason: Reason
    kept: float

    def times(self, ready: int) -> float:
        """How many times the replicas that were ready would have kept it all, as far as is believed."""
        most = max(MOST_TIMES, 1 + MOST_MORE / ready)
        return 1 / max(self.kept, 1 / most)


def shortfall(scaling: Scaling, periods: Sequence[Period]) -> Shortfall | None:
    """What these periods, all with as many replicas, fell short of; None where they did not."""
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
    reason = Reason.REFUSED if taken <= in_time else Reason.MISSED
    return Shortfall(tier, reason, taken * max(in_time, LEAST_KEPT))
