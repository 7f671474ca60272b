"""A pool's conditions and counts, from what was observed. No cluster: manifests in, a status out."""

from typing import Any

import pytest
from penstock_operator.demand.demand_page import TierCounts
from penstock_operator.manifests.manifest import Manifest
from penstock_operator.manifests.names import Component
from penstock_operator.status.conditions import Status, StatusInput, condition, status_of
from penstock_operator.status.diagnosis import SPEC_NOT_IN_EFFECT, Cause, PoolProblem
from penstock_pool.status import PoolStatus

NOW, LATER = "2026-01-02T03:04:05Z", "2026-01-02T03:05:00Z"


def workload(kind: str, name: str, wanted: int, **status: Any) -> Manifest:
    reported = {"observedGeneration": 1, "replicas": wanted, "updatedReplicas": wanted} | status
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "generation": 1},
        "spec": {"replicas": wanted},
        "status": reported,
    }


def replicas(wanted: int = 3, ready: int = 3, **status: Any) -> Manifest:
    return workload("StatefulSet", "chat-replica", wanted, readyReplicas=ready, **status)


def routers(wanted: int = 2, ready: int = 2, **status: Any) -> Manifest:
    return workload("Deployment", "chat-router", wanted, readyReplicas=ready, **status)


def view(*children: Manifest, wanted: int = 3, **rest: Any) -> StatusInput:
    return StatusInput("chat", 4, "slos-serve", wanted, 2, children, **rest)


def conditions(status: Status) -> dict[str, tuple[str, str]]:
    return {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}


def test_a_pool_with_all_pods_ready_is_ready_settled_and_as_desired() -> None:
    status = status_of(view(replicas(), routers()), {}, NOW)
    assert conditions(status) == {
        "Ready": ("True", "Serving"),
        "Available": ("True", "Serving"),
        "ReplicasReady": ("True", "AllReady"),
        "RouterReady": ("True", "AllReady"),
        "Progressing": ("False", "Settled"),
        "Degraded": ("False", "AsWanted"),
    }
    assert (status["replicas"], status["readyReplicas"], status["updatedReplicas"]) == (3, 3, 3)
    assert status["observedGeneration"] == 4
    assert status["selector"] == "app.kubernetes.io/component=replica,penstock.dev/pool=chat"


def test_a_pool_whose_gateway_has_not_changed_yet_is_not_ready() -> None:
    reported = conditions(status_of(view(replicas(), routers(), gateway_pending=True), {}, NOW))
    assert reported["Progressing"] == ("True", "RollingOut")
    assert reported["Ready"] == ("False", "RollingOut")
    assert reported["Available"] == ("True", "Serving")


def test_a_pool_with_one_ready_replica_of_three_is_available_and_not_ready() -> None:
    reported = conditions(status_of(view(replicas(ready=1), routers()), {}, NOW))
    assert reported["Available"] == ("True", "Serving")
    assert reported["Ready"] == reported["ReplicasReady"] == ("False", "Starting")
    assert reported["Progressing"] == ("True", "Starting")


@pytest.mark.parametrize(
    ("pods", "reason"),
    [
        ([replicas(updatedReplicas=2), routers()], "RollingOut"),
        ([replicas(), routers(updatedReplicas=1)], "RollingOut"),
        ([replicas(replicas=4), routers()], "Scaling"),
        ([replicas(), routers(replicas=3)], "Scaling"),
        ([replicas(), routers(ready=1)], "Starting"),
    ],
    ids=["old replica", "old router", "replica too many", "router too many", "router missing"],
)
def test_a_pool_is_ready_only_once_all_its_pods_are_the_desired_ones(
    pods: list[Manifest], reason: str
) -> None:
    reported = conditions(status_of(view(*pods), {}, NOW))
    assert reported["Ready"] == ("False", reason)
    assert reported["Available"] == ("True", "Serving")


@pytest.mark.parametrize("cause", sorted(SPEC_NOT_IN_EFFECT))
def test_a_spec_that_is_not_in_effect_is_not_ready_even_if_its_pods_are(cause: Cause) -> None:
    reported = conditions(
        status_of(view(replicas(), routers(), problems=[PoolProblem(cause, "no")]), {}, NOW)
    )
    assert reported["Ready"] == ("False", cause)
    assert reported["Available"] == ("True", "Serving")


