"""From EndpointSlices to replicas."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_routing.discovery.endpoint_slices import endpoints_of
from penstock_routing.discovery.endpoints import Condition, Endpoint

IN_SERVICE, NOT_READY, TERMINATING = Condition.IN_SERVICE, Condition.NOT_READY, Condition.TERMINATING
READY: dict[str, bool | None] = {"ready": True, "serving": True, "terminating": False}


def endpoint(pod: str, address: str, **conditions: bool | None) -> dict[str, Any]:
    return {
        "addresses": [address],
        "conditions": conditions or READY,
        "targetRef": {"kind": "Pod", "name": pod},
    }


def slice_of(*endpoints: dict[str, Any], port: int | None = 7000, family: str = "IPv4") -> dict[str, Any]:
    ports = [{"name": "metrics", "port": 7001}, {"name": "replica", "port": port}]
    return {"addressType": family, "ports": ports, "endpoints": list(endpoints)}


@pytest.mark.parametrize(
    ("conditions", "condition"),
    [
        ({"ready": True, "serving": True, "terminating": False}, IN_SERVICE),
        ({"ready": False, "serving": False, "terminating": False}, NOT_READY),
        ({"ready": False, "serving": True, "terminating": True}, TERMINATING),
        ({"ready": False, "serving": False, "terminating": True}, TERMINATING),
        ({"ready": True, "terminating": True}, TERMINATING),
        ({"ready": None, "serving": None, "terminating": None}, IN_SERVICE),
    ],
)
def test_a_replicas_condition_follows_from_its_endpoints_conditions(
    conditions: dict[str, bool | None], condition: Condition
) -> None:
    replicas = endpoints_of([slice_of(endpoint("p-0", "10.0.0.1", **conditions))])
    assert replicas == {"p-0": Endpoint("10.0.0.1:7000", condition)}


def test_an_endpoint_without_conditions_is_in_service() -> None:
    one = endpoint("p-0", "10.0.0.1")
    del one["conditions"]
    assert endpoints_of([slice_of(one)])["p-0"].condition is IN_SERVICE


def test_the_port_is_found_by_its_name_in_each_slice() -> None:
    slices = [
        slice_of(endpoint("p-0", "10.0.0.1"), port=7000),
        slice_of(endpoint("p-1", "10.0.0.2"), port=9000),
        slice_of(endpoint("p-2", "10.0.0.3"), port=None),
        {**slice_of(endpoint("p-3", "10.0.0.4")), "ports": [{"name": "other", "port": 7000}]},
        {**slice_of(endpoint("p-4", "10.0.0.5")), "ports": None},
    ]
    assert endpoints_of(slices) == {"p-0": Endpoint("10.0.0.1:7000"), "p-1": Endpoint("10.0.0.2:9000")}


def test_slices_without_endpoints_have_no_replicas() -> None:
    assert endpoints_of([slice_of(), {**slice_of(), "endpoints": None}]) == {}


def test_addresses_of_version_6_are_in_brackets() -> None:
    replicas = endpoints_of([slice_of(endpoint("p-0", "fd00::1"), family="IPv6")])
    assert replicas == {"p-0": Endpoint("[fd00::1]:7000")}


def test_a_pod_of_two_families_is_reached_by_the_first_however_ready_the_other_is() -> None:
    slices = [
        slice_of(endpoint("p-0", "fd00::1"), family="IPv6"),
        slice_of(endpoint("p-0", "10.0.0.1", ready=False)),
    ]
    assert endpoints_of(slices) == {"p-0": Endpoint("10.0.0.1:7000", NOT_READY)}


def test_host_names_are_not_used_as_addresses() -> None:
    assert endpoints_of([slice_of(endpoint("p-0", "replica.example"), family="FQDN")]) == {}


def test_an_endpoint_that_is_no_pod_is_called_by_its_host_name_or_address() -> None:
    named, bare = endpoint("", "10.0.0.1"), endpoint("", "10.0.0.2")
    for one in (named, bare):
        del one["targetRef"]
    named["hostname"] = "metal-7"
    assert set(endpoints_of([slice_of(named, bare)])) == {"metal-7", "10.0.0.2"}


@pytest.mark.parametrize("stale_first", [True, False])
def test_of_two_endpoints_of_one_pod_the_better_counts(stale_first: bool) -> None:
    """A recreated pod is in a new slice before it is removed from the old one."""
    slices = [
        slice_of(endpoint("p-0", "10.0.0.9", ready=False, terminating=True)),
        slice_of(endpoint("p-0", "10.0.0.1")),
    ]
    assert endpoints_of(slices if stale_first else slices[::-1]) == {"p-0": Endpoint("10.0.0.1:7000")}


pods = st.dictionaries(
    st.sampled_from([f"p-{number}" for number in range(6)]),
    st.tuples(st.integers(1, 250), st.sampled_from(list(Condition))),
)


@given(pods, st.lists(st.integers(0, 3), min_size=6, max_size=6), st.randoms(use_true_random=False))
def test_the_distribution_over_slices_does_not_matter(
    pods: dict[str, tuple[int, Condition]], homes: Sequence[int], random: Any
) -> None:
    endpoints = {
        name: endpoint(name, f"10.0.0.{host}", ready=wanted is IN_SERVICE, terminating=wanted is TERMINATING)
        for name, (host, wanted) in pods.items()
    }
    slices = [
        slice_of(
            *(one for (name, one), home in zip(endpoints.items(), homes, strict=False) if home == number)
        )
        for number in range(4)
    ]
    random.shuffle(slices)
    expected = {name: Endpoint(f"10.0.0.{host}:7000", wanted) for name, (host, wanted) in pods.items()}
    assert endpoints_of(slices) == expected
    assert endpoints_of(slices + slices) == expected
