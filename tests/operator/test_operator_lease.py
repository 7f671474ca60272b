"""Who leads, without a cluster: the decision to take a Lease, and what is written then."""

from typing import Any

from penstock_operator.cluster.kinds import LEASE
from penstock_operator.cluster.lease import DURATION_S, Sighting, may_take, taken
from penstock_operator.manifests.manifest import Manifest, Ref

REF = Ref(LEASE.api_version, LEASE.kind, "penstock", "penstock-operator")
NOW = "2026-01-02T03:04:05.000000Z"


def lease(holder: str, version: str = "7", **spec: Any) -> Manifest:
    return {
        "metadata": {"resourceVersion": version},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15} | spec,
    }


def test_absent_given_back_and_own_lease_is_free() -> None:
    assert may_take(None, "me", None, 0.0)
    assert may_take(lease(""), "me", None, 0.0)
    assert may_take(lease("me"), "me", None, 0.0)


def test_lease_of_another_is_free_once_it_was_silent_for_its_duration() -> None:
    assert not may_take(lease("you"), "me", None, 0.0)
    assert not may_take(lease("you"), "me", Sighting("7", 100.0), 100.0 + DURATION_S - 1)
    assert may_take(lease("you"), "me", Sighting("7", 100.0), 100.0 + DURATION_S)


def test_lease_that_was_renewed_meanwhile_is_not_free() -> None:
    assert not may_take(lease("you", version="8"), "me", Sighting("7", 100.0), 1000.0)


def test_taking_it_over_counts_a_transition_and_renewing_does_not() -> None:
    over = taken(lease("you", leaseTransitions=2, acquireTime="then"), REF, "me", NOW)
    assert over["spec"]["leaseTransitions"] == 3
    assert over["spec"]["acquireTime"] == NOW
    assert over["metadata"]["resourceVersion"] == "7"
    again = taken(over, REF, "me", "later")
    assert again["spec"]["leaseTransitions"] == 3
    assert again["spec"]["acquireTime"] == NOW
    assert again["spec"]["renewTime"] == "later"


def test_new_lease_has_no_version() -> None:
    assert "resourceVersion" not in taken(None, REF, "me", NOW)["metadata"]