def test_a_pool_without_objects_is_rolling_out() -> None:
    reported = conditions(status_of(view(), {}, NOW))
    assert reported["Ready"] == reported["Available"] == ("False", "Starting")
    assert reported["Progressing"] == ("True", "RollingOut")


def test_a_generation_that_the_statefulset_has_not_observed_is_rolling_out() -> None:
    stale = replicas()
    stale["metadata"]["generation"] = 2
    reported = conditions(status_of(view(stale, routers()), {}, NOW))
    assert reported["Progressing"] == ("True", "RollingOut")
    assert reported["ReplicasReady"] == ("False", "Starting")


def test_more_pods_than_desired_are_scaling() -> None:
    reported = conditions(
        status_of(view(replicas(wanted=1, ready=1, replicas=2), routers(), wanted=1), {}, NOW)
    )
    assert reported["Progressing"] == ("True", "Scaling")


def test_a_pool_scaled_to_zero_is_asleep_if_a_request_starts_a_replica() -> None:
    none = replicas(wanted=0, ready=0)
    asleep = conditions(status_of(view(none, routers(), wanted=0, starts_on_request=True), {}, NOW))
    assert asleep["Ready"] == asleep["Available"] == ("True", "Asleep")
    assert asleep["ReplicasReady"] == ("True", "NoneWanted")
    switched_off = conditions(status_of(view(none, routers(), wanted=0), {}, NOW))
    assert switched_off["Ready"] == ("True", "NoneWanted")
    assert switched_off["Available"] == ("False", "NoneWanted")


def test_a_problem_is_the_reason_of_every_condition_it_makes_false() -> None:
    problem = PoolProblem(Cause.IMAGE_MISSING, "chat-replica-0: no such image", Component.REPLICA)
    status = status_of(view(replicas(ready=0), routers(), problems=[problem]), {}, NOW)
    reported = conditions(status)
    assert (
        reported["Ready"] == reported["Available"] == reported["ReplicasReady"] == ("False", "ImageMissing")
    )
    assert reported["Degraded"] == ("True", "ImageMissing")
    assert reported["RouterReady"] == ("True", "AllReady")
    ready = condition(status, "Ready")
    assert ready is not None
    assert ready["message"] == "0 of 3 replicas and 2 of 2 routers ready; chat-replica-0: no such image"


def test_a_problem_without_a_component_is_the_reason_if_either_is_not_ready() -> None:
    problem = PoolProblem(Cause.QUOTA_EXCEEDED, "exceeded quota: pods")
    reported = conditions(status_of(view(replicas(ready=0), routers(ready=0), problems=[problem]), {}, NOW))
    names = ("Ready", "Available", "ReplicasReady", "RouterReady")
    assert {reported[name] for name in names} == {("False", "QuotaExceeded")}


def test_a_rejected_route_does_not_stop_pods_from_starting() -> None:
    problem = PoolProblem(Cause.ROUTE_REJECTED, "no listener")
    reported = conditions(status_of(view(replicas(ready=0), routers(), problems=[problem]), {}, NOW))
    assert reported["Ready"] == ("False", "RouteRejected")
    assert reported["ReplicasReady"] == reported["Available"] == ("False", "Starting")


def test_without_routers_a_pool_is_not_ready() -> None:
    reported = conditions(status_of(view(replicas(), routers(ready=0)), {}, NOW))
    assert reported["Ready"] == reported["Available"] == ("False", "Starting")
    assert reported["RouterReady"] == ("False", "Starting")


@pytest.mark.parametrize(("ready", "answers"), [(0, "False"), (1, "True")])
def test_a_pool_of_one_replica_is_available_while_it_is_ready(ready: int, answers: str) -> None:
    one = view(replicas(wanted=1, ready=ready), routers(), wanted=1)
    assert conditions(status_of(one, {}, NOW))["Available"][0] == answers


def test_conditions_have_the_present_and_desired_number_of_pods() -> None:
    def message_of(type_: str, *pods: Manifest, **rest: Any) -> str:
        found = condition(status_of(view(*pods, **rest), {}, NOW), type_)
        assert found is not None
        return str(found["message"])

    one = replicas(wanted=1, ready=1)
    assert message_of("Ready", one, routers(), wanted=1) == "1 of 1 replica and 2 of 2 routers ready"
    assert message_of("ReplicasReady", replicas(ready=2), routers()) == "2 of 3 replicas ready"
    assert message_of("Progressing", replicas(replicas=4), routers()) == "4 replicas, 3 are desired"
    assert (
        message_of("Progressing", replicas(updatedReplicas=1), routers())
        == "1 of 3 replicas run the newest spec"
    )
    assert message_of("Progressing", replicas(), routers(ready=1)) == "1 of 2 routers ready"


