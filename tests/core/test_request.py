"""A job's life inside a replica: progress, due times, preemption."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_core.domain.request import (
    Job,
    Request,
    advance,
    after_each,
    new_job,
    preempted,
    promoted,
    thinking_ended,
)
from penstock_core.domain.slo import NO_DEADLINE_S, Judge, Targets


def chat(prompt_tokens: int = 100, targets: Targets = Targets(ttft_s=1.0, tpot_s=0.1)) -> Job:
    request = Request(
        "a", "chat", arrival_s=10.0, prompt_tokens=prompt_tokens, max_output_tokens=500, targets=targets
    )
    return new_job(request, output_tokens=50, best_effort=False)


def test_new_job_has_its_whole_prompt_pending() -> None:
    job = chat()
    assert (job.pending_tokens, job.decoding, job.due_s) == (100, False, 11.0)
    assert (job.request.value, job.sure_tokens, job.last_token_s) == (1.0, 0, inf)


def test_a_chunk_returns_no_token_and_moves_no_deadline() -> None:
    job = advance(chat(), computed_tokens=60, new_tokens=0, now_s=10.5)
    assert (job.pending_tokens, job.generated_tokens, job.due_s) == (40, 0, 11.0)


def test_first_token_anchors_the_tpot() -> None:
    job = advance(chat(), computed_tokens=100, new_tokens=1, now_s=10.5)
    assert job.decoding
    assert job.due_s == 10.6


def test_preempted_job_keeps_its_tokens_and_prefills_them_again() -> None:
    running = advance(advance(chat(), 100, 1, 10.5), 1, 1, 10.6)
    job = preempted(running)
    assert (job.generated_tokens, job.pending_tokens, job.decoding) == (2, 102, False)
    assert job.due_s == running.due_s


def test_the_predicted_length_stays_above_the_generated_tokens() -> None:
    job = chat()._replace(output_tokens=2)
    for step in range(5):
        job = advance(job, 1, 1, 10.5 + step)
    assert (job.generated_tokens, job.output_tokens) == (5, 6)
    assert job.output_tokens_left == 1
    (together,) = after_each([job], [20.0, 20.1])
    assert (together.generated_tokens, together.output_tokens) == (7, 8)


def test_a_window_tiers_deadline_counts_from_its_window() -> None:
    job = advance(chat(targets=Targets(1.0, 0.1, judge=Judge.WINDOW)), 100, 1, 10.0)
    for token in range(10):
        job = advance(job, 1, 1, 10.05 + 0.05 * token)
    assert job.anchor is not None
    assert job.anchor.tokens == 11


def test_no_request_waits_for_a_job_without_targets() -> None:
    job = chat(targets=Targets())
    assert (job.due_s, job.tpot_s) == (NO_DEADLINE_S, None)
    assert advance(job, 100, 1, 99.0).due_s == NO_DEADLINE_S


def test_a_thinking_job_is_planned_by_its_tighter_tpot_until_it_answers() -> None:
    request = Request("r", "reasoning", 0.0, 10, 1000, Targets(1.0, 0.05, answer_tpot_s=0.1))
    thinking = advance(new_job(request, 100, best_effort=False), 10, 1, 0.5)
    assert thinking.tpot_s == 0.05
    answering = thinking_ended(thinking, 0.6)
    assert answering.tpot_s == 0.1
    assert answering.due_s == pytest.approx(0.7)
    assert (thinking.last_token_s, answering.last_token_s) == (0.5, inf)
    assert thinking_ended(answering, 0.8) is answering


def test_without_an_answer_tpot_the_end_of_thinking_has_no_effect() -> None:
    job = new_job(Request("r", "chat", 0.0, 10, 1000, Targets(1.0, 0.05)), 100, best_effort=False)
    assert thinking_ended(job, 0.6) is job


def test_a_promoted_job_is_not_best_effort() -> None:
    job = new_job(Request("r", "chat", 0.0, 10, 1000, Targets(1.0, 0.05)), 100, best_effort=True)
    assert not promoted(job).best_effort


PACED = st.builds(Targets, st.none() | st.just(1.0), st.none() | st.just(0.1), judge=st.sampled_from(Judge))


@given(st.lists(st.tuples(PACED, st.integers(0, 30)), max_size=5), st.lists(st.floats(0.01, 1), min_size=1))
def test_advancing_many_jobs_equals_advancing_each(
    kinds: list[tuple[Targets, int]], took_s: list[float]
) -> None:
    jobs, now_s, ends_s = [], 10.0, list[float]()
    for targets, tokens in kinds:
        job = advance(chat(targets=targets), 99, 0, now_s)
        for step in range(tokens):
            job = advance(job, 1, 1, 8.0 + step / 20)
        jobs.append(job)
    together = jobs
    for seconds in took_s:
        now_s += seconds
        ends_s.append(now_s)
        jobs = [advance(job, 1, 1, now_s) for job in jobs]
    assert after_each(together, ends_s) == jobs
