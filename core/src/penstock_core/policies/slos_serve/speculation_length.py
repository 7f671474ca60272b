"""How many tokens each tier's decodes draft [SLO-adaptive speculation, SLOs-Serve, §3.2.3, App. D].

An iteration costs a fixed time however little is in it, so a decode that brings out several tokens in one
saves iterations. Each draft costs a token's computation, and the longest draft of the batch a drafter step
each; the acceptance of a tier says what it brings. The best lengths are those with which decodes bring out
most tokens a second. Where memory is what limits a replica, that is also what frees it soonest.

The search takes one cap for all tiers, the one with the highest rate, and then trims each tier to the drafts
that still raise that rate: a tier whose drafts are seldom accepted drafts less. Tokens grow ever more slowly
with the cap and an iteration's time never does, so once their ratio falls it falls for good.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from penstock_core.domain.request import Job
from penstock_core.timing.speculation import Speculation, fastest_length, tokens_expected
from penstock_core.timing.time_model import BatchWork, TimeModel

Drafting = Mapping[str, int]
"""Drafts of each decode, by tier."""

NO_DRAFTS: Drafting = {}


def fastest(speculation: Speculation | None, model: TimeModel, decodes: Sequence[Job]) -> Drafting:
    """The drafting with which these decodes bring out most tokens a second; none without a drafter."""
    if speculation is None or not decodes:
        return NO_DRAFTS
    tiers = Counter([job.request.tier for job in decodes])
    context = sum([job.computed_tokens for job in decodes]) + len(decodes)
    together = BatchWork(len(decodes), context)
    best, best_rate = fastest_length(
        model, together, speculation.max_tokens, lambda drafts: _tokens(speculation, tiers, drafts)
    )
    token_s = model.seconds(BatchWork(2, context)) - model.seconds(BatchWork(1, context))
    return {
        tier: drafts
        for tier in tiers
        if (drafts := _worth(speculation.acceptance_of(tier), best, best_rate * token_s))
    }


def _tokens(speculation: Speculation, tiers: Mapping[str, int], drafts: int) -> float:
    return sum(
        count * tokens_expected(speculation.acceptance_of(tier), drafts) for tier, count in tiers.items()
    )


def _worth(acceptance: float, most: int, least_tokens: float) -> int:
    """Drafts of which even the last brings as many tokens as its time is worth."""
    drafts = most
    while drafts and acceptance**drafts < least_tokens:
        drafts -= 1
    return drafts
