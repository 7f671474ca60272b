"""Capacity of an engine that schedules by itself, and its state once its prompts are computed."""

from dataclasses import replace
from math import inf

import pytest
from penstock_core.domain.replica_view import KvCache, Limits, ReplicaView
from penstock_core.domain.request import Job, Request, advance, new_job
from penstock_core.domain.slo import Targets
from penstock_core.external_engine.capacity import Refusal, ReleaseWindow, refusal
from penstock_core.external_engine.planning_view import (
    EngineJobs,
    PrefillForecast,
    planning_view,
    prefill_forecast,
)
from penstock_core.timing.time_model import BatchWork, Term, TimeModel

MODEL = TimeModel("exact", (Term(2**-10, 2**-6),), 2**-12)
"""A millisecond a token, 16 a batch, a quarter for each token of context; sums of such are exact."""

LESS_S = 2**-40
WINDOW = ReleaseWindow(lead_s=2**-7)
PASSED_OVER, WAITED_FOR = Refusal(passed_over=True), Refusal(passed_over=False)


def prompt(
    name: str = "p",
    tokens: int = 100,
    *,
    due_s: float = 99.0,
    out: int = 20,
    offline: bool = False,
    arrived_s: float = 0.0,
) -> Job:
    job = new_job(Request(name, "tier", arrived_s, tokens, 500, Targets(99.0, 0.5)), out, offline)
    return job._replace(due_s=due_s)


def decode(name: str = "d", *, due_s: float = 9.0, tpot_s: float | None = 0.5, left: int = 20) -> Job:
    """It holds 40 tokens, and reads 41 with its next."""
    job = advance(prompt(name, 40, out=left + 1), 40, 1, 0.0)
    return job._replace(due_s=due_s, tpot_s=tpot_s)


def view(*, now_s: float = 0.0, blocks: int = 1000, tokens: int = 200, slots: int = 8) -> ReplicaView:
    return ReplicaView(now_s, now_s, (), (), KvCache(blocks, blocks, 16), Limits(tokens, slots), MODEL)


def batch_s(tokens: int, decodes: int = 1) -> float:
    return MODEL.seconds(BatchWork(decodes + tokens, 41 * decodes))


def test_a_request_that_just_fits_gets_a_slot_and_memory_at_the_peak() -> None:
    inside = EngineJobs((decode(),))
    assert refusal(view(slots=2), inside, prompt(), WINDOW) is None
    assert refusal(view(slots=1), inside, prompt(), WINDOW) == WAITED_FOR
    blocks = 4 + 8  # 60 and 119 tokens with the last that comes
    assert refusal(view(blocks=blocks), inside, prompt(), WINDOW) is None
    assert refusal(view(blocks=blocks - 1), inside, prompt(), WINDOW) == WAITED_FOR


def test_best_effort_has_its_share_of_slots_and_memory_and_at_least_one_request() -> None:
    def offline(name: str) -> Job:
        return prompt(name, 16, out=1, offline=True)

    inside = EngineJobs((), (offline("a"), offline("b"), prompt("c")))
    assert refusal(view(slots=6), inside, offline("d"), WINDOW) is None
    assert refusal(view(slots=5), inside, offline("d"), WINDOW) == PASSED_OVER
    assert refusal(view(slots=5), inside, prompt("d"), WINDOW) is None
    few = EngineJobs((), (offline("a"), offline("b")))
    assert refusal(view(blocks=6), few, offline("d"), WINDOW) is None
    assert refusal(view(blocks=5), few, offline("d"), WINDOW) == PASSED_OVER
    assert refusal(view(slots=1, blocks=1), EngineJobs(), offline("d"), WINDOW) is None


@pytest.mark.parametrize("offline", [False, True])
def test_a_prompt_of_one_iteration_waits_until_it_ends_before_a_token_is_due(offline: bool) -> None:
    candidate, done_s = prompt(offline=offline), batch_s(100)
    assert refusal(view(), EngineJobs((decode(due_s=done_s),)), candidate, WINDOW) is None
    late = EngineJobs((decode(due_s=done_s - LESS_S),))
    assert refusal(view(), late, candidate, WINDOW) == (PASSED_OVER if offline else WAITED_FOR)


def test_the_first_and_last_of_several_iterations_return_their_token_in_time() -> None:
    once_s = batch_s(50)
    short = view(now_s=4.0, tokens=51)

    def refused(due_s: float, tpot_s: float) -> bool:
        there = EngineJobs((decode(due_s=4.0 + due_s, tpot_s=tpot_s),))
        return refusal(short, there, prompt(), WINDOW) is not None

    assert not refused(once_s, once_s)
    assert refused(once_s - LESS_S, 9.0)
    assert refused(once_s, once_s - LESS_S)


