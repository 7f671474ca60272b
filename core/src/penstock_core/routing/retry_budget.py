"""Bounds how many requests are sent a second time after a replica was lost.

After the loss of a replica each of its waiting requests is replayed once. If replicas are lost repeatedly,
replays are additional load, and if requests cause the losses, replays crash further replicas. So replays are
a bounded share of all requests, like the retry budgets of Envoy and Finagle: every request adds `SHARE` to
the budget, and a replay takes 1. Of n requests at most `LARGEST_BUDGET + SHARE · n` are replayed.
"""

from dataclasses import dataclass

SHARE = 0.2
"""Replays per request in the long run; the default of Envoy and Finagle."""

LARGEST_BUDGET = 1024.0
"""Largest budget, far above the requests of one lost replica."""


@dataclass(frozen=True, slots=True)
class RetryBudget:
    """A budget of replays. left: replays that are allowed now."""

    left: float = LARGEST_BUDGET

    def arrived(self) -> "RetryBudget":
        """Return the budget after a new request."""
        return self if self.left >= LARGEST_BUDGET else RetryBudget(min(self.left + SHARE, LARGEST_BUDGET))

    def replayed(self) -> "RetryBudget | None":
        """Return the budget after a replay; None if no replay is left."""
        return RetryBudget(self.left - 1) if self.left >= 1 else None
