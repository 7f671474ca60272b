"""Best effort: surplus only, shortest prompts first, and every request progresses."""

from dataclasses import replace
from math import inf, nextafter

import pytest
from penstock_core.batch.best_effort import STRETCH, fill_surplus, newest_first, oldest_waiting_too_long
from penstock_core.batch.open_batch import OpenBatch
from penstock_core.domain.replica_view import Limits, ReplicaView
from penstock_core.domain.request import Job, Request, advance, new_job
from penstock_core.domain.slo import Targets
from penstock_core.timing.builtin_models import time_model
from penstock_core.timing.time_model import BatchWork, Term, TimeModel, chunk_work
from replica_views import kv_cache

MODEL = time_model("llama-3-8b-a100")
EXACT = TimeModel("attending", (Term(2**-10, 2**-6),), 2**-12, 2**-20)
"""A millisecond a token, 16 a batch, a quarter for each token of context; sums of such are exact."""

NOW_S = 100.0


def offline(
    name: str, prompt: int = 500, *, age_s: float = 1.0, done: int = 0, generated: bool = False
) -> Job:
    request = Request(name, "batch", NOW_S - age_s, prompt, 4096, Targets(1.0, 0.1))
    job = new_job(request, 100, best_effort=True)
    return advance(job, prompt if generated else done, int(generated), NOW_S) if generated or done else job


def opened(
    running: list[Job],
    waiting: list[Job],
    *,
    free_blocks: int = 1000,
    limits: Limits | None = None,
    model: TimeModel = MODEL,
) -> OpenBatch:
    kv = kv_cache(running, free_blocks)
    return OpenBatch(ReplicaView(NOW_S, NOW_S, tuple(running), tuple(waiting), kv, limits or Limits(), model))


def filled(running: list[Job], waiting: list[Job], limit_s: float = 0.06, **bounds: object) -> OpenBatch:
    batch = opened(running, waiting, **bounds)  # type: ignore[arg-type]
    fill_surplus(batch, [*running, *waiting], limit_s)
    return batch


def test_decodes_precede_prefills_and_those_with_the_fewest_tokens_left_are_first() -> None:
    young, old = offline("young", age_s=1), offline("old", age_s=9)
    talking = offline("talking", age_s=0.5, generated=True)
    running = [talking, offline("almost", 2000, done=1600), offline("long", 2000, done=1400)]
    batch = filled(running, [young, old], 1.0)
    assert list(batch.tokens) == ["talking", "almost", "old", "young", "long"]


def test_a_batch_stays_within_its_longest_duration() -> None:
    batch = filled([offline("d", generated=True)], [offline("p", 5000)], limit_s=0.03)
    assert batch.tokens["p"] > 0
    assert batch.seconds() <= 0.03
    assert list(filled([offline("d", generated=True), offline("e", generated=True)], [], 0.0).tokens) == ["d"]


def test_a_job_starts_only_if_all_of_it_fits_beside_the_growth_of_all_others() -> None:
    running = [offline("d", generated=True)]
    assert list(filled(running, [offline("p", 500)], free_blocks=32).tokens) == ["d"]
    assert list(filled(running, [offline("p", 500)], free_blocks=33).tokens) == ["d", "p"]


def test_only_jobs_that_hold_blocks_overtake_one_that_waits_for_blocks() -> None:
    turn = offline("turn", 1000)._replace(computed_tokens=970, unheld_blocks=61)
    waiting = [turn, offline("small", 50, age_s=9)]
    running = [offline("d", generated=True), offline("half", 2000, done=1000)]
    assert list(filled(running, waiting, 1.0, free_blocks=60).tokens) == ["d", "half"]
    assert list(filled(running, waiting, 1.0, free_blocks=64).tokens) == ["d", "turn", "half"]
    assert list(filled(running, waiting, 1.0, free_blocks=200).tokens) == ["d", "turn", "small", "half"]


def test_a_job_that_can_never_fit_delays_no_other() -> None:
    waiting = [offline("impossible", 99_000, age_s=9), offline("small", 50, age_s=1)]
    assert list(filled([], waiting, free_blocks=60).tokens) == ["small"]


