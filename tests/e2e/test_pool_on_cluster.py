"""What the end-to-end test counts as lost, and when it takes a pool as settled."""

from dataclasses import replace
from typing import Any

import pytest
from pool_on_cluster.__main__ import STEPS
from pool_on_cluster.runner import verdict
from pool_on_cluster.traffic import Asked, count_toll
from pool_on_cluster.world import settled, staying

ANSWERED = Asked(0, began_s=1.0, replica="r0", first_s=1.1, ended_s=2.0)
REFUSED = Asked(1, began_s=1.0, ended_s=1.1, refused=True)
CUT_SHORT = Asked(2, began_s=1.0, replica="r1", first_s=1.1, ended_s=1.5, problem="the stream ended")


def test_an_answer_that_was_cut_short_is_lost() -> None:
    toll = count_toll([ANSWERED, CUT_SHORT], [])
    assert (toll.asked, toll.lost) == (2, [CUT_SHORT])


def test_a_refusal_is_no_loss() -> None:
    toll = count_toll([REFUSED], [])
    assert (toll.refused, toll.lost) == (1, [])


def test_whole_answers_are_compared_and_no_others() -> None:
    whole, doubled = replace(ANSWERED, text="a b"), replace(ANSWERED, text="a b b")
    assert count_toll([whole, whole, REFUSED, replace(CUT_SHORT, text="a")], []).texts == {"a b"}
    assert count_toll([whole, doubled], []).texts == {"a b", "a b b"}


def test_only_requests_on_a_killed_process_are_excused() -> None:
    other = Asked(3, began_s=1.0, replica="r0", ended_s=1.5, problem="the stream ended")
    toll = count_toll([CUT_SHORT, other], [lambda requested: requested.replica == "r1"])
    assert (toll.excused, toll.lost) == (1, [other])


def pool(**status: Any) -> dict[str, Any]:
    conditions = [
        {"type": name, "status": output}
        for name, output in {"Ready": "True", "Progressing": "False", "Degraded": "False"}.items()
    ]
    of_all = {"replicas": 3, "readyReplicas": 3, "updatedReplicas": 3}
    return {
        "metadata": {"generation": 2},
        "status": {"observedGeneration": 2, "conditions": conditions, **of_all, **status},
    }


def test_a_pool_settles_when_all_of_its_spec_is_done() -> None:
    assert settled(pool(), 3)


@pytest.mark.parametrize(
    "unsettled",
    [
        {"metadata": {"generation": 1}},
        pool(observedGeneration=1),
        pool(readyReplicas=2),
        pool(updatedReplicas=1),
        pool(conditions=[{"type": "Ready", "status": "True"}]),
    ],
)
def test_a_pool_on_its_way_has_not_settled(unsettled: dict[str, Any]) -> None:
    assert not settled(unsettled, 3)


def test_steps_have_names_and_titles_of_their_own() -> None:
    assert len({step.name for step in STEPS}) == len({step.title for step in STEPS}) == len(STEPS)


def test_a_pod_on_its_way_out_is_not_counted() -> None:
    stays, goes = (
        {"metadata": {"uid": "a"}},
        {"metadata": {"uid": "b", "deletionTimestamp": "2026-01-01T00:00:00Z"}},
    )
    assert staying([stays, goes]) == [stays]


def test_a_story_says_which_steps_it_has_left_out() -> None:
    assert verdict(STEPS, {}) == f"all {len(STEPS)} steps held"
    name = STEPS[0].name
    output = verdict(STEPS, {"left_out": [name]})
    assert output == f"{len(STEPS) - 1} of {len(STEPS)} steps held, left out: {name}"
