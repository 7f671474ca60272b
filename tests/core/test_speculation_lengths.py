"""Speculation lengths: those that return the most tokens per second."""

from random import Random

import pytest
from penstock_core.domain.request import Job, Request, advance, new_job
from penstock_core.policies.slos_serve.speculation import NO_SPECULATION, speculation_lengths
from penstock_core.timing.builtin_models import time_model
from penstock_core.timing.speculation import Speculation, tokens_expected
from penstock_core.timing.time_model import BatchWork, Term, TimeModel

OPT = time_model("slos-serve-opt-6.7b-a100")
MOST = 8


def decodes(tier: str, count: int, context: int = 300) -> list[Job]:
    requests = [Request(f"{tier}{i}", tier, 0.0, context, 4096) for i in range(count)]
    return [advance(new_job(request, 100, False), context, 1, 0.0) for request in requests]


def rate(speculation: Speculation, model: TimeModel, jobs: list[Job], drafts: int) -> float:
    """Return the tokens per second if all decodes draft this many tokens."""
    tokens = sum(tokens_expected(speculation.acceptance_of(job.request.tier), drafts) for job in jobs)
    context = sum(job.computed_tokens + 1 for job in jobs)
    return tokens / model.seconds(BatchWork(len(jobs) * (1 + drafts), context, 0.0, drafts))


def test_without_a_drafter_or_decodes_no_token_is_drafted() -> None:
    assert speculation_lengths(None, OPT, decodes("a", 3)) == NO_SPECULATION
    assert speculation_lengths(Speculation(MOST, 0.7), OPT, []) == NO_SPECULATION


def test_a_drafter_that_is_never_right_is_not_used() -> None:
    assert speculation_lengths(Speculation(MOST, 0.0), OPT, decodes("a", 3)) == NO_SPECULATION


def test_the_length_for_one_tier_is_the_optimum() -> None:
    for seed in range(300):
        random = Random(seed)
        terms = (
            Term(random.uniform(1e-5, 1e-4), 0.0, random.uniform(0, 4e-3)),
            Term(random.uniform(0, 2e-5), random.uniform(0.005, 0.03), random.uniform(0, 4e-3)),
        )
        model = TimeModel("drawn", terms, 1e-8)
        speculation = Speculation(MOST, random.uniform(0.05, 0.95))
        jobs = decodes("a", random.choice((1, 4, 40, 200)))
        rates = [rate(speculation, model, jobs, drafts) for drafts in range(MOST + 1)]
        chosen = speculation_lengths(speculation, model, jobs).get("a", 0)
        assert rates[chosen] == pytest.approx(max(rates), rel=1e-9), seed


def test_tiers_share_the_longest_and_trim_it_by_their_own_acceptance() -> None:
    speculation = Speculation(MOST, 0.5, {"code": 0.9, "poem": 0.15})
    chosen = speculation_lengths(speculation, OPT, decodes("code", 20) + decodes("poem", 20))
    assert chosen["code"] > chosen.get("poem", 0)
    assert max(chosen.values()) <= MOST


def test_more_decodes_have_fewer_drafts() -> None:
    speculation = Speculation(MOST, 0.7)
    drafts = [
        speculation_lengths(speculation, OPT, decodes("a", count)).get("a", 0) for count in (1, 30, 200, 2000)
    ]
    assert drafts == sorted(drafts, reverse=True)
    assert drafts[0] > drafts[-1] == 0
