"""How many requests may be sent a second time after a loss.

A lost replica costs each of its waiting requests one replay, which is what replays are for. When replicas are
lost again and again, replays are load that nobody asked for, and if the requests are the cause, they carry it
on. So replays are a bounded share of all requests, as in Envoy's and Finagle's retry budgets: every request
puts `SHARE` in, a replay takes 1 out. Of n requests at most `RESERVE + SHARE · n` are ever replayed.
"""

from dataclasses import dataclass

SHARE = 0.2
"""Replays per request in the long run: Envoy's and Finagle's default."""

RESERVE = 1024.0
"""Most that is saved up: one replica's loss with all that it carries stays far below it."""


@dataclass(frozen=True, slots=True)
class RetryBudget:
    """left: replays that could be made now."""

    left: float = RESERVE

    def arrived(self) -> "RetryBudget":
        """Return the budget after a new request."""
        return self if self.left >= RESERVE else RetryBudget(min(self.left + SHARE, RESERVE))

    def replayed(self) -> "RetryBudget | None":
        """Return the budget after a replay; None where there is none left for it."""
        return RetryBudget(self.left - 1) if self.left >= 1 else None
