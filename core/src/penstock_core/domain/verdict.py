"""Verdicts of admission. The same words are in the gRPC enum, the metrics, the logs and the docs."""

from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """Why a replica rejects a request."""

    PREFILL_BUDGET = "prefill_budget"  # the first token would be late
    DECODE_BUDGET = "decode_budget"  # tokens would miss the TPOT target
    KV_MEMORY = "kv_memory"  # blocks at the predicted peak do not fit
    NEVER = "never"  # not even an idle replica could meet the SLO: do not retry
    QUEUE_FULL = "queue_full"  # a bounded queue of the replica is full
    DRAINING = "draining"  # the replica takes no new requests
    ENGINE_DOWN = "engine_down"  # the engine does not answer


@dataclass(frozen=True, slots=True)
class Admitted:
    """The replica expects to meet the request's SLO.

    ttft_predicted_s: from now to its first token, an upper bound under the time model.
    tpot_predicted_s: seconds per token after it, likewise.
    counts_on_cache: whether this assumes that its cached prefix is still there when its prefill begins, so
        that the engine has to keep it.
    """

    ttft_predicted_s: float
    tpot_predicted_s: float
    counts_on_cache: bool = False


@dataclass(frozen=True, slots=True)
class BestEffort:
    """Accepted without an SLO: served in the remaining capacity."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """Not accepted by this replica now.

    earliest_s: the planner's estimate of the seconds until it could be admitted; becomes Retry-After.
    """

    reason: Reason
    earliest_s: float | None = None


Verdict = Admitted | BestEffort | Rejected
