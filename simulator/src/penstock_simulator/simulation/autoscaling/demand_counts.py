"""The demand that routers count for autoscaling, by tier, since it was last read.

Two kinds of requests do not count, because more replicas would not help them: those whose targets an idle
replica cannot meet, and those that a session sends as best effort although their tier has an SLO.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping

from penstock_core.autoscaling.demand import TierDemand
from penstock_core.domain.slo import Tier
from penstock_core.domain.verdict import Admitted, BestEffort, Reason, Rejected, Verdict
from penstock_core.routing.attempts import OUT_OF_SERVICE

from penstock_simulator.simulation.outcome import FirstVerdict, SimulatedOutcome
from penstock_simulator.simulation.simulated_request import SimulatedRequest


class DemandCounts:
    """The counts of all routers together."""

    def __init__(self, tiers: Mapping[str, Tier]) -> None:
        self._tiers = tiers
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def arrived(self, simulated: SimulatedRequest) -> None:
        """Count a request that has arrived."""
        self._count(simulated, "arrived")

    def answered(self, simulated: SimulatedRequest, verdict: Verdict) -> None:
        """Count a replica's verdict."""
        out_of_service = isinstance(verdict, Rejected) and verdict.reason in OUT_OF_SERVICE
        if not out_of_service and not simulated.sent_as_best_effort:
            self._count(simulated, "hops")
        if isinstance(verdict, Admitted):
            self._count(simulated, "admitted")
        elif isinstance(verdict, BestEffort):
            self._not_admitted(simulated, "best_effort")

    def rejected(self, simulated: SimulatedRequest) -> None:
        """Count a request that no replica serves."""
        self._not_admitted(simulated, "rejected")

    def ended(self, outcome: SimulatedOutcome) -> None:
        """Count a request that has ended."""
        if outcome.verdict is FirstVerdict.ADMITTED:
            counts = self._counts[outcome.tier]
            counts["judged"] += 1
            counts["met"] += outcome.met

    def read(self) -> dict[str, TierDemand]:
        """Return the counts and reset them."""
        counts, self._counts = self._counts, defaultdict(Counter)
        return {
            name: TierDemand(has_slo=not self._tiers[name].best_effort, **of) for name, of in counts.items()
        }

    def _not_admitted(self, simulated: SimulatedRequest, how: str) -> None:
        rejections = simulated.attempts.rejections
        if rejections and all(rejection.reason is Reason.NEVER for rejection in rejections):
            self._count(simulated, "arrived", -1)
        else:
            self._count(simulated, how)

    def _count(self, simulated: SimulatedRequest, what: str, times: int = 1) -> None:
        tier = simulated.request.tier
        if not simulated.best_effort or self._tiers[tier].best_effort:
            self._counts[tier][what] += times