def test_slots_are_kept() -> None:
    running = [offline("d", generated=True)]
    assert list(filled(running, [offline("p")], limits=Limits(running=1)).tokens) == ["d"]


def test_if_blocks_run_out_younger_jobs_are_preempted_for_older_ones() -> None:
    old = offline("old", 512, age_s=9, generated=True)
    young = offline("young", 512, age_s=1, generated=True)
    batch = filled([young, old], [], free_blocks=0)
    assert (batch.tokens, list(batch.preempted)) == ({"old": 1}, ["young"])


def test_a_prefill_in_progress_takes_the_free_blocks() -> None:
    assert filled([offline("p", 2000, done=160)], [], free_blocks=2).tokens == {"p": 32}
    assert filled([offline("p", 2000, done=160)], [], free_blocks=0).tokens == {}


def test_a_chunk_that_does_not_fit_completes_the_batch() -> None:
    batch = filled([offline("d", generated=True)], [offline("p", 500)], limit_s=0.0)
    assert batch.tokens == {"d": 1}


def test_long_contexts_are_computed_alone() -> None:
    book = offline("book", 400_000, done=200_000)
    assert filled([book], [], free_blocks=20_000).tokens["book"] > 0


def test_the_job_started_last_is_preempted_first_and_waiting_ones_hold_no_blocks() -> None:
    first, second = offline("first", done=10), offline("second", done=1)
    assert [job.request.id for job in newest_first([first, second, offline("waiting")])] == [
        "second",
        "first",
    ]


def talking(name: str, context: int, age_s: float = 1.0) -> Job:
    return offline(name, context, age_s=age_s, generated=True)


def test_decodes_are_added_while_the_batch_ends_in_time_the_oldest_first() -> None:
    running = [talking("young", 40, 1), talking("old", 30, 3), talking("middle", 20, 2)]
    all_s = EXACT.seconds(BatchWork(3, 93))
    two_s = EXACT.seconds(BatchWork(2, 52))
    assert list(filled(running, [], all_s, model=EXACT).tokens) == ["young", "old", "middle"]
    assert list(filled(running, [], nextafter(all_s, 0), model=EXACT).tokens) == ["old", "middle"]
    assert list(filled(running, [], two_s, model=EXACT).tokens) == ["old", "middle"]
    assert list(filled(running, [], nextafter(two_s, 0), model=EXACT).tokens) == ["old"]


def test_decodes_take_all_available_tokens_and_blocks() -> None:
    running = [talking("young", 16, 1), talking("old", 16, 3)]
    assert list(filled(running, [], free_blocks=2).tokens) == ["young", "old"]
    assert list(filled(running, [], limits=Limits(batch_tokens=1)).tokens) == ["old"]
    within = [talking("young", 15, 1), talking("old", 15, 3)]
    assert filled(within, [], free_blocks=0).tokens == {"old": 1, "young": 1}


def test_a_prompt_in_progress_continues_before_an_older_one_starts() -> None:
    under_way = offline("under way", 200, age_s=1, done=1)
    assert list(filled([under_way], [offline("old", age_s=9)]).tokens) == ["under way", "old"]


@pytest.mark.parametrize("attention_s", [2**-20, 2**-12])
@pytest.mark.parametrize("done", [0, 64, 3000])
def test_a_single_chunk_may_take_twice_as_long_as_its_first_token(done: int, attention_s: float) -> None:
    model = replace(EXACT, prefill_work_s=attention_s)
    most_s = 2 * model.seconds(BatchWork(1, 0, chunk_work(1, done)))
    tokens = filled(
        [offline("p", 9000, done=done)] if done else [], [offline("q", 9000)], 0.0, model=model
    ).tokens
    (count,) = tokens.values()
    assert model.seconds(BatchWork(count, 0, chunk_work(count, done))) <= most_s
    assert model.seconds(BatchWork(count + 1, 0, chunk_work(count + 1, done))) > most_s


