"""The model that a replica serves, and whether it takes requests now."""

from dataclasses import dataclass
from typing import Any

from penstock_core.domain.policy import Policy
from penstock_core.domain.replica_admission import MOST_SEQUENCES
from penstock_core.domain.slo import Tier


@dataclass(frozen=True, slots=True)
class Serving:
    """What a replica serves, and how.

    reads_fields: whether its engine reads SLO fields from a request's `vllm_xargs`.
    max_model_len: as the pool says; the engine corrects it.
    max_sequences: answers that one request may ask for.
    delivery_s: kept back from first-token and end-to-end targets for the way to the engine and back.
    """

    policy: Policy[Any]
    tiers: dict[str, Tier]
    reads_fields: bool
    max_model_len: int
    delivery_s: float = 0.0
    max_sequences: int = MOST_SEQUENCES


@dataclass(slots=True)
class ServiceState:
    """Whether a replica takes new requests.

    max_model_len: tokens of the model's context; 0 if unknown.
    stopping: the process ends, so a drain cannot be taken back.
    """

    max_model_len: int
    engine_ready: bool = False
    draining: bool = False
    stopping: bool = False

    @property
    def serves(self) -> bool:
        """Whether new requests are admitted at all."""
        return self.engine_ready and not self.draining
