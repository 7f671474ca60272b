"""Best effort: surplus only, oldest first, and nobody starves."""

from math import inf

from penstock_core.batch.best_effort import fill_surplus, newest_first, oldest_waiting_too_long
from penstock_core.batch.open_batch import OpenBatch
from penstock_core.domain.replica_view import KvCache, Limits, ReplicaView
from penstock_core.domain.request import Job, Request, advance, new_job
from penstock_core.domain.slo import Targets
from penstock_core.timing.builtin_models import time_model

MODEL = time_model("llama-3-8b-a100")
NOW_S = 100.0


def offline(
    name: str, prompt: int = 500, *, age_s: float = 1.0, done: int = 0, generated: bool = False
) -> Job:
    request = Request(name, "batch", NOW_S - age_s, prompt, 4096, Targets(1.0, 0.1))
    job = new_job(request, 100, best_effort=True)
    return advance(job, prompt if generated else done, int(generated), NOW_S) if generated or done else job


def opened(
    running: list[Job], waiting: list[Job], *, free_blocks: int = 1000, limits: Limits | None = None
) -> OpenBatch:
    held = sum(-(-job.computed_tokens // 16) for job in running)
    kv = KvCache(held + free_blocks, free_blocks, 16)
    return OpenBatch(ReplicaView(NOW_S, NOW_S, tuple(running), tuple(waiting), kv, limits or Limits(), MODEL))


def filled(running: list[Job], waiting: list[Job], limit_s: float = 0.06, **bounds: object) -> OpenBatch:
    batch = opened(running, waiting, **bounds)  # type: ignore[arg-type]
    fill_surplus(batch, [*running, *waiting], limit_s)
    return batch


def test_decodes_come_before_prefills_and_old_before_young() -> None:
    young, old = offline("young", age_s=1), offline("old", age_s=9)
    talking = offline("talking", age_s=0.5, generated=True)
    batch = filled([talking], [young, old])
    assert list(batch.tokens) == ["talking", "old", "young"]


def test_the_length_of_the_batch_is_kept() -> None:
    batch = filled([offline("d", generated=True)], [offline("p", 5000)], limit_s=0.03)
    assert batch.tokens["p"] > 0
    assert batch.seconds() <= 0.03
    assert list(filled([offline("d", generated=True), offline("e", generated=True)], [], 0.0).tokens) == ["d"]


def test_a_job_starts_only_where_all_of_it_has_blocks_beside_everyones_growth() -> None:
    running = [offline("d", generated=True)]
    assert list(filled(running, [offline("p", 500)], free_blocks=32).tokens) == ["d"]
    assert list(filled(running, [offline("p", 500)], free_blocks=33).tokens) == ["d", "p"]


def test_nobody_overtakes_a_job_that_waits_for_blocks() -> None:
    waiting = [offline("large", 1200, age_s=9), offline("small", 50, age_s=1)]
    running = [offline("d", generated=True)]
    assert list(filled(running, waiting, free_blocks=60).tokens) == ["d"]


def test_a_job_that_can_never_fit_holds_nobody_up() -> None:
    waiting = [offline("impossible", 99_000, age_s=9), offline("small", 50, age_s=1)]
    assert list(filled([], waiting, free_blocks=60).tokens) == ["small"]


def test_seats_are_kept() -> None:
    running = [offline("d", generated=True)]
    assert list(filled(running, [offline("p")], limits=Limits(running=1)).tokens) == ["d"]


def test_where_blocks_run_out_the_young_give_way_to_the_old() -> None:
    old = offline("old", 512, age_s=9, generated=True)
    young = offline("young", 512, age_s=1, generated=True)
    batch = filled([young, old], [], free_blocks=0)
    assert (batch.tokens, list(batch.preempted)) == ({"old": 1}, ["young"])


def test_a_prefill_under_way_takes_what_blocks_there_are() -> None:
    assert filled([offline("p", 2000, done=160)], [], free_blocks=2).tokens == {"p": 32}
    assert filled([offline("p", 2000, done=160)], [], free_blocks=0).tokens == {}


def test_a_chunk_that_no_longer_fits_ends_the_filling() -> None:
    batch = filled([offline("d", generated=True)], [offline("p", 500)], limit_s=0.0)
    assert batch.tokens == {"d": 1}


def test_long_contexts_are_worked_off_alone() -> None:
    book = offline("book", 400_000, done=200_000)
    assert filled([book], [], free_blocks=20_000).tokens["book"] > 0


def test_started_last_gives_way_first_and_waiting_ones_hold_nothing() -> None:
    first, second = offline("first", done=10), offline("second", done=10)
    assert [job.request.id for job in newest_first([first, second, offline("waiting")])] == [
        "second",
        "first",
    ]


def view_of(running: list[Job], waiting: list[Job]) -> ReplicaView:
    return opened(running, waiting).view


def test_the_oldest_is_protected_once_it_has_waited_too_long() -> None:
    jobs = [offline("old", age_s=31), offline("older", age_s=40), offline("young", age_s=5)]
    protected = oldest_waiting_too_long(view_of([], jobs), 30.0)
    assert protected is not None
    assert (protected.request.id, protected.due_s, protected.pace_s) == ("older", -inf, None)


def test_a_protected_job_that_decodes_has_no_deadline() -> None:
    protected = oldest_waiting_too_long(view_of([offline("old", age_s=31, generated=True)], []), 30.0)
    assert protected is not None
    assert (protected.due_s, protected.pace_s) == (inf, None)


def test_nobody_is_protected_before_that_nor_what_can_never_fit() -> None:
    assert oldest_waiting_too_long(view_of([], []), 30.0) is None
    assert oldest_waiting_too_long(view_of([], [offline("young", age_s=29)]), 30.0) is None
    assert oldest_waiting_too_long(view_of([], [offline("impossible", 99_000, age_s=99)]), 30.0) is None
