"""A view in the middle of an iteration, as it will be at its end; a view with best-effort jobs admitted."""

from dataclasses import replace

from penstock_core.domain.replica_view import KvCache, Limits, ReplicaView, at_iteration_end, with_promoted
from penstock_core.domain.request import Job, Request, advance, new_job, promoted
from penstock_core.domain.slo import Targets
from penstock_core.timing.time_model import Term, TimeModel


def job(name: str, computed_tokens: int = 0) -> Job:
    fresh = new_job(Request(name, "chat", 0.0, 100, 50, Targets(1.0, 0.1)), 50, best_effort=False)
    return advance(fresh, computed_tokens, 0, 0.0)


def view(*running: Job) -> ReplicaView:
    return ReplicaView(
        1.0, 1.5, running, (), KvCache(100, 50, 16), Limits(), TimeModel("m", (Term(1e-4, 0.01),))
    )


def test_blocks_are_rounded_up() -> None:
    assert [KvCache(9, 9, 16).blocks_for(tokens) for tokens in (0, 1, 16, 17)] == [0, 1, 1, 2]


def test_a_view_without_prefills_stays_as_it_is() -> None:
    before = view(job("a", 40))
    assert at_iteration_end(before, {}) is before


def test_a_chunk_is_done_at_the_end() -> None:
    (a, b) = at_iteration_end(view(job("a", 40), job("b", 40)), {"a": 10}).running
    assert (a.pending_tokens, a.generated_tokens, b.pending_tokens) == (50, 0, 60)


def test_a_last_chunk_returns_the_first_token_at_the_end() -> None:
    (a,) = at_iteration_end(view(job("a", 40)), {"a": 60}).running
    assert a.decoding
    assert (a.anchor, a.due_s) == ((1.5, 1), 1.6)


def test_a_chunk_past_an_estimated_prompt_ends_with_it() -> None:
    (a,) = at_iteration_end(view(job("a", 40)), {"a": 90}).running
    assert (a.pending_tokens, a.generated_tokens) == (1, 1)


def test_decodes_outside_the_iteration_are_listed_by_name() -> None:
    before = view(job("a", 40))
    assert at_iteration_end(before, {}).resting == frozenset()
    assert at_iteration_end(before, {}, frozenset({"a"})).resting == {"a"}


def test_promoted_jobs_are_admitted_and_others_unchanged() -> None:
    runs, stays, waits = (job(name, 10)._replace(best_effort=True) for name in ("runs", "stays", "waits"))
    before = replace(view(runs, stays), waiting=(waits,))
    after = replace(before, running=(promoted(runs), stays), waiting=(promoted(waits),))
    assert with_promoted(before, ["runs", "waits"]) == after
    assert not after.running[0].best_effort
    assert with_promoted(before, []) is before
