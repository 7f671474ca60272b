"""Speculative decoding, as planning sees it: a drafter that is right with some chance [SLOs-Serve, §3.2.3].

A decode that drafts d tokens has d + 1 verified in one iteration. Each draft is accepted with the same
chance, the first that is not ends it, and one token of the model's own always comes out, so an iteration
brings out (1 - chance^(d + 1)) / (1 - chance) tokens on average.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from penstock_core.timing.time_model import BatchWork, TimeModel


@dataclass(frozen=True, slots=True)
class Speculation:
    """What an engine can draft, and how often it is right.

    max_tokens: most drafts for one decode in one iteration. A policy that does not choose drafts as many.
    acceptance: chance that a draft is accepted. by_tier: the same where it was measured for a tier alone.
    """

    max_tokens: int
    acceptance: float
    by_tier: Mapping[str, float] = field(default_factory=dict)

    def acceptance_of(self, tier: str) -> float:
        """The chance for requests of this tier."""
        return self.by_tier.get(tier, self.acceptance)


def tokens_expected(acceptance: float, drafts: int) -> float:
    """Tokens that a decode brings out on average with so many drafts: `Acc(sl)` for sl = drafts + 1."""
    if acceptance >= 1.0:
        return drafts + 1.0
    return (1.0 - acceptance ** (drafts + 1)) / (1.0 - acceptance)


def fastest_length(
    model: TimeModel, decodes: BatchWork, most: int, tokens: Callable[[int], float]
) -> tuple[int, float]:
    """Return the speculation length with the highest rate of generated tokens, and that rate.

    decodes: a batch of them without drafts. tokens: how many they generate on average with so many drafts.
    Those grow ever more slowly with the length and a batch's duration never does, so once the rate falls it
    falls for good.
    """
    best, best_rate = 0, 0.0
    for drafts in range(most + 1):
        work = BatchWork(decodes.tokens * (1 + drafts), decodes.context_tokens, 0.0, drafts)
        rate = tokens(drafts) / model.seconds(work)
        if rate <= best_rate:
            break
        best, best_rate = drafts, rate
    return best, best_rate