def test_a_pool_whose_gateway_has_not_answered_is_not_ready() -> None:
    route = {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": "chat", "namespace": "team"},
        "spec": {"parentRefs": [{"name": "public"}]},
    }
    reported = conditions(status_of(view(replicas(), routers(), route), {}, NOW))
    assert reported["Ready"] == ("False", "RoutePending")
    assert reported["Available"] == ("True", "Serving")


def test_of_several_problems_the_first_is_the_reason() -> None:
    problems = [PoolProblem(cause, f"{cause} {number}") for number, cause in enumerate(list(Cause)[:7])]
    degraded = condition(status_of(view(replicas(), routers(), problems=problems), {}, NOW), "Degraded")
    assert degraded is not None
    assert degraded["reason"] == problems[0].cause
    assert degraded["message"] == "; ".join(problem.message for problem in problems[:5])


def test_a_scale_down_without_a_reason_is_not_a_condition() -> None:
    status = status_of(view(replicas(), routers(), autoscaling={"replicas": 3}), {}, NOW)
    assert condition(status, "Autoscaling") is None
    assert status["autoscaling"] == {"replicas": 3}


def test_the_transition_time_changes_only_with_the_status() -> None:
    first = status_of(view(replicas(ready=0), routers()), {}, NOW)
    same = status_of(view(replicas(ready=0), routers()), first, LATER)
    assert same == first
    ready = status_of(view(replicas(), routers()), first, LATER)
    when = {c["type"]: c["lastTransitionTime"] for c in ready["conditions"]}
    assert when["Ready"] == when["ReplicasReady"] == LATER
    assert when["RouterReady"] == NOW


def test_attainment_is_reported_for_all_tiers_and_for_each() -> None:
    counts = {"chat": TierCounts(900, 890), "batch": TierCounts(100, 92), "idle": TierCounts()}
    status = status_of(view(replicas(), routers(), attainment=counts), {}, NOW)
    assert status["attainment"] == "98.2%"
    assert status["tiers"] == [
        {"name": "batch", "requests": 100, "attainment": 0.92},
        {"name": "chat", "requests": 900, "attainment": 0.989},
        {"name": "idle", "requests": 0},
    ]


def test_traffic_alone_does_not_change_the_status() -> None:
    before = status_of(view(replicas(), routers(), attainment={"chat": TierCounts(1000, 982)}), {}, NOW)
    more = status_of(view(replicas(), routers(), attainment={"chat": TierCounts(9000, 8839)}), before, LATER)
    assert more == before
    worse = status_of(view(replicas(), routers(), attainment={"chat": TierCounts(9900, 8839)}), before, LATER)
    assert worse["tiers"] == [{"name": "chat", "requests": 9900, "attainment": 0.893}]


def test_without_answers_of_routers_the_last_attainment_is_kept() -> None:
    counts = {"chat": TierCounts(10, 9)}
    before = status_of(view(replicas(), routers(), attainment=counts), {}, NOW)
    after = status_of(view(replicas(), routers()), before, LATER)
    assert after == before


def test_autoscaling_reports_its_reason() -> None:
    decided = {"replicas": 3, "reason": "scale_up", "message": "half was refused"}
    status = status_of(view(replicas(), routers(), autoscaling=decided), {}, NOW)
    assert conditions(status)["Autoscaling"] == ("True", "ScaleUp")
    assert status["autoscaling"] == decided
    others = status_of(view(replicas(), routers(), scaled_externally=True), {}, NOW)
    assert conditions(others)["Autoscaling"] == ("True", "ScaledByOthers")


@pytest.mark.parametrize("ready", [0, 3])
def test_every_status_is_valid_in_the_pool_schema(ready: int) -> None:
    reported = status_of(
        view(
            replicas(ready=ready),
            routers(),
            problems=[PoolProblem(cause, cause.value) for cause in Cause],
            attainment={"chat": TierCounts(10, 9)},
            autoscaling={"replicas": 3, "reason": "steady", "message": "", "startedFrom": 2},
        ),
        {},
        NOW,
    )
    read = PoolStatus.model_validate(reported)
    assert read.ready_replicas == ready