def test_no_job_overtakes_a_prompt_whose_next_token_would_be_late() -> None:
    book = offline("book", 9000, done=8000)
    beside = BatchWork(1, 41)
    one_s = EXACT.seconds(BatchWork(2, 41, chunk_work(1, 8000)))
    assert one_s > EXACT.seconds(BatchWork(2, 41, chunk_work(1, 0)))

    def added(limit_s: float) -> dict[str, int]:
        return filled([talking("d", 40), book], [offline("longer", 1001)], limit_s, model=EXACT).tokens

    assert EXACT.seconds(beside) < one_s
    assert added(one_s) == {"d": 1, "book": 1}
    assert added(nextafter(one_s, 0)) == {"d": 1}


def test_the_last_slot_is_taken_and_a_running_request_needs_none() -> None:
    running = [offline("d", generated=True)]
    assert list(filled(running, [offline("p")], limits=Limits(running=2)).tokens) == ["d", "p"]
    both = [talking("young", 15, 1), offline("old", 100, age_s=9, done=16)]
    assert list(filled(both, [], limits=Limits(running=2)).preempted) == []
    prompts = [offline("young", 100, age_s=1, done=16), offline("old", 100, age_s=9, done=16)]
    assert list(filled(prompts, [], limits=Limits(running=2)).preempted) == []


@pytest.mark.parametrize(("blocks", "served"), [(60, ["d"]), (61, ["d", "small"])])
def test_a_job_as_large_as_the_cache_waits_and_a_larger_one_delays_no_other(
    blocks: int, served: list[str]
) -> None:
    resumed = offline("large", 16 * blocks - 40)._replace(generated_tokens=40, unheld_blocks=blocks)
    resumed = resumed._replace(computed_tokens=16 * blocks - 9)
    running, waiting = [talking("d", 160)], [resumed, offline("small", 16)]
    assert list(filled(running, waiting, free_blocks=50).tokens) == served


def view_of(running: list[Job], waiting: list[Job]) -> ReplicaView:
    return opened(running, waiting).view


def test_the_oldest_is_protected_once_it_has_waited_too_long() -> None:
    jobs = [offline("old", age_s=31), offline("older", age_s=40), offline("young", age_s=5)]
    protected = oldest_waiting_too_long(view_of([], jobs), 30.0)
    assert protected is not None
    assert (protected.request.id, protected.due_s, protected.tpot_s) == ("older", NOW_S - 40, None)


@pytest.mark.parametrize("busy_s", [0.0, 0.5])
def test_a_protected_prompt_claims_a_twentieth_of_the_time_until_it_is_late(busy_s: float) -> None:
    """It is due 20 times its prefill after it was protected; of that prefill a quarter is left."""
    prompt = offline("prompt", 4000, age_s=0, done=3000)
    allowed_s, left_s = STRETCH * MODEL.prefill_seconds(4000), MODEL.prefill_seconds(1000, 3000)

    def due_s(age_s: float) -> float:
        job = prompt._replace(request=replace(prompt.request, arrival_s=NOW_S - age_s))
        view = replace(view_of([job], []), busy_until_s=NOW_S + busy_s)
        protected = oldest_waiting_too_long(view, 30.0)
        assert protected is not None
        return protected.due_s

    last_s = 30.0 + allowed_s - left_s - busy_s
    assert due_s(30.0) == pytest.approx(NOW_S + allowed_s)
    assert due_s(last_s - 1e-6) == pytest.approx(NOW_S + left_s + busy_s)
    assert due_s(last_s + 1e-6) == NOW_S - last_s - 1e-6


def test_protection_starts_exactly_when_the_wait_is_reached() -> None:
    assert oldest_waiting_too_long(view_of([], [offline("old", age_s=30)]), 30.0) is not None


def test_a_protected_job_that_decodes_has_no_deadline() -> None:
    protected = oldest_waiting_too_long(view_of([offline("old", age_s=31, generated=True)], []), 30.0)
    assert protected is not None
    assert (protected.due_s, protected.tpot_s) == (inf, None)


def test_a_job_is_not_protected_earlier_or_if_it_can_never_fit() -> None:
    assert oldest_waiting_too_long(view_of([], []), 30.0) is None
    assert oldest_waiting_too_long(view_of([], [offline("young", age_s=29)]), 30.0) is None
    assert oldest_waiting_too_long(view_of([], [offline("impossible", 99_000, age_s=99)]), 30.0) is None
