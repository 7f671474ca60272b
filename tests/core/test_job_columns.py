"""Columns say what their jobs say."""

from math import inf

import numpy as np
from penstock_core.domain.request import Job, Request, advance, new_job, preempted
from penstock_core.domain.slo import Targets
from penstock_core.forecast.job_columns import columns


def job(name: str, prompt: int, tpot_s: float | None = 0.1) -> Job:
    return new_job(Request(name, "tier", 0.0, prompt, 4096, Targets(1.0, tpot_s)), 50, best_effort=False)


def test_every_column_equals_the_attribute_of_each_job() -> None:
    decode = advance(job("decode", 300), 300, 1, 0.5)
    chunked = advance(job("chunked", 700), 512, 0, 0.5)
    last_token = advance(job("last token", 20), 19, 0, 0.5)
    jobs = [job("new", 20), decode, chunked, preempted(decode), decode._replace(output_tokens=1), last_token]
    table = columns(jobs)
    assert table.pending_tokens.tolist() == [j.pending_tokens for j in jobs]
    assert (
        table.decoding.tolist()
        == [j.decoding for j in jobs]
        == [
            False,
            True,
            False,
            False,
            True,
            False,
        ]
    )
    assert table.size_tokens.tolist() == [j.request.prompt_tokens + j.generated_tokens for j in jobs]
    assert table.output_tokens_left.tolist() == [j.output_tokens_left for j in jobs]
    assert table.due_s.tolist() == [j.due_s for j in jobs]
    some = table.of(np.array([1, 2]))
    assert [column.tolist() for column in some] == [column.tolist() for column in columns(jobs[1:3])]


def test_a_missing_tpot_is_infinite() -> None:
    assert columns([job("free", 20, tpot_s=None), job("paced", 20)]).tpot_s.tolist() == [inf, 0.1]


def test_no_jobs_have_empty_columns() -> None:
    assert [len(column) for column in columns([])] == [0] * 6
