"""Counts and measures of a replay, by tier, in the memory of a few bytes a request."""

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil

from penstock_cli.replay.outcome import Ending, Outcome


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """The smallest value that `share` of all are not above; None of nothing."""
    return ordered[max(ceil(share * len(ordered)) - 1, 0)] if ordered else None


def _doubles() -> "array[float]":
    return array("d")


@dataclass(slots=True)
class TierTally:
    """One tier, or all of them."""

    requests: int = 0
    met: int = 0
    admitted: int = 0
    admitted_met: int = 0
    hops: int = 0
    endings: Counter[Ending] = field(default_factory=Counter)
    ttft_s: "array[float]" = field(default_factory=_doubles)
    tpot_s: "array[float]" = field(default_factory=_doubles)

    def add(self, outcome: Outcome) -> None:
        """Count one request that has ended, however it did."""
        self.requests += 1
        self.met += outcome.met
        self.hops += outcome.hops
        self.endings[outcome.ending] += 1
        if outcome.ending is Ending.ADMITTED:
            self.admitted += 1
            self.admitted_met += outcome.met
        if outcome.ttft_s is not None:
            self.ttft_s.append(outcome.ttft_s)
        if outcome.tpot_s is not None:
            self.tpot_s.append(outcome.tpot_s)

    @property
    def attainment(self) -> float | None:
        """Share of all that arrived whose promise was kept."""
        return self.met / self.requests if self.requests else None

    @property
    def admitted_attainment(self) -> float | None:
        """The same among those that were admitted."""
        return self.admitted_met / self.admitted if self.admitted else None

    @property
    def mean_hops(self) -> float | None:
        """Replicas tried, a request."""
        return self.hops / self.requests if self.requests else None


@dataclass(slots=True)
class Tally:
    """A replay's tiers, its failures by reason, and how late the client itself was."""

    all: TierTally = field(default_factory=TierTally)
    tiers: dict[str, TierTally] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)
    late_s: "array[float]" = field(default_factory=_doubles)

    def add(self, outcome: Outcome, late_s: float) -> None:
        """Count one request. late_s: from its planned arrival until it was sent."""
        self.all.add(outcome)
        self.tiers.setdefault(outcome.tier, TierTally()).add(outcome)
        self.late_s.append(late_s)
        if outcome.ending is Ending.FAILED:
            self.reasons[outcome.reason] += 1
