"""Speculation length of each tier [SLO-adaptive speculation, SLOs-Serve, §3.2.3, App. D].

An iteration has a fixed cost however small it is, so a decode that generates several tokens in one saves
iterations. Each draft token costs a token's computation, and the longest speculation length of the batch one
drafter step per token; the acceptance rate of a tier determines the gain. The best lengths are those with
which decodes generate most tokens per second. If memory limits a replica, these also free it soonest.

The search takes one length for all tiers, the one with the highest rate, and then reduces each tier to the
draft tokens that still raise that rate: a tier with a low acceptance rate gets fewer.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from penstock_core.domain.request import Job
from penstock_core.timing.speculation import Speculation, fastest_length, tokens_expected
from penstock_core.timing.time_model import BatchWork, TimeModel

SpeculationLengths = Mapping[str, int]
"""Draft tokens of each decode, by tier."""

NO_SPECULATION: SpeculationLengths = {}


def speculation_lengths(
    speculation: Speculation | None, model: TimeModel, decodes: Sequence[Job]
) -> SpeculationLengths:
    """Return the lengths with which these decodes generate most tokens a second; none without a drafter."""
    if speculation is None or not decodes:
        return NO_SPECULATION
    tiers = Counter([job.request.tier for job in decodes])
    acceptance = {tier: speculation.acceptance_of(tier) for tier in tiers}
    tokens = [
        sum([n * tokens_expected(acceptance[tier], drafts) for tier, n in tiers.items()])
        for drafts in range(speculation.max_tokens + 1)
    ]
    context = sum([job.computed_tokens for job in decodes]) + len(decodes)
    longest, rate = fastest_length(model, BatchWork(len(decodes), context), tokens)
    token_s = model.seconds(BatchWork(2, context)) - model.seconds(BatchWork(1, context))
    lengths = {tier: _worthwhile(accepted, longest, rate * token_s) for tier, accepted in acceptance.items()}
    return {tier: drafts for tier, drafts in lengths.items() if drafts}


def _worthwhile(acceptance: float, most: int, least_tokens: float) -> int:
    """Return the largest speculation length whose last draft token is worth its time."""
    drafts = most
    while drafts and acceptance**drafts < least_tokens:
        drafts -= 1
    return drafts
