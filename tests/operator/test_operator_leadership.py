"""Two operators that share a Lease, in virtual time: skewed clocks, lost answers, frozen processes."""

import asyncio
import random
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from penstock_operator.cluster.api_client import ApiStatusError, ApiUnreachable
from penstock_operator.cluster.kinds import LEASE
from penstock_operator.cluster.lease import LEASE_DURATION_S, RENEW_DEADLINE_S, Leadership, LeaseLost
from penstock_operator.manifests.manifest import Manifest, Ref
from virtual_time import now_s, run

REF = Ref(LEASE.api_version, LEASE.kind, "penstock", "penstock-operator")
LONGEST_S = 300.0
QUIET_S = 60.0
"""Phase without failures, at whose end one operator leads."""

TRANSIT_S = 1.0
"""Longest that a write takes from being sent to being done."""


@dataclass
class Cluster:
    """The Lease, and when a write came last."""

    lease: Manifest | None = None
    version: int = 0
    written_s: float = 0.0

    def holder(self) -> str:
        return "" if self.lease is None else str(self.lease["spec"]["holderIdentity"])

    def store(self, lease: Manifest) -> None:
        reported = lease["metadata"].get("resourceVersion")
        there = None if self.lease is None else self.lease["metadata"]["resourceVersion"]
        if reported != there:
            raise ApiStatusError(409, "Conflict", "somebody was faster")
        self.version += 1
        metadata = lease["metadata"] | {"resourceVersion": str(self.version)}
        self.lease = {**lease, "metadata": metadata}


@dataclass
class Process:
    """One operator with its own clock rate. While it is frozen, none of its code runs."""

    name: str
    cluster: Cluster
    chance: random.Random
    rate: float
    offset_s: float
    frozen_until_s: float = 0.0

    def clock_s(self) -> float:
        return self.offset_s + now_s() * self.rate

    async def wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if now_s() < self.frozen_until_s:
            await self.wait(self.frozen_until_s - now_s())

    async def get(self, _: Ref) -> Manifest | None:
        await self._transit()
        found = self.cluster.lease
        await self._transit()
        return found

    async def put(self, lease: Manifest) -> Manifest:
        await self._transit()
        self.cluster.store(lease)
        await self._transit()
        return lease

    create = put

    async def _transit(self) -> None:
        """To the API server or back: it takes a while, and may fail."""
        quiet = now_s() > LONGEST_S - QUIET_S
        await self.wait(self.chance.choice([0.001, 0.01, 0.1 if quiet else 5.0]))
        if not quiet and self.chance.random() < 0.2:
            raise ApiUnreachable("lost on its way")

    async def freezes(self) -> None:
        while now_s() < LONGEST_S - QUIET_S:
            await asyncio.sleep(self.chance.uniform(1, 40))
            self.frozen_until_s = now_s() + self.chance.uniform(0, 2 * LEASE_DURATION_S)

    async def leads(self, leadership: Leadership) -> None:
        while True:
            await leadership.attempt()
            await self.wait(leadership.pause_s / self.rate)

    async def writes(self, leadership: Leadership) -> None:
        """Write whenever that is allowed. Writes arrive after a delay."""
        while True:
            await self.wait(self.chance.uniform(0.01, 1.0))
            try:
                leadership.check()
            except LeaseLost:
                continue
            _ = asyncio.get_running_loop().call_later(self.chance.uniform(0, TRANSIT_S), self._arrive)

    def _arrive(self) -> None:
        self.cluster.written_s = now_s()
        assert self.cluster.holder() == self.name, f"{self.name} writes, {self.cluster.holder()} leads"


async def two_operators(seed: int, rates: tuple[float, float]) -> Cluster:
    """Run two operators against one Lease; fails where one writes while the other holds it."""
    cluster, chance, errors = Cluster(), random.Random(seed), list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    running: list[asyncio.Task[None]] = []
    for name, rate in zip("ab", rates, strict=True):
        one = Process(name, cluster, chance, rate, chance.uniform(0, 1e6))
        leadership = Leadership(one, REF, name, lambda _: None, one.clock_s)  # type: ignore[arg-type]
        todo: list[Coroutine[Any, Any, None]] = [
            one.freezes(),
            one.leads(leadership),
            one.writes(leadership),
        ]
        running += (asyncio.create_task(each) for each in todo)
    await asyncio.sleep(LONGEST_S)
    for task in running:
        task.cancel()
    ends = await asyncio.gather(*running, return_exceptions=True)
    assert not errors, errors[0]["exception"]
    assert not [end for end in ends if isinstance(end, Exception)]
    return cluster


RATES = st.floats(0.85, 1.15)
"""Rates of clocks, at most a third apart, as RENEW_DEADLINE_S and LEASE_DURATION_S allow."""


@given(st.integers(0, 2**32), st.tuples(RATES, RATES))
def test_only_the_holder_of_the_lease_ever_writes(seed: int, rates: tuple[float, float]) -> None:
    cluster = run(two_operators(seed, rates))
    assert cluster.written_s > LONGEST_S - 2 * TRANSIT_S, "there is no leader at the end"


def test_the_margin_covers_clocks_whose_rates_differ_by_a_third() -> None:
    assert LEASE_DURATION_S / RENEW_DEADLINE_S > 1.15 / 0.85 + TRANSIT_S / RENEW_DEADLINE_S
