"""Leadership without a cluster: the decision to take a Lease, and its writes."""

import asyncio
from copy import deepcopy
from typing import Any

import pytest
from penstock_operator.cluster.api_client import ApiStatusError, ApiUnreachable
from penstock_operator.cluster.kinds import LEASE
from penstock_operator.cluster.lease import (
    LEASE_DURATION_S,
    RENEW_DEADLINE_S,
    RETRY_PERIOD_S,
    Leadership,
    LeaseLost,
    ObservedLease,
    acquired_lease,
    can_acquire,
    elapsed_s,
)
from penstock_operator.manifests.manifest import Manifest, Ref
from virtual_time import now_s, run

REF = Ref(LEASE.api_version, LEASE.kind, "penstock", "penstock-operator")
NOW = "2026-01-02T03:04:05.000000Z"


def lease(holder: str, version: str = "7", **spec: Any) -> Manifest:
    return {
        "metadata": {"resourceVersion": version},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15} | spec,
    }


def test_a_missing_a_released_and_an_own_lease_are_free() -> None:
    assert can_acquire(None, "me", None, 0.0)
    assert can_acquire(lease(""), "me", None, 0.0)
    assert can_acquire(lease("me"), "me", None, 0.0)


def test_anothers_lease_is_free_after_its_duration_without_renewal() -> None:
    assert not can_acquire(lease("you"), "me", None, 0.0)
    assert not can_acquire(lease("you"), "me", ObservedLease("7", 100.0), 100.0 + LEASE_DURATION_S - 1)
    assert can_acquire(lease("you"), "me", ObservedLease("7", 100.0), 100.0 + LEASE_DURATION_S)


def test_a_renewed_lease_is_not_free() -> None:
    assert not can_acquire(lease("you", version="8"), "me", ObservedLease("7", 100.0), 1000.0)


def test_a_takeover_counts_as_a_transition_and_a_renewal_does_not() -> None:
    over = acquired_lease(lease("you", leaseTransitions=2, acquireTime="then"), REF, "me", NOW)
    assert over["spec"]["leaseTransitions"] == 3
    assert over["spec"]["acquireTime"] == NOW
    assert over["metadata"]["resourceVersion"] == "7"
    again = acquired_lease(over, REF, "me", "later")
    assert again["spec"]["leaseTransitions"] == 3
    assert again["spec"]["acquireTime"] == NOW
    assert again["spec"]["renewTime"] == "later"


def test_a_new_lease_has_no_version() -> None:
    assert "resourceVersion" not in acquired_lease(None, REF, "me", NOW)["metadata"]


class Cluster:
    """Keeps a Lease. failing: what the next requests fail by, in turn. takes_s: of each request."""

    def __init__(self, lease: Manifest | None = None) -> None:
        self.lease, self.failing, self.takes_s = lease, list[Exception](), 0.0
        self.written_s: list[float] = []
        self.refusing: Exception | None = None

    async def get(self, _: Ref) -> Manifest | None:
        await asyncio.sleep(self.takes_s)
        if self.failing:
            raise self.failing.pop(0)
        return deepcopy(self.lease)

    async def put(self, lease: Manifest) -> Manifest:
        if self.refusing is not None:
            raise self.refusing
        version = str(int(lease["metadata"].get("resourceVersion", "0")) + 1)
        self.lease = {**lease, "metadata": {**lease["metadata"], "resourceVersion": version}}
        self.written_s.append(now_s())
        return self.lease

    create = put

    @property
    def holder(self) -> str:
        assert self.lease is not None
        return str(self.lease["spec"]["holderIdentity"])


def leading(cluster: Cluster, changes: list[bool]) -> Leadership:
    api: Any = cluster
    return Leadership(api, REF, "me", changes.append, now_s)


def test_a_free_lease_is_taken_renewed_and_finally_released() -> None:
    async def story() -> None:
        cluster, changes = Cluster(), list[bool]()
        running = asyncio.create_task(leading(cluster, changes).run())
        await asyncio.sleep(3 * RETRY_PERIOD_S + 0.5)
        assert (cluster.holder, changes) == ("me", [True])
        assert cluster.written_s == pytest.approx(
            [0.0, RETRY_PERIOD_S, 2 * RETRY_PERIOD_S, 3 * RETRY_PERIOD_S]
        )
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert (cluster.holder, changes) == ("", [True, False])

    run(story())


