"""The SLO of each tier.

Requests are judged as in the pool: a TTFT slowdown is a multiple of the prompt's prefill time on an idle
replica, which the pool's time model predicts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock_core.domain.slo import Slo, Targets
from penstock_core.timing.time_model import TimeModel


@dataclass(frozen=True, slots=True)
class TierSlos:
    """SLOs by tier.

    default_tier: tier of requests that have none.
    time_model: needed by tiers with a slowdown.
    """

    slos: Mapping[str, Slo] = field(default_factory=dict)
    default_tier: str = ""
    time_model: TimeModel | None = None

    @property
    def tiers_without_targets(self) -> frozenset[str]:
        """Tiers that are known to have no target. Their requests cannot attain anything."""
        return tiers_without_targets(self.slos)

    def targets(self, tier: str, prompt_tokens: int) -> Targets:
        """Return the targets of a request; none if its tier has none or is unknown."""
        slo = self.slos.get(tier, Slo())
        if slo.ttft_slowdown is None:
            return slo.targets(0.0)
        if self.time_model is None:
            raise ValueError(f"tier {tier} has a slowdown, which needs a time model")
        return slo.targets(self.time_model.prefill_seconds(prompt_tokens))


def tiers_without_targets(slos: Mapping[str, Slo]) -> frozenset[str]:
    """Return the names of the tiers without targets."""
    return frozenset(name for name, slo in slos.items() if slo == Slo(judge=slo.judge))
