"""What autoscaling remembers from one observation to the next: small, and as JSON, so that it survives.

Whoever keeps it (a pool's status, a simulation) gives it back with the next observation. Times are of one
clock that goes on over restarts. A memory that is lost costs nothing but time: windows begin anew.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


class Share(NamedTuple):
    """One tier's requests in one period: as in `TierDemand`, refused being all that got no promise."""

    arrived: int
    refused: int
    judged: int
    met: int


class Period(NamedTuple):
    """Between two observations.

    ready: replicas that took work throughout. filled: how many full ones all would make, at its end.
    tries, tries_refused: replicas asked for a promise, and those that gave none.
    """

    ended_s: float
    seconds: float
    ready: int
    filled: float
    tries: int
    tries_refused: int
    shares: Mapping[str, Share]


class Asked(NamedTuple):
    """What one decision would have done, had there been no windows."""

    at_s: float
    replicas: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Everything that is remembered. The default is that of a pool that has just begun.

    periods: the last ones, as far as demand is averaged. asked: within the longer of both windows.
    capacity_rps: requests with a promise, a second, at which one replica began to refuse; None: never seen.
    ready: replicas that took work at the last observation.
    busy_s: when there was last anything to do; None before the first observation.
    """

    periods: tuple[Period, ...] = ()
    asked: tuple[Asked, ...] = ()
    capacity_rps: float | None = None
    ready: int = 0
    busy_s: float | None = None

    def as_json(self) -> dict[str, Any]:
        """For a file, or wherever a pool's status is kept."""
        return {
            "periods": [
                {**period._asdict(), "shares": {tier: list(share) for tier, share in period.shares.items()}}
                for period in self.periods
            ],
            "asked": [list(asked) for asked in self.asked],
            "capacity_rps": self.capacity_rps,
            "ready": self.ready,
            "busy_s": self.busy_s,
        }


def memory_from_json(told: Mapping[str, Any]) -> Memory:
    """What `as_json` gave. Raises KeyError, TypeError or ValueError for anything else."""
    return Memory(
        periods=tuple(_period(period) for period in told["periods"]),
        asked=tuple(Asked(*asked) for asked in told["asked"]),
        capacity_rps=told["capacity_rps"],
        ready=told["ready"],
        busy_s=told["busy_s"],
    )


def _period(told: Mapping[str, Any]) -> Period:
    shares = {tier: Share(*share) for tier, share in dict(told["shares"]).items()}
    return Period(**{**told, "shares": shares})