def test_a_standby_reads_the_lease_twice_as_often_and_releases_nothing() -> None:
    async def story() -> None:
        cluster, changes = Cluster(lease("you")), list[bool]()
        leadership = leading(cluster, changes)
        running = asyncio.create_task(leadership.run())
        await asyncio.sleep(LEASE_DURATION_S - 0.5)
        assert leadership.pause_s == RETRY_PERIOD_S / 2
        assert (cluster.holder, changes) == ("you", [])
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert (cluster.holder, changes) == ("you", [])

    run(story())


def test_a_holder_that_cannot_renew_stops_writing_in_time() -> None:
    async def story() -> None:
        cluster, changes = Cluster(), list[bool]()
        leadership = leading(cluster, changes)
        await leadership.attempt()
        await asyncio.sleep(RENEW_DEADLINE_S - 0.5)
        leadership.check()
        await asyncio.sleep(0.5)
        with pytest.raises(LeaseLost, match=f"was not renewed for {RENEW_DEADLINE_S:g} s"):
            leadership.check()
        assert changes == [True, False]

    run(story())


def test_a_failed_attempt_has_no_effect_until_the_lease_expires() -> None:
    async def story() -> None:
        cluster, changes = Cluster(), list[bool]()
        leadership = leading(cluster, changes)
        await leadership.attempt()
        for _ in range(2):
            cluster.failing.append(ApiUnreachable("no answer"))
            await asyncio.sleep(RENEW_DEADLINE_S / 2)
            await leadership.attempt()
        assert changes == [True, False]

    run(story())


def test_an_attempt_ends_before_the_lease_expires() -> None:
    async def story() -> None:
        cluster, changes = Cluster(), list[bool]()
        cluster.takes_s = RENEW_DEADLINE_S
        await leading(cluster, changes).attempt()
        assert now_s() == pytest.approx(RENEW_DEADLINE_S - RETRY_PERIOD_S)
        assert changes == []

    run(story())


def test_a_leader_that_finds_another_holder_stops_leading() -> None:
    async def story() -> None:
        cluster, changes = Cluster(), list[bool]()
        leadership = leading(cluster, changes)
        await leadership.attempt()
        cluster.lease = lease("you", version="9")
        await leadership.attempt()
        assert (cluster.holder, changes) == ("you", [True, False])

    run(story())


@pytest.mark.parametrize(("code", "changes"), [(409, [True, False]), (500, [True])])
def test_only_a_holder_that_was_replaced_stops_immediately(code: int, changes: list[bool]) -> None:
    async def story() -> None:
        cluster, found = Cluster(), list[bool]()
        leadership = leading(cluster, found)
        await leadership.attempt()
        cluster.refusing = ApiStatusError(code, "", "the object has been modified")
        await leadership.attempt()
        assert found == changes

    run(story())


@pytest.mark.parametrize("trouble", [ApiUnreachable("no answer"), ApiStatusError(403, "Forbidden", "no")])
def test_a_lease_that_cannot_be_released_does_not_delay_the_stop(trouble: Exception) -> None:
    async def story() -> None:
        cluster, changes = Cluster(), list[bool]()
        running = asyncio.create_task(leading(cluster, changes).run())
        await asyncio.sleep(0.5)
        cluster.failing.append(trouble)
        running.cancel()
        (end,) = await asyncio.gather(running, return_exceptions=True)
        assert isinstance(end, asyncio.CancelledError)
        assert changes == [True, False]

    run(story())


@pytest.mark.parametrize("there", [None, lease("you", version="9")], ids=["deleted", "taken"])
def test_a_lease_that_is_no_longer_held_is_not_released(there: Manifest | None) -> None:
    async def story() -> None:
        cluster, changes = Cluster(), list[bool]()
        running = asyncio.create_task(leading(cluster, changes).run())
        await asyncio.sleep(0.5)
        cluster.lease = there
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert cluster.lease == there
        assert len(cluster.written_s) == 1

    run(story())


def test_releasing_a_lease_ends_in_time() -> None:
    async def story() -> None:
        cluster, changes = Cluster(), list[bool]()
        running = asyncio.create_task(leading(cluster, changes).run())
        await asyncio.sleep(0.5)
        cluster.takes_s = 1000.0
        running.cancel()
        await asyncio.sleep(RETRY_PERIOD_S + 0.1)
        assert running.done()

    run(story())


def test_the_clock_of_leases_never_goes_back() -> None:
    before_s = elapsed_s()
    assert before_s > 0
    assert elapsed_s() >= before_s
