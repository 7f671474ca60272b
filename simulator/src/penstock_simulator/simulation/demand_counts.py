"""What routers count for autoscaling, by tier, since it was last read.

Two kinds of request are no demand that more replicas could meet: one that no replica could ever keep the
targets of, and one that its session sends without a promise, though its tier has one.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping

from penstock_core.autoscaling.demand import TierDemand
from penstock_core.domain.slo import Tier
from penstock_core.domain.verdict import Admitted, BestEffort, Reason, Rejected
from penstock_core.domain.verdict import Verdict as Answer
from penstock_core.routing.walk import OUT_OF_SERVICE

from penstock_simulator.simulation.journey import Journey
from penstock_simulator.simulation.outcome import Outcome, Verdict


class DemandCounts:
    """All routers' together."""

    def __init__(self, tiers: Mapping[str, Tier]) -> None:
        self._tiers = tiers
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def arrived(self, journey: Journey) -> None:
        """A request was read."""
        self._count(journey, "arrived")

    def answered(self, journey: Journey, answer: Answer) -> None:
        """A replica has answered it."""
        out_of_service = isinstance(answer, Rejected) and answer.reason in OUT_OF_SERVICE
        if not out_of_service and not journey.sent_as_best_effort:
            self._count(journey, "hops")
        if isinstance(answer, Admitted):
            self._count(journey, "admitted")
        elif isinstance(answer, BestEffort):
            self._refused(journey, "best_effort")

    def rejected(self, journey: Journey) -> None:
        """Nobody took it."""
        self._refused(journey, "rejected")

    def ended(self, outcome: Outcome) -> None:
        """A request has ended."""
        if outcome.verdict is Verdict.ADMITTED:
            counts = self._counts[outcome.tier]
            counts["judged"] += 1
            counts["met"] += outcome.met

    def read(self) -> dict[str, TierDemand]:
        """What has been counted, and begin anew."""
        counts, self._counts = self._counts, defaultdict(Counter)
        return {
            name: TierDemand(promises=not self._tiers[name].best_effort, **of) for name, of in counts.items()
        }

    def _refused(self, journey: Journey, how: str) -> None:
        refusals = journey.walk.refusals
        if refusals and all(refusal.reason is Reason.NEVER for refusal in refusals):
            self._count(journey, "arrived", -1)
        else:
            self._count(journey, how)

    def _count(self, journey: Journey, what: str, times: int = 1) -> None:
        tier = journey.request.tier
        if not journey.best_effort or self._tiers[tier].best_effort:
            self._counts[tier][what] += times
