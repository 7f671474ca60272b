"""Model of speculative decoding: a drafter with a constant acceptance rate [SLOs-Serve, §3.2.3].

A decode with d draft tokens has d + 1 tokens verified in one iteration. Each draft token is accepted with the
same probability, the first rejected one ends the sequence, and the model always generates one token of its
own, so an iteration generates (1 - rate^(d + 1)) / (1 - rate) tokens on average.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock_core.timing.time_model import BatchWork, TimeModel


@dataclass(frozen=True, slots=True)
class Speculation:
    """An engine's speculation.

    max_tokens: most draft tokens of one decode in one iteration. A policy that does not choose uses this
        number.
    acceptance: acceptance rate. by_tier: the measured rates of single tiers.
    """

    max_tokens: int
    acceptance: float
    by_tier: Mapping[str, float] = field(default_factory=dict)

    def acceptance_of(self, tier: str) -> float:
        """Return the acceptance rate for requests of this tier."""
        return self.by_tier.get(tier, self.acceptance)


def tokens_expected(acceptance: float, drafts: int) -> float:
    """Return the mean tokens of a decode with this many draft tokens: `Acc(sl)` for sl = drafts + 1."""
    if acceptance >= 1.0:
        return drafts + 1.0
    return (1.0 - acceptance ** (drafts + 1)) / (1.0 - acceptance)


def fastest_length(model: TimeModel, decodes: BatchWork, tokens: Sequence[float]) -> tuple[int, float]:
    """Return the speculation length with the highest rate of generated tokens, and that rate.

    decodes: a batch of decodes without draft tokens.
    tokens: mean number of tokens that they generate, for 0, 1, 2, … draft tokens. Each further draft token
        adds fewer tokens at the same cost, so once the rate falls it falls for all greater lengths.
    """
    best, best_rate = 0, 0.0
    for drafts, generated in enumerate(tokens):
        work = BatchWork(decodes.tokens * (1 + drafts), decodes.context_tokens, 0.0, drafts)
        rate = generated / model.seconds(work)
        if rate <= best_rate:
            break
        best, best_rate = drafts, rate
    return best, best_rate
