"""Counts and measures of a replay, by tier, in the memory of a few bytes a request."""

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil

from penstock_cli.replay.outcome import RequestEnding, RequestOutcome


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """Return the percentile at `share` of sorted values; None if there are none."""
    return ordered[max(ceil(share * len(ordered)) - 1, 0)] if ordered else None


def _doubles() -> "array[float]":
    return array("d")


@dataclass(slots=True)
class TierTally:
    """One tier, or all of them."""

    requests: int = 0
    met: int = 0
    promoted: int = 0
    admitted: int = 0
    admitted_met: int = 0
    hops: int = 0
    endings: Counter[RequestEnding] = field(default_factory=Counter)
    ttft_s: "array[float]" = field(default_factory=_doubles)
    tpot_s: "array[float]" = field(default_factory=_doubles)

    def add(self, outcome: RequestOutcome) -> None:
        """Count one request that has ended, however it did."""
        self.requests += 1
        self.met += outcome.met
        self.hops += outcome.hops
        self.endings[outcome.ending] += 1
        self.promoted += outcome.met and outcome.ending is RequestEnding.BEST_EFFORT
        if outcome.ending is RequestEnding.ADMITTED:
            self.admitted += 1
            self.admitted_met += outcome.met
        if outcome.ttft_s is not None:
            self.ttft_s.append(outcome.ttft_s)
        if outcome.tpot_s is not None:
            self.tpot_s.append(outcome.tpot_s)

    @property
    def attainment(self) -> float | None:
        """Share of all requests that met every target: the admitted ones and the promoted ones."""
        return self.met / self.requests if self.requests else None

    @property
    def attained_admitted(self) -> float | None:
        """Share of all requests that were admitted at once and met every target."""
        return self.admitted_met / self.requests if self.requests else None

    @property
    def attained_promoted(self) -> float | None:
        """Share of all requests that were answered "best effort" and met every target all the same."""
        return self.promoted / self.requests if self.requests else None

    @property
    def admitted_attainment(self) -> float | None:
        """Share of admitted requests that met every target."""
        return self.admitted_met / self.admitted if self.admitted else None

    @property
    def mean_hops(self) -> float | None:
        """Replicas tried, a request."""
        return self.hops / self.requests if self.requests else None


@dataclass(slots=True)
class ReplayTally:
    """A replay's tiers, its failures by reason, and how late the client itself was.

    without_targets: tiers that set no target. Their requests are counted by tier and not in `all`.
    requests: of all tiers.
    """

    without_targets: frozenset[str] = frozenset()
    requests: int = 0
    all: TierTally = field(default_factory=TierTally)
    tiers: dict[str, TierTally] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)
    late_s: "array[float]" = field(default_factory=_doubles)

    def add(self, outcome: RequestOutcome, late_s: float) -> None:
        """Count one request. late_s: from its planned arrival until it was sent."""
        self.requests += 1
        if outcome.tier not in self.without_targets:
            self.all.add(outcome)
        self.tiers.setdefault(outcome.tier, TierTally()).add(outcome)
        self.late_s.append(late_s)
        if outcome.ending is RequestEnding.FAILED:
            self.reasons[outcome.reason] += 1
