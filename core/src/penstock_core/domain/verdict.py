"""What admission answers. The same words stand in the gRPC enum, the metrics, the logs and the docs."""

from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """Why a replica said no."""

    PREFILL_BUDGET = "prefill_budget"  # the first token could not be in time
    DECODE_BUDGET = "decode_budget"  # tokens could not keep their pace
    KV_MEMORY = "kv_memory"  # blocks at the predicted peak do not fit
    NEVER = "never"  # not even on an idle replica: do not retry
    QUEUE_FULL = "queue_full"  # a bounded queue of the replica is full
    DRAINING = "draining"  # the replica takes no new work
    ENGINE_DOWN = "engine_down"  # the engine does not answer


@dataclass(frozen=True, slots=True)
class Admitted:
    """Every SLO of the request will be kept.

    ttft_predicted_s: from now to its first token, an upper bound under the time model.
    tpot_predicted_s: seconds per token after it, likewise.
    """

    ttft_predicted_s: float
    tpot_predicted_s: float


@dataclass(frozen=True, slots=True)
class BestEffort:
    """Accepted without a promise: surplus capacity only."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """Not here, not now.

    earliest_s: from now until it could be admitted, as far as the planner can tell; becomes Retry-After.
    """

    reason: Reason
    earliest_s: float | None = None


Verdict = Admitted | BestEffort | Rejected
