"""Held requests start where they and all running requests can be served to the end."""

from math import nextafter

import pytest
from penstock_core.domain.replica_view import KvCache, Limits, ReplicaView
from penstock_core.domain.request import Job, Request, advance, new_job
from penstock_core.domain.slo import Targets
from penstock_core.policies.fluidserve import FluidServe
from penstock_core.timing.speculation import Speculation, tokens_expected
from penstock_core.timing.time_model import BatchWork, Term, TimeModel

MODEL = TimeModel("reading", (Term(2**-10, 2**-6),), 2**-16, 2**-30)
"""A millisecond a token, 16 a batch, 15 us for each token of context, 1 ns a pair; sums of such are exact."""


def job(name: str, tokens: int, tpot_s: float | None = 0.5, left: int = 20) -> Job:
    return new_job(Request(name, "tier", 0.0, tokens, 500, Targets(60.0, tpot_s)), left, best_effort=False)


def started(tpot_s: float | None, candidates: list[Job], *, drafts: int = 0, generated: int = 1) -> set[str]:
    """The held requests that start beside a decode of 17 tokens with this pace."""
    running = advance(job("d", 18 - generated, tpot_s), 17, generated, 0.0)._replace(due_s=5.0)
    reported = Speculation(drafts, 0.5) if drafts else None
    view = ReplicaView(
        0.0, 0.0, (running,), tuple(candidates), KvCache(500, 490, 16), Limits(), MODEL, reported
    )
    return set(FluidServe().step(view, frozenset())[0].tokens) - {"d"}


@pytest.mark.parametrize("generated", [1, 7])
def test_a_new_request_starts_if_both_can_just_meet_the_tighter_tpot(generated: int) -> None:
    tpot_s = MODEL.seconds(BatchWork(2, 18 + 100))
    assert started(tpot_s, [job("p", 100)], generated=generated) == {"p"}
    assert started(nextafter(tpot_s, 0), [job("p", 100)], generated=generated) == set()
    assert started(0.5, [job("p", 100, tpot_s)], generated=generated) == {"p"}
    assert started(None, [job("p", 100, nextafter(tpot_s, 0))], generated=generated) == set()
    assert started(None, [job("p", 100, None)], generated=generated) == {"p"}


def test_a_started_request_counts_for_the_next() -> None:
    tpot_s = MODEL.seconds(BatchWork(3, 18 + 100 + 50))
    assert started(tpot_s, [job("p", 100), job("q", 50)]) == {"p", "q"}
    assert started(nextafter(tpot_s, 0), [job("p", 100), job("q", 50)]) == {"p"}


def test_with_drafts_a_batch_returns_and_verifies_more_tokens() -> None:
    tpot_s = MODEL.seconds(BatchWork(2 * 4, 18 + 100, 0.0, 3)) / tokens_expected(0.5, 3)
    assert started(tpot_s * 1.0001, [job("p", 100)], drafts=3) == {"p"}
    assert started(tpot_s * 0.9999, [job("p", 100)], drafts=3) == set()