def test_a_decode_that_can_just_meet_its_tpot_delays_a_prompt() -> None:
    """Five tokens left, each of which takes an iteration alone, at half of that speed."""
    alone_s = batch_s(0)
    tpot_s = alone_s / 2
    due_s = 5 * alone_s - 4 * tpot_s
    assert due_s < batch_s(100)
    assert (
        refusal(view(), EngineJobs((decode(due_s=due_s, tpot_s=tpot_s, left=5),)), prompt(), WINDOW)
        == WAITED_FOR
    )
    lost = decode(due_s=due_s - LESS_S, tpot_s=tpot_s, left=5)
    assert refusal(view(), EngineJobs((lost,)), prompt(), WINDOW) is None
    pressed = EngineJobs((decode(due_s=0.01, tpot_s=None),))
    assert refusal(view(), pressed, prompt(), WINDOW) is None
    given = decode(due_s=0.01)._replace(best_effort=True)
    assert refusal(view(), EngineJobs((given,)), prompt(), WINDOW) is None


def test_a_request_that_must_start_now_is_released_even_if_others_are_late() -> None:
    pressed = EngineJobs((decode(due_s=0.05),))
    done_s = batch_s(100)
    last_call_s = done_s + batch_s(0) + WINDOW.lead_s

    def refused(due_s: float) -> bool:
        return refusal(view(), pressed, prompt(due_s=due_s), WINDOW) is not None

    assert not refused(done_s) and not refused(last_call_s - LESS_S)
    assert refused(done_s - LESS_S) and refused(last_call_s)


@pytest.mark.parametrize(("waited_s", "refused"), [(9.999, True), (10.0, False)])
def test_a_request_that_has_waited_its_longest_wait_is_released(waited_s: float, refused: bool) -> None:
    pressed = EngineJobs((decode(due_s=5.0 + waited_s + 0.05),))
    candidate = prompt(arrived_s=5.0)
    assert (refusal(view(now_s=5.0 + waited_s), pressed, candidate, WINDOW) is not None) is refused


def test_the_planned_time_is_that_of_its_prompts_less_the_time_passed() -> None:
    inside, once_s = EngineJobs((decode(),), (prompt(),), since_s=4.0), batch_s(50)
    done_s = 4.0 + 2 * once_s
    assert prefill_forecast(view(now_s=4.0, tokens=51), inside) == PrefillForecast(2, once_s, done_s)
    assert prefill_forecast(view(now_s=4.0 + once_s, tokens=51), inside) == PrefillForecast(1, once_s, done_s)
    assert prefill_forecast(view(now_s=9.0, tokens=51), inside) == PrefillForecast(1, once_s, 9.0)
    busy = replace(view(now_s=4.0, tokens=51), busy_until_s=6.0)
    assert prefill_forecast(busy, inside) == PrefillForecast(2, once_s, 6.0)


def test_without_prompts_the_planned_time_is_that_of_the_iteration_in_progress() -> None:
    busy = replace(view(now_s=1.0), busy_until_s=1.5)
    assert prefill_forecast(busy, EngineJobs((decode(),))) == PrefillForecast(1, 0.5, 1.5)
    assert prefill_forecast(busy, EngineJobs()) == PrefillForecast(0, 0.5, 1.5)


def test_after_their_prompts_all_requests_decode_and_hold_their_context() -> None:
    given = decode("o")._replace(best_effort=True)
    inside = EngineJobs((decode(), given), (prompt(tokens=98),), since_s=0.0)
    ahead = planning_view(view(tokens=51, blocks=20), inside)
    done_s = 2 * MODEL.seconds(BatchWork(51, 82))
    assert ahead.busy_until_s == done_s
    one, other, candidate = ahead.running
    assert (one.computed_tokens, one.generated_tokens) == (42, 3)
    assert (other.best_effort, other.due_s, other.tpot_s) == (False, inf, None)
    assert candidate.decoding and candidate.anchor == (done_s, 1)
    assert ahead.kv == KvCache(20, 20 - 3 - 3 - 7, 16)
    assert planning_view(view(blocks=5), inside).kv.free_blocks == 0


def test_the_first_prompt_in_the_engine_keeps_its_start_time() -> None:
    first = EngineJobs().joined_by(prompt("a"), 3.0)
    assert (first.since_s, first.joined_by(prompt("b"), 4.0).since_s) == (3.0, 3.0)
    assert [job.request.id for job in first.joined_by(prompt("b"), 4.0).jobs] == ["a", "b"]
