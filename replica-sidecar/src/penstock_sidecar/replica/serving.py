"""The model that a replica serves, and whether it takes requests now."""

from dataclasses import dataclass
from typing import Any

from penstock_core.domain.policy import Policy
from penstock_core.domain.replica_admission import MOST_SEQUENCES
from penstock_core.domain.slo import Tier


@dataclass(frozen=True, slots=True)
class Serving:
    """The model that a replica serves, and its settings.

    reads_fields: whether its engine reads SLO fields from a request's `vllm_xargs`.
    max_model_len: the pool's value, until the engine reports its own.
    max_sequences: most answers of one request.
    """

    policy: Policy[Any]
    tiers: dict[str, Tier]
    reads_fields: bool
    max_model_len: int
    max_sequences: int = MOST_SEQUENCES


@dataclass(slots=True)
class ServiceState:
    """Whether a replica takes new requests.

    max_model_len: tokens of the model's context; 0 if unknown.
    stopping: whether the process is ending, so that a drain cannot be resumed.
    """

    max_model_len: int
    engine_ready: bool = False
    draining: bool = False
    stopping: bool = False

    @property
    def serves(self) -> bool:
        """Whether new requests are accepted for admission."""
        return self.engine_ready and not self.draining
