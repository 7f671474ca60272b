"""The machine and the promises that a bound is about."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock_core.domain.replica_view import Limits
from penstock_core.domain.slo import Tier
from penstock_core.timing.builtin_models import time_model
from penstock_core.timing.speculation import Speculation
from penstock_core.timing.time_model import TimeModel

from penstock_simulator.scenarios import Scenario


@dataclass(frozen=True, slots=True)
class Setting:
    """Replicas that are all alike, whose iterations take exactly what `model` says.

    tiers: by name, with their targets.
    kv_tokens: of one replica's cache, in blocks of `block_tokens`.
    speculation: what engines can draft, with the true acceptance; None without a drafter.
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
        """Tokens of one replica's cache, whole blocks only."""
        return self.kv_tokens // self.block_tokens * self.block_tokens

    @property
    def most_drafts(self) -> int:
        """Longest draft of one decode in one iteration."""
        return self.speculation.max_tokens if self.speculation else 0

    @property
    def acceptance(self) -> float:
        """The best chance that any tier's drafts have."""
        if self.speculation is None:
            return 0.0
        return max(self.speculation.acceptance, *self.speculation.by_tier.values(), 0.0)


def setting_of(scenario: Scenario, replicas: int = 1) -> Setting:
    """The machine that a scenario runs on."""
    return Setting(
        model=time_model(scenario.time_model),
        tiers=scenario.tiers,
        kv_tokens=scenario.kv_tokens,
        limits=scenario.limits,
        speculation=scenario.speculation,
        replicas=replicas,
    )
