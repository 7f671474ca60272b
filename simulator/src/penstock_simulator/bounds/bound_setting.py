"""The replicas and SLOs that a bound is computed for."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock_core.domain.replica_view import Limits
from penstock_core.domain.slo import Tier
from penstock_core.timing.builtin_models import time_model
from penstock_core.timing.speculation import Speculation
from penstock_core.timing.time_model import TimeModel

from penstock_simulator.scenarios import Scenario


@dataclass(frozen=True, slots=True)
class BoundSetting:
    """Identical replicas whose iterations take exactly as long as `model` says.

    tiers: tiers by name.
    kv_tokens: KV cache tokens of one replica, in blocks of `block_tokens`.
    speculation: draft tokens of engines with their true acceptance rate; None without a drafter.
    """

    model: TimeModel
    tiers: Mapping[str, Tier]
    kv_tokens: int
    block_tokens: int = 16
    limits: Limits = field(default_factory=Limits)
    speculation: Speculation | None = None
    replicas: int = 1

    @property
    def memory_tokens(self) -> int:
        """KV cache tokens of one replica, in whole blocks."""
        return self.kv_tokens // self.block_tokens * self.block_tokens

    @property
    def most_drafts(self) -> int:
        """Most draft tokens of one decode in one iteration."""
        return self.speculation.max_tokens if self.speculation else 0

    @property
    def acceptance(self) -> float:
        """The highest acceptance rate of any tier."""
        if self.speculation is None:
            return 0.0
        return max(self.speculation.acceptance, *self.speculation.by_tier.values(), 0.0)


def bound_setting(scenario: Scenario, replicas: int = 1) -> BoundSetting:
    """Return the setting of a scenario."""
    return BoundSetting(
        model=time_model(scenario.time_model),
        tiers=scenario.tiers,
        kv_tokens=scenario.kv_tokens,
        limits=scenario.limits,
        speculation=scenario.speculation,
        replicas=replicas,
    )
