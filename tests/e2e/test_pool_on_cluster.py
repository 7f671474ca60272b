"""Evaluation in the end-to-end test: which requests are lost, and which pools are reconciled."""

from dataclasses import replace
from typing import Any

import pytest
from pool_on_cluster.__main__ import STEPS
from pool_on_cluster.context import not_terminating, reconciled
from pool_on_cluster.runner import summary_line
from pool_on_cluster.traffic import SentRequest, summarize

ANSWERED = SentRequest(0, started_s=1.0, replica="r0", first_s=1.1, ended_s=2.0)
REJECTED = SentRequest(1, started_s=1.0, ended_s=1.1, rejected=True)
TRUNCATED = SentRequest(2, started_s=1.0, replica="r1", first_s=1.1, ended_s=1.5, problem="the stream ended")


def test_a_truncated_answer_is_lost() -> None:
    summary = summarize([ANSWERED, TRUNCATED], [])
    assert (summary.sent, summary.lost) == (2, [TRUNCATED])


def test_a_rejected_request_is_not_lost() -> None:
    summary = summarize([REJECTED], [])
    assert (summary.rejected, summary.lost) == (1, [])


def test_only_complete_answers_are_compared() -> None:
    complete, doubled = replace(ANSWERED, text="a b"), replace(ANSWERED, text="a b b")
    assert summarize([complete, complete, REJECTED, replace(TRUNCATED, text="a")], []).texts == {"a b"}
    assert summarize([complete, doubled], []).texts == {"a b", "a b b"}


def test_only_requests_on_a_killed_process_may_be_lost() -> None:
    other = SentRequest(3, started_s=1.0, replica="r0", ended_s=1.5, problem="the stream ended")
    summary = summarize([TRUNCATED, other], [lambda request: request.replica == "r1"])
    assert (summary.allowed_losses, summary.lost) == (1, [other])


def pool(**status: Any) -> dict[str, Any]:
    conditions = [
        {"type": name, "status": output}
        for name, output in {"Ready": "True", "Progressing": "False", "Degraded": "False"}.items()
    ]
    numbers = {"replicas": 3, "readyReplicas": 3, "updatedReplicas": 3}
    return {
        "metadata": {"generation": 2},
        "status": {"observedGeneration": 2, "conditions": conditions, **numbers, **status},
    }


def test_a_pool_is_reconciled_when_its_status_reports_all_of_its_spec() -> None:
    assert reconciled(pool(), 3)


@pytest.mark.parametrize(
    "in_progress",
    [
        {"metadata": {"generation": 1}},
        pool(observedGeneration=1),
        pool(readyReplicas=2),
        pool(updatedReplicas=1),
        pool(conditions=[{"type": "Ready", "status": "True"}]),
    ],
)
def test_a_pool_in_progress_is_not_reconciled(in_progress: dict[str, Any]) -> None:
    assert not reconciled(in_progress, 3)


def test_names_and_titles_of_steps_are_unique() -> None:
    assert len({step.name for step in STEPS}) == len({step.title for step in STEPS}) == len(STEPS)


def test_terminating_pods_are_not_counted() -> None:
    running, terminating = (
        {"metadata": {"uid": "a"}},
        {"metadata": {"uid": "b", "deletionTimestamp": "2026-01-01T00:00:00Z"}},
    )
    assert not_terminating([running, terminating]) == [running]


def test_the_last_line_names_skipped_steps() -> None:
    assert summary_line(STEPS, {}) == f"all {len(STEPS)} steps passed"
    name = STEPS[0].name
    output = summary_line(STEPS, {"skipped": [name]})
    assert output == f"{len(STEPS) - 1} of {len(STEPS)} steps passed, skipped: {name}"
