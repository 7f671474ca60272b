"""Acceptance rate of draft tokens, measured while the engine runs [SLOs-Serve, §3.2.3].

A decode with d verified draft tokens, a of them accepted, is a + 1 Bernoulli trials, or a if all were
accepted: each accepted one is a success, the first rejected one ends the trials, and later ones are not
evaluated. The acceptance rate is successes over trials.

Texts differ by application, so trials are counted per tier. Each level has the level above it as prior, with
the weight of some trials: a tier all tiers, all tiers the rate that the pool configures. Old trials decay
with every new one. The number of tiers is bounded (`learned_tiers`); other tiers have the rate of all. The
estimate is a value: `observe` returns the next one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from penstock_core.timing.learned_tiers import with_latest
from penstock_core.timing.speculation import Speculation

PRIOR_TRIALS = 100.0
"""Number of trials from which a level has the same weight as its prior, the level above it."""

MEMORY_TRIALS = 5000.0
"""Trials after which one has decayed to a third: some minutes of one tier's decodes."""


class Drafted(NamedTuple):
    """Draft tokens of one decode in one iteration: how many were verified, and how many accepted."""

    tier: str
    drafts: int
    accepted: int


class Trials(NamedTuple):
    """Decayed counts."""

    trials: float = 0.0
    successes: float = 0.0

    def after(self, trials: int, successes: int) -> "Trials":
        """Return the counts after more trials, by which the old ones decay."""
        kept = max(1.0 - trials / MEMORY_TRIALS, 0.0)
        return Trials(self.trials * kept + trials, self.successes * kept + successes)

    def chance(self, prior: float) -> float:
        """Return successes over trials, with the level above as prior."""
        return (self.successes + PRIOR_TRIALS * prior) / (self.trials + PRIOR_TRIALS)


NONE_YET = Trials()


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The measured acceptance rates of a drafter.

    prior: the initial rate.
    """

    prior: float
    all: Trials = NONE_YET
    tiers: Mapping[str, Trials] = field(default_factory=dict)

    def measured(self, configured: Speculation) -> Speculation:
        """Return the engine's speculation with the measured rates."""
        chance = self.all.chance(self.prior)
        by_tier = {tier: trials.chance(chance) for tier, trials in self.tiers.items()}
        return replace(configured, acceptance=chance, by_tier=by_tier)


def observe(acceptance: Acceptance, drafted: Iterable[Drafted]) -> Acceptance:
    """Return the estimate after an iteration's draft tokens."""
    counted: dict[str, tuple[int, int]] = {}
    for tier, drafts, accepted in drafted:
        trials, successes = counted.get(tier, (0, 0))
        counted[tier] = trials + accepted + (accepted < drafts), successes + accepted
    if not counted:
        return acceptance
    total_trials, total_successes = map(sum, zip(*counted.values(), strict=True))
    tiers = {tier: acceptance.tiers.get(tier, NONE_YET).after(*counts) for tier, counts in counted.items()}
    return Acceptance(
        acceptance.prior,
        acceptance.all.after(total_trials, total_successes),
        with_latest(acceptance.tiers, tiers),
    )
