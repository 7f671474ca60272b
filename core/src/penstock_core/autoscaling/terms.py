"""Configuration and result of autoscaling.

`Scaling` has the pool owner's settings: bounds, target attainment, windows. `Decision` is the result: the
number of replicas, the reason as a type, and a sentence for people. The pool's status, its Events and the
docs use the same words.
"""

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Scaling:
    """A pool's autoscaling settings.

    min_replicas, max_replicas: bounds of every decision. A minimum of 0 allows scale to zero.
    target_attainment: share of a tier's requests that should meet their SLO. The rest may be rejected or late
        without causing a scale-up.
    fill: planned utilization of replicas, as a share of the load at which they begin to reject, of their
        memory, and of their time for prefills. The rest absorbs bursts while new replicas start.
    tolerance: replicas are removed only if a demand larger by this share would still be served.
    observed_s: time over which demand is averaged.
    scale_up_window_s: scale up only if all decisions within this time agree.
    scale_down_window_s: scale down only if all decisions within this time agree.
    idle_timeout_s: time without requests after which a pool may scale to zero.
    forget_s: time in which the learned capacity grows by half while replicas are less than half full.
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


class ScalingReason(StrEnum):
    """Reason of a decision."""

    WAKE = "wake"  # requests are held, and there is no replica
    REFUSED = "refused"  # more requests were rejected than the target allows
    MISSED = "missed"  # more requests were late than the target allows, and replicas are loaded
    OFFERED = "offered"  # the offered load exceeds the learned capacity of fewer replicas
    FILLED = "filled"  # admitted requests fill this many replicas
    HOPPED = "hopped"  # too many requests hopped to remove a replica
    STABILISING = "stabilising"  # the demand needs another number, but not yet for the whole window
    STEADY = "steady"  # the number is right
    SURPLUS = "surplus"  # fewer replicas have sufficed for the whole window
    IDLE = "idle"  # no request has come for the idle timeout
    BOUND = "bound"  # the bounds do not allow the number that the demand needs


@dataclass(frozen=True, slots=True)
class Decision:
    """A number of replicas.

    message: one sentence for people, with the figures behind it.
    """

    replicas: int
    reason: ScalingReason
    message: str
