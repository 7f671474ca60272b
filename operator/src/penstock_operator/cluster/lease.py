"""Leader election among several operators by a Lease, as usual in Kubernetes.

The leader renews the Lease. Another operator takes it after it has seen it unchanged for its whole duration.
Each operator measures that on its own clock, so clocks need not agree; only their rates must, within a third.

A leader may write until `RENEW_DEADLINE_S` after the request of its last successful renewal. Others wait for
`LEASE_DURATION_S` after they saw that renewal, which is later. Each write is checked against this deadline
when it is sent (`cluster/api_client.py`), because a process that was frozen continues its reconciliations
after another operator has taken the Lease. The margin, `LEASE_DURATION_S - RENEW_DEADLINE_S`, is the time
that a write may take from the check to its effect. No Lease can bound a freeze between the check and the
system call after it; at most one write is late, and the new leader's next reconciliation corrects it.

A stopping operator releases the Lease, so that the next one takes over immediately.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog

from penstock_operator.cluster.api_client import Api, ApiStatusError, ApiUnreachable
from penstock_operator.cluster.kinds import LEASE
from penstock_operator.manifests.manifest import Manifest, Ref

log = structlog.get_logger()

LEASE_DURATION_S = 15.0
"""Seconds after which another operator may take a Lease that is not renewed."""
RETRY_PERIOD_S = 4.0
"""Seconds between renewals."""
RENEW_DEADLINE_S = 10.0
"""Seconds after its last renewal for which a leader may write; shorter than `LEASE_DURATION_S`."""

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux's monotonic clock stops while a machine is suspended; this one does not."""


class LeaseLost(Exception):
    """This operator may not write, because it may not hold the Lease any more."""


def elapsed_s() -> float:
    """Return the time of a monotonic clock that also advances while the machine is suspended.

    The event loop's clock is read once per iteration, so it is late after a freeze.
    """
    return time.clock_gettime(_CLOCK)


@dataclass(slots=True)
class ObservedLease:
    """A Lease's last version. seen_s: when this process first saw it, on its own clock."""

    version: str
    seen_s: float


def can_acquire(lease: Manifest | None, identity: str, observed: ObservedLease | None, now_s: float) -> bool:
    """Return whether the Lease can be taken: absent, released, already held, or expired."""
    if lease is None:
        return True
    spec = lease.get("spec", {})
    if spec.get("holderIdentity", "") in ("", identity):
        return True
    unchanged = observed is not None and observed.version == lease["metadata"]["resourceVersion"]
    duration_s = float(spec.get("leaseDurationSeconds", LEASE_DURATION_S))
    return unchanged and observed is not None and now_s - observed.seen_s >= duration_s


def acquired_lease(lease: Manifest | None, ref: Ref, identity: str, now: str) -> Manifest:
    """Return the Lease as its holder writes it. Its resource version makes the write conditional."""
    old_spec: dict[str, Any] = {} if lease is None else lease.get("spec", {})
    was_holder = old_spec.get("holderIdentity") == identity
    spec = {
        "holderIdentity": identity,
        "leaseDurationSeconds": int(LEASE_DURATION_S),
        "renewTime": now,
        "acquireTime": old_spec.get("acquireTime", now) if was_holder else now,
        "leaseTransitions": old_spec.get("leaseTransitions", 0) + (0 if was_holder else 1),
    }
    metadata = {"name": ref.name, "namespace": ref.namespace}
    if lease is not None:
        metadata["resourceVersion"] = lease["metadata"]["resourceVersion"]
    return {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": metadata, "spec": spec}


class Leadership:
    """Leader election of this operator.

    api: client whose writes are not checked against the Lease. on_change: called with whether this is the
        leader.
    """

    def __init__(
        self,
        api: Api,
        ref: Ref,
        identity: str,
        on_change: Callable[[bool], None],
        clock_s: Callable[[], float] = elapsed_s,
    ) -> None:
        self._api, self._ref, self._identity = api, ref, identity
        self._on_change, self._clock_s = on_change, clock_s
        self._is_leader = False
        self._renewed_s = 0.0
        self._observed: ObservedLease | None = None

    async def run(self) -> None:
        """Acquire and renew the Lease until cancelled; then release it."""
        try:
            while True:
                await self.attempt()
                await asyncio.sleep(self.pause_s)
        finally:
            if self._is_leader:
                self._set_leader(False)
                await asyncio.shield(self._release())

    @property
    def pause_s(self) -> float:
        """Seconds until the next attempt."""
        return RETRY_PERIOD_S if self._is_leader else RETRY_PERIOD_S / 2

    def check(self) -> None:
        """Return if this operator may write now. Raises LeaseLost."""
        if self._is_leader and self._clock_s() - self._renewed_s >= RENEW_DEADLINE_S:
            self._set_leader(False)
        if not self._is_leader:
            raise LeaseLost(f"{self._ref} is not held, or was not renewed for {RENEW_DEADLINE_S:g} s")

    async def attempt(self) -> None:
        """Take the Lease if it is free, or renew it if it is held."""
        now_s = self._clock_s()
        try:
            async with asyncio.timeout(RENEW_DEADLINE_S - RETRY_PERIOD_S):
                if await self._try_acquire(now_s):
                    self._renewed_s = now_s
                    self._set_leader(True)
                elif self._is_leader:
                    self._set_leader(False)
        except (ApiStatusError, ApiUnreachable, TimeoutError) as error:
            log.warning("lease not renewed", lease=str(self._ref), error=str(error))
        with contextlib.suppress(LeaseLost):
            self.check()

    async def _try_acquire(self, now_s: float) -> bool:
        lease = await self._api.get(self._ref)
        free = can_acquire(lease, self._identity, self._observed, now_s)
        if lease is not None:
            version = lease["metadata"]["resourceVersion"]
            if self._observed is None or self._observed.version != version:
                self._observed = ObservedLease(version, now_s)
        if not free:
            return False
        try:
            acquired = acquired_lease(lease, self._ref, self._identity, _now())
            await (self._api.create(acquired) if lease is None else self._api.put(acquired))
        except ApiStatusError as error:
            if error.code == 409:  # another operator was faster
                return False
            raise
        return True

    def _set_leader(self, is_leader: bool) -> None:
        if is_leader != self._is_leader:
            self._is_leader = is_leader
            log.info("became leader" if is_leader else "lost leadership", lease=str(self._ref))
            self._on_change(is_leader)

    async def _release(self) -> None:
        try:
            async with asyncio.timeout(RETRY_PERIOD_S):
                lease = await self._api.get(self._ref)
                if lease is not None and lease["spec"].get("holderIdentity") == self._identity:
                    lease["spec"]["holderIdentity"] = ""
                    await self._api.put(lease)
        except (ApiStatusError, ApiUnreachable, TimeoutError) as error:
            log.warning("lease not released", lease=str(self._ref), error=str(error))


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
