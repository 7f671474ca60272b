"""What autoscaling may do, in a pool's terms, and what it says that it does.

`Scaling` is what a pool's owner allows: between how many replicas, for which attainment, how hastily.
`Decision` is what comes out: how many replicas there should be, the reason as a type, and a sentence for
people. The same words stand in the pool's status, its Events and the docs.
"""

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Scaling:
    """What a pool allows.

    min_replicas, max_replicas: bounds that every decision keeps. A minimum of 0 allows scale to zero.
    target_attainment: share of a tier's requests that are to be kept. The rest may be refused or late
        without any replica being added.
    fill: how full replicas are planned to be: of the load at which they begin to refuse, and of their memory
        and their time for prefills. What is left over takes a surge while new replicas start.
    tolerance: replicas are given away only where a demand that much larger would still be met.
    observed_s: demand is averaged over so long.
    scale_up_window_s: more replicas only where all decisions within this time asked for more.
    scale_down_window_s: fewer replicas only where all decisions within this time asked for fewer.
    idle_timeout_s: without any request for so long, a pool that may goes to zero.
    forget_s: while replicas say that they are not half full, a capacity that was learned is believed less and
        less: half as much again is tried after this time.
    """

    min_replicas: int
    max_replicas: int
    target_attainment: float = 0.95
    fill: float = 0.9
    tolerance: float = 0.1
    observed_s: float = 60.0
    scale_up_window_s: float = 0.0
    scale_down_window_s: float = 300.0
    idle_timeout_s: float = 600.0
    forget_s: float = 7200.0


class Reason(StrEnum):
    """Why there are to be so many replicas."""

    WAKE = "wake"  # requests are held, and there is no replica
    REFUSED = "refused"  # more was refused than the target allows
    MISSED = "missed"  # more was late than the target allows, and replicas are loaded
    OFFERED = "offered"  # what is offered is more than fewer were seen to take
    FILLED = "filled"  # what replicas have accepted fills so many
    HOPPED = "hopped"  # too many had to ask on for any replica to be given away
    STABILISING = "stabilising"  # the demand asks for another number, but not yet for the whole window
    STEADY = "steady"  # there are as many as are needed
    SURPLUS = "surplus"  # the demand has been met by fewer for the whole window
    IDLE = "idle"  # nothing has come for the idle timeout
    BOUND = "bound"  # the bounds do not allow what the demand asks for


@dataclass(frozen=True, slots=True)
class Decision:
    """How many replicas there are to be.

    message: one sentence for people, with the figures that it rests on.
    """

    replicas: int
    reason: Reason
    message: str
