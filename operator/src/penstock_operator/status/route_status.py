"""Evaluates an HTTPRoute's status: whether the pool's Gateway accepts the route.

A Gateway's controller may reject a route: no listener for the host, a namespace that may not attach, a
Service that it cannot resolve. It writes its answer for each parent with the generation of the route that it
has observed; an answer for an older generation is ignored.

Pure: the argument is the route as the API server has it.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from penstock_operator.manifests.manifest import Manifest, ref_of
from penstock_operator.status.diagnosis import Cause, PoolProblem

BLOCKING_CONDITIONS = ("Accepted", "ResolvedRefs")
"""Conditions of a parent that block traffic if they are False."""


def rejected_routes(children: Iterable[Manifest]) -> Iterator[PoolProblem]:
    """Yield a problem for each reason for which a Gateway rejects a route."""
    for route in _http_routes(children):
        for condition in _parent_conditions(route):
            if condition["type"] in BLOCKING_CONDITIONS and condition["status"] == "False":
                message = f"{condition.get('reason', 'refused')}: {condition.get('message', 'no message')}"
                yield PoolProblem(
                    Cause.ROUTE_REJECTED,
                    f"{ref_of(route)}: Gateway {_parent(route)}: {condition['type']} is False, {message}",
                )


def pending_route(children: Iterable[Manifest]) -> str | None:
    """Return why a route is not in effect yet; None if it is, or if there is no route."""
    for route in _http_routes(children):
        accepted = (c for c in _parent_conditions(route) if c["type"] == "Accepted" and c["status"] == "True")
        if next(accepted, None) is None:
            return (
                f"{ref_of(route)}: Gateway {_parent(route)} has not accepted it; does it exist, and does a "
                "listener allow this host and namespace?"
            )
    return None


def _http_routes(children: Iterable[Manifest]) -> list[Manifest]:
    return [child for child in children if child["kind"] == "HTTPRoute"]


def _parent_conditions(route: Manifest) -> Iterator[dict[str, Any]]:
    """Yield the conditions of the Gateway's controller for the route's present generation."""
    metadata = route["metadata"]
    for parent in route.get("status", {}).get("parents", ()):
        if _key(parent["parentRef"], metadata) == _key(_parent_reference(route), metadata):
            for condition in parent.get("conditions", ()):
                if condition.get("observedGeneration", 0) >= metadata.get("generation", 0):
                    yield condition


def _parent_reference(route: Manifest) -> dict[str, Any]:
    parent: dict[str, Any] = route["spec"]["parentRefs"][0]
    return parent


def _key(reference: dict[str, Any], metadata: dict[str, Any]) -> tuple[str, str]:
    return reference.get("namespace", metadata["namespace"]), reference["name"]


def _parent(route: Manifest) -> str:
    return "/".join(_key(_parent_reference(route), route["metadata"]))
