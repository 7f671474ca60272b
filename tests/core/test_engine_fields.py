"""SLOs cross to the engine as scalars, and arrive as they were sent."""

from itertools import product
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_core.domain.engine_fields import (
    Scalar,
    counts_on_cache,
    engine_calls_socket,
    from_fields,
    measured_model_file,
    to_fields,
)
from penstock_core.domain.request import Job, Request, new_job
from penstock_core.domain.slo import Judge, Targets

seconds = st.none() | st.floats(0.001, 1000)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    targets = Targets(
        draw(seconds), draw(seconds), draw(seconds), draw(st.sampled_from(Judge)), draw(seconds)
    )
    request = Request("r-1", "chat", 100.0, draw(st.integers(1, 9000)), 500, targets, draw(st.floats(0.1, 9)))
    return new_job(request, draw(st.integers(1, 500)), draw(st.booleans()), draw(st.integers(0, 500)))


def test_a_verdict_that_needs_a_cached_prefix_is_marked() -> None:
    job = new_job(Request("r-1", "chat", 0.0, 10, 10), 5, best_effort=False)
    assert counts_on_cache(to_fields(job, 0.0, counts_on_cache=True))
    assert not counts_on_cache(to_fields(job, 0.0))
    assert not counts_on_cache({"penstock_counts_on_cache": "no"})


@given(jobs(), st.floats(0, 5))
def test_engine_sees_the_job_the_sidecar_planned(job: Job, spent_s: float) -> None:
    fields = to_fields(job, now_s=100.0 + spent_s)
    seen = from_fields(
        fields,
        engine_id="cmpl-9",
        prompt_tokens=job.request.prompt_tokens,
        max_output_tokens=job.request.max_output_tokens,
        now_s=7.0 + spent_s,
    )
    assert seen.request.arrival_s == pytest.approx(7.0)
    assert (seen.request.id, seen.request.targets) == (job.request.id, job.request.targets)
    assert (seen.output_tokens, seen.sure_tokens, seen.best_effort, seen.tpot_s) == (
        job.output_tokens,
        job.sure_tokens,
        job.best_effort,
        job.tpot_s,
    )


def engine_sees(fields: dict[str, Scalar]) -> Job:
    return from_fields(fields, engine_id="cmpl-9", prompt_tokens=10, max_output_tokens=20, now_s=0.0)


def test_fields_are_scalars_only() -> None:
    request = Request("r-1", "chat", 0.0, 10, 20, Targets(1.0, 0.1))
    fields = to_fields(new_job(request, 20, best_effort=False), 0.5)
    assert all(isinstance(value, str | int | float | bool) for value in fields.values())
    assert fields["penstock_spent_s"] == 0.5


def test_a_request_without_penstocks_fields_is_best_effort() -> None:
    job = engine_sees({})
    assert (job.request.id, job.request.tier, job.best_effort) == ("cmpl-9", "direct", True)
    assert (job.request.arrival_s, job.request.value, job.output_tokens) == (0.0, 1.0, 20)


def test_prediction_never_passes_the_bound() -> None:
    assert engine_sees({"penstock_output_tokens": 900}).output_tokens == 20
    assert engine_sees({"penstock_sure_tokens": 900}).sure_tokens == 20
    assert engine_sees({}).sure_tokens == 0


@pytest.mark.parametrize("field", ["penstock_ttft_s", "penstock_judge", "penstock_output_tokens"])
def test_a_field_without_a_valid_value_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match="junk"):
        engine_sees({field: "junk"})


NO_NUMBERS: list[Any] = [nan, inf, -inf, -1, 1e10, 10**400, [1.0], {"a": 1}, ""]
NO_WORDS: list[Any] = ["", 7, ["r-1"], "a\x00b", "\ud800", "x" * 201]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *product(["ttft_s", "tpot_s", "e2e_s", "answer_tpot_s"], [*NO_NUMBERS, 0]),
        *product(["value"], [*NO_NUMBERS, 0, None]),
        *product(["spent_s", "output_tokens", "sure_tokens"], [*NO_NUMBERS, None]),
        *product(["id", "tier", "judge"], [*NO_WORDS, None]),
    ],
)
def test_an_invalid_value_is_a_value_error_whatever_its_type(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        engine_sees({f"penstock_{field}": value})


def test_the_longest_string_and_the_largest_number_are_read() -> None:
    job = engine_sees(
        {"penstock_id": "x" * 200, "penstock_tier": "y", "penstock_value": 1e9, "penstock_ttft_s": 1e9}
    )
    assert (len(job.request.id), job.request.tier, job.request.value) == (200, "y", 1e9)


def test_fields_of_a_newer_sidecar_are_ignored() -> None:
    assert engine_sees({"penstock_of_tomorrow": "x", "another": 1}) == engine_sees({})


def test_a_measured_model_is_beside_the_socket() -> None:
    assert measured_model_file("/run/penstock/r0.sock") == "/run/penstock/r0.sock.time-model.json"
    assert engine_calls_socket("/run/penstock/r0.sock") == "/run/penstock/r0.sock.calls"
