"""The tokens that speculation returns, and its cost in a batch."""

import pytest
from penstock_core.batch.open_batch import OpenBatch
from penstock_core.domain.replica_view import KvCache, Limits, ReplicaView
from penstock_core.domain.request import Job, Request, advance, new_job
from penstock_core.domain.slo import Targets
from penstock_core.timing.speculation import Speculation, tokens_expected
from penstock_core.timing.time_model import Term, TimeModel

MODEL = TimeModel("drafting", (Term(1e-4, 0.01, spec_step_s=1e-3),))


def decode(tokens: int = 32) -> Job:
    job = new_job(Request("a", "chat", 0.0, tokens, 100, Targets()), 50, best_effort=False)
    return advance(job, tokens, 1, 0.1)


@pytest.mark.parametrize(("drafts", "tokens"), [(0, 1.0), (1, 1.7), (2, 2.19)])
def test_expected_tokens_follow_from_the_acceptance_rate(drafts: int, tokens: float) -> None:
    assert tokens_expected(0.7, drafts) == pytest.approx(tokens)


def test_a_drafter_that_is_always_right_returns_all_drafts() -> None:
    assert tokens_expected(1.0, 4) == 5.0


def test_a_tier_that_was_measured_has_its_own_acceptance() -> None:
    speculation = Speculation(4, 0.7, {"code": 0.9})
    assert speculation.acceptance_of("code") == 0.9
    assert speculation.acceptance_of("chat") == 0.7


def test_drafts_cost_tokens_blocks_and_the_longest_sequence_of_drafter_steps() -> None:
    job = decode(32)
    kv = KvCache(10, 7, 16)
    batch = OpenBatch(ReplicaView(0.2, 0.2, (job,), (), kv, Limits(), MODEL, Speculation(4, 0.7)))
    batch.add(job, 1)
    batch.draft(job, 0)
    assert batch.step().drafts == {}
    batch.draft(job, 3)
    assert batch.step().drafts == {"a": 3}
    assert (batch.work.tokens, batch.work.spec_steps) == (4, 3)
    assert batch.seconds() == pytest.approx(4e-4 + 0.01 + 3e-3)
    assert batch.free_blocks == 6
