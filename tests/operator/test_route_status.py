"""A Gateway controller's status of a pool's route, and the pool's conditions that follow."""

from typing import Any

import pytest
from penstock_operator.manifests.manifest import Manifest
from penstock_operator.status.diagnosis import Cause
from penstock_operator.status.route_status import pending_route, rejected_routes

GATEWAY = {"name": "public", "namespace": "gateways"}
ACCEPTED = {"type": "Accepted", "status": "True", "observedGeneration": 2}
RESOLVED = ACCEPTED | {"type": "ResolvedRefs"}


def route(
    *conditions: dict[str, Any], parent: dict[str, Any] = GATEWAY, generation: int | None = 2
) -> Manifest:
    answer = {"parentRef": parent, "controllerName": "example.com/gateway", "conditions": list(conditions)}
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": "chat", "namespace": "apps"}
        | ({} if generation is None else {"generation": generation}),
        "spec": {"parentRefs": [GATEWAY]},
        "status": {"parents": [answer]},
    }


def test_an_accepted_route_is_neither_pending_nor_rejected() -> None:
    children = [route(ACCEPTED, RESOLVED)]
    assert pending_route(children) is None
    assert list(rejected_routes(children)) == []


def test_a_pool_without_a_route_has_no_pending_route() -> None:
    assert pending_route([]) is None
    assert list(rejected_routes([])) == []


@pytest.mark.parametrize("type_", ["Accepted", "ResolvedRefs"])
def test_a_refusal_names_the_gateway_and_the_reason(type_: str) -> None:
    refusal = {"type": type_, "status": "False", "reason": "NoMatchingListener", "message": "no such host"}
    (problem,) = rejected_routes([route(ACCEPTED, refusal | {"observedGeneration": 2})])
    assert problem.cause is Cause.ROUTE_REJECTED
    assert problem.message == (
        f'HTTPRoute "chat": Gateway gateways/public: {type_} is False, NoMatchingListener: no such host'
    )


@pytest.mark.parametrize(
    "unanswered",
    [
        route(),
        route(ACCEPTED | {"observedGeneration": 1}),
        route(ACCEPTED, parent={"name": "public"}),
        route(ACCEPTED, parent=GATEWAY | {"name": "private"}),
        route(ACCEPTED | {"status": "Unknown"}),
        route(RESOLVED),
        route() | {"status": {}},
        route({"type": "Accepted", "status": "True"}, generation=1),
    ],
    ids=[
        "no word",
        "of an older route",
        "other namespace",
        "other gateway",
        "unknown",
        "half",
        "no status",
        "of no known route",
    ],
)
def test_a_route_that_its_gateway_has_not_accepted_is_pending(unanswered: Manifest) -> None:
    assert "Gateway gateways/public has not accepted it" in str(pending_route([unanswered]))
    assert list(rejected_routes([unanswered])) == []


def test_a_gateway_without_a_namespace_is_in_the_routes_namespace() -> None:
    own = route(ACCEPTED, parent={"name": "public"})
    own["spec"]["parentRefs"] = [{"name": "public"}]
    assert pending_route([own]) is None


def test_without_generations_every_answer_counts() -> None:
    assert pending_route([route({"type": "Accepted", "status": "True"}, generation=None)]) is None


def test_only_the_first_of_several_gateways_counts() -> None:
    both = route(ACCEPTED)
    both["spec"]["parentRefs"].append({"name": "another"})
    assert pending_route([both]) is None


def test_other_objects_are_not_routes() -> None:
    assert pending_route([{"kind": "Ingress", "metadata": {"name": "chat"}}]) is None


def test_an_unrelated_condition_does_not_reject_a_route() -> None:
    programmed = {"type": "Programmed", "status": "False", "observedGeneration": 2}
    assert list(rejected_routes([route(ACCEPTED, programmed)])) == []
