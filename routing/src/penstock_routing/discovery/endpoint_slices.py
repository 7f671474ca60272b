"""Converts a Service's EndpointSlices to a set of replicas. Pure.

A Service's endpoints are distributed over several slices that change independently: while an endpoint moves
from one slice to another, both may contain it, with different conditions. So slices are merged, and of two
entries for one pod the better one counts. A Service with two address families has each pod in slices of both.
One family is used for the whole life of a pod, so that its address does not change.

Absent conditions have the API's defaults: `ready` true, `terminating` false.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from penstock_routing.discovery.endpoints import Condition, Endpoint, Endpoints

PORT = "replica"
"""The name of the port on which sidecars serve routers."""

FAMILIES = ("IPv4", "IPv6")
"""Supported address families, the preferred one first."""

CONDITIONS = tuple(Condition)
"""Conditions, the best first."""

Slice = Mapping[str, Any]
"""An EndpointSlice of `discovery.k8s.io/v1`, parsed from JSON."""


class _Candidate(NamedTuple):
    """One entry for a pod. The smallest is the best."""

    family: int
    condition: int
    address: str


def endpoints_of(slices: Iterable[Slice], port_name: str = PORT) -> Endpoints:
    """Return the replicas in these slices, by pod name. Slices without the port are ignored."""
    best: dict[str, _Candidate] = {}
    for endpoint_slice in slices:
        port, family = _port(endpoint_slice, port_name), endpoint_slice["addressType"]
        if port is None or family not in FAMILIES:
            continue
        for endpoint in endpoint_slice.get("endpoints") or ():
            candidate = _candidate(endpoint, FAMILIES.index(family), port)
            name = _name(endpoint)
            best[name] = min(best.get(name, candidate), candidate)
    return {
        name: Endpoint(candidate.address, CONDITIONS[candidate.condition])
        for name, candidate in sorted(best.items())
    }


def _port(endpoint_slice: Slice, name: str) -> int | None:
    ports = endpoint_slice.get("ports") or ()
    return next((port["port"] for port in ports if port.get("name") == name and port.get("port")), None)


def _candidate(endpoint: Mapping[str, Any], family: int, port: int) -> _Candidate:
    host = endpoint["addresses"][
        0
    ]  # of several, any will do: they are the same endpoint by the API's definition
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return _Candidate(family, CONDITIONS.index(_condition(endpoint.get("conditions") or {})), address)


def _condition(conditions: Mapping[str, Any]) -> Condition:
    if conditions.get("terminating"):
        return Condition.TERMINATING
    return Condition.NOT_READY if conditions.get("ready") is False else Condition.IN_SERVICE


def _name(endpoint: Mapping[str, Any]) -> str:
    """Return the pod's name; for an endpoint that is not a pod, its host name or address."""
    target = endpoint.get("targetRef") or {}
    return str(target.get("name") or endpoint.get("hostname") or endpoint["addresses"][0])
