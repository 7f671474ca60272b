"""How often drafts are accepted, measured while the engine drafts [SLOs-Serve, §3.2.3].

A decode that had d drafts verified and a of them accepted has answered a + 1 questions, or a where all were
right: each accepted draft is a success, the first that is not ends it, and those behind it say nothing. The
chance is successes over trials.

Texts differ by application, so trials are counted by tier. Each level leans on the one above it with the
weight of some trials: a tier on all tiers, all tiers on the figure that the pool names. Old trials fade, a
little with every new one. So many tiers are told apart (`learned_tiers`); any other has the chance of all.
The estimate is a value: `observe` returns the next one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from penstock_core.timing.learned_tiers import with_latest
from penstock_core.timing.speculation import Speculation

LEAN_TRIALS = 100.0
"""Trials of its own that a level needs to outweigh the one above it."""

MEMORY_TRIALS = 5000.0
"""Trials after which one has faded to a third: some minutes of one tier's decodes."""


class Drafted(NamedTuple):
    """One decode's drafts of one iteration: how many were verified, and how many of them accepted."""

    tier: str
    drafts: int
    accepted: int


class Trials(NamedTuple):
    """Faded counts."""

    trials: float = 0.0
    successes: float = 0.0

    def after(self, trials: int, successes: int) -> "Trials":
        """With so many more, the old ones faded by as many."""
        kept = max(1.0 - trials / MEMORY_TRIALS, 0.0)
        return Trials(self.trials * kept + trials, self.successes * kept + successes)

    def chance(self, lean: float) -> float:
        """Successes over trials, leaning on what the level above believes."""
        return (self.successes + LEAN_TRIALS * lean) / (self.trials + LEAN_TRIALS)


NONE_YET = Trials()


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What has been measured of a drafter.

    prior: the chance to start from.
    """

    prior: float
    all: Trials = NONE_YET
    tiers: Mapping[str, Trials] = field(default_factory=dict)

    def measured(self, told: Speculation) -> Speculation:
        """The engine's speculation with the chances as measured."""
        chance = self.all.chance(self.prior)
        by_tier = {tier: trials.chance(chance) for tier, trials in self.tiers.items()}
        return replace(told, acceptance=chance, by_tier=by_tier)


def observe(acceptance: Acceptance, drafted: Iterable[Drafted]) -> Acceptance:
    """The estimate after an iteration's drafts."""
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
