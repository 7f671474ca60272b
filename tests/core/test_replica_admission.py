"""The replica's own rejections come before the policy's verdicts."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from penstock_core.domain.engine_fields import sequence_ids
from penstock_core.domain.policy import Step
from penstock_core.domain.replica_admission import AdmissionState, InFlightLimits, decide, joint_verdict
from penstock_core.domain.replica_view import KvCache, Limits, ReplicaView
from penstock_core.domain.request import Job, Request, new_job
from penstock_core.domain.verdict import Admitted, BestEffort, Reason, Rejected, Verdict
from penstock_core.timing.time_model import Term, TimeModel

VIEW = ReplicaView(0.0, 0.0, (), (), KvCache(10, 10, 16), Limits(), TimeModel("t", (Term(1e-4, 0.01),)))
FREE = AdmissionState(draining=False, engine_ready=True, requests=0, best_effort=0)
BOUNDS = InFlightLimits(requests=4, best_effort=2)


class OneInTwo:
    """Admits every second of those it is asked about."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def start(self) -> None:
        return None

    def admit(self, view: ReplicaView, new: Sequence[Job]) -> Sequence[Verdict]:
        self.asked.append([job.request.id for job in new])
        return [
            Admitted(1.0, 0.1) if place % 2 == 0 else Rejected(Reason.KV_MEMORY, 3.0)
            for place in range(len(new))
        ]

    def step(self, view: ReplicaView, memory: None) -> tuple[Step, None]:
        raise AssertionError


def jobs(names: str) -> list[Job]:
    """A job for each letter; capitals are best effort."""
    return [new_job(Request(name, "chat", 0.0, 10, 10), 10, name.isupper()) for name in names]


def verdicts(names: str, state: AdmissionState = FREE) -> list[Verdict]:
    return decide(OneInTwo(), VIEW, jobs(names), state, BOUNDS)


def test_candidates_are_decided_together_and_in_order() -> None:
    policy = OneInTwo()
    given = decide(policy, VIEW, jobs("aXbc"), FREE, BOUNDS)
    assert policy.asked == [["a", "b", "c"]]
    assert given == [
        Admitted(1.0, 0.1),
        BestEffort(),
        Rejected(Reason.KV_MEMORY, 3.0),
        Admitted(1.0, 0.1),
    ]


@pytest.mark.parametrize("names", ["a", "X", "aX"])
def test_a_replica_that_accepts_no_requests_gives_the_reason(names: str) -> None:
    draining, down = replace(FREE, draining=True), replace(FREE, engine_ready=False)
    assert set(verdicts(names, draining)) == {Rejected(Reason.DRAINING)}
    assert set(verdicts(names, down)) == {Rejected(Reason.ENGINE_DOWN)}
    assert set(verdicts(names, replace(FREE, requests=4))) == {Rejected(Reason.QUEUE_FULL)}


def test_a_full_best_effort_queue_leaves_room_for_requests_with_slos() -> None:
    full = replace(FREE, best_effort=2)
    assert verdicts("Xa", full) == [Rejected(Reason.QUEUE_FULL), Admitted(1.0, 0.1)]


def test_bounds_hold_within_one_burst() -> None:
    assert [isinstance(v, Rejected) for v in verdicts("XYZ")] == [False, False, True]
    refused = verdicts("abcdef")[4:]
    assert refused == [Rejected(Reason.QUEUE_FULL)] * 2


def test_the_policy_is_not_called_for_requests_that_need_no_plan() -> None:
    policy = OneInTwo()
    assert decide(policy, VIEW, jobs("XY"), FREE, BOUNDS) == [BestEffort(), BestEffort()]
    assert policy.asked == []


@pytest.mark.parametrize(
    ("verdicts", "verdict"),
    [
        ([Admitted(0.2, 0.05)], Admitted(0.2, 0.05)),
        ([Admitted(0.2, 0.05), Admitted(0.5, 0.01)], Admitted(0.5, 0.05)),
        ([Admitted(0.2, 0.05), BestEffort()], BestEffort()),
        (
            [Admitted(0.2, 0.05), Rejected(Reason.KV_MEMORY, 2.0), BestEffort()],
            Rejected(Reason.KV_MEMORY, 2.0),
        ),
    ],
)
def test_a_request_of_several_answers_is_admitted_with_all_of_them_or_none(
    verdicts: list[Verdict], verdict: Verdict
) -> None:
    assert joint_verdict(verdicts) == verdict


def test_each_answer_of_a_request_has_an_id_of_its_own() -> None:
    assert sequence_ids("a", 1) == ("a",)
    assert sequence_ids("a", 3) == ("a", "a~1", "a~2")
