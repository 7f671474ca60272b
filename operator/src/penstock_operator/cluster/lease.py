"""Leader election among several operators by a Lease, as usual in Kubernetes.

The holder renews the Lease. An operator that has seen it unchanged for its whole duration takes it. Each
measures that on its own clock, so clocks need not agree; only their rates have to, within a third.

A holder may write until `HOLD_S` after it asked for the last renewal that was granted. Others wait for
`DURATION_S` after they saw that renewal, which is later. Each write is checked against this bound when it is
sent (`cluster/api_client.py`), because a process that was frozen continues its reconciliations after another
operator has taken the Lease. The margin, `DURATION_S - HOLD_S`, is the time that a write may take from the
check to its effect. No Lease can bound a freeze between the check and the system call after it; at most one
write is late, which the new leader's next reconciliation corrects.

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

from penstock_operator.cluster.api_client import Api, ApiRefused, ApiUnreachable
from penstock_operator.cluster.kinds import LEASE
from penstock_operator.manifests.manifest import Manifest, Ref

log = structlog.get_logger()

DURATION_S = 15.0
"""Seconds after which another operator may take a Lease that is not renewed."""
RENEW_S = 4.0
"""Seconds between renewals."""
HOLD_S = 10.0
"""Seconds after its last renewal for which a holder may write; shorter than `DURATION_S`."""

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
    """A Lease's last version and when it was first seen. since_s: on this process's clock."""

    version: str
    since_s: float


def may_take(lease: Manifest | None, me: str, observed: ObservedLease | None, now_s: float) -> bool:
    """Return whether the Lease can be taken: absent, released, already held, or expired."""
    if lease is None:
        return True
    spec = lease.get("spec", {})
    if spec.get("holderIdentity", "") in ("", me):
        return True
    unchanged = observed is not None and observed.version == lease["metadata"]["resourceVersion"]
    duration_s = float(spec.get("leaseDurationSeconds", DURATION_S))
    return unchanged and observed is not None and now_s - observed.since_s >= duration_s


def taken(lease: Manifest | None, ref: Ref, me: str, now: str) -> Manifest:
    """Return the Lease as its holder writes it. Its resource version makes the write conditional."""
    before: dict[str, Any] = {} if lease is None else lease.get("spec", {})
    held = before.get("holderIdentity") == me
    spec = {
        "holderIdentity": me,
        "leaseDurationSeconds": int(DURATION_S),
        "renewTime": now,
        "acquireTime": before.get("acquireTime", now) if held else now,
        "leaseTransitions": before.get("leaseTransitions", 0) + (0 if held else 1),
    }
    metadata = {"name": ref.name, "namespace": ref.namespace}
    if lease is not None:
        metadata["resourceVersion"] = lease["metadata"]["resourceVersion"]
    return {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": metadata, "spec": spec}


class Leadership:
    """Leader election of this operator.

    api: client whose writes are not checked against the Lease. changed: called with whether this is the
        leader.
    """

    def __init__(
        self,
        api: Api,
        ref: Ref,
        me: str,
        changed: Callable[[bool], None],
        now_s: Callable[[], float] = elapsed_s,
    ) -> None:
        self._api, self._ref, self._me, self._changed, self._now_s = api, ref, me, changed, now_s
        self._leads = False
        self._renewed_s = 0.0
        self._observed: ObservedLease | None = None

    async def run(self) -> None:
        """Acquire and renew the Lease until cancelled; then release it."""
        try:
            while True:
                await self.attempt()
                await asyncio.sleep(self.pause_s)
        finally:
            if self._leads:
                self._become(False)
                await asyncio.shield(self._give_back())

    @property
    def pause_s(self) -> float:
        """Seconds until the next attempt."""
        return RENEW_S if self._leads else RENEW_S / 2

    def check(self) -> None:
        """Return if this operator may write now. Raises LeaseLost."""
        if self._leads and self._now_s() - self._renewed_s >= HOLD_S:
            self._become(False)
        if not self._leads:
            raise LeaseLost(f"{self._ref} is not held, or was not renewed for {HOLD_S:g} s")

    async def attempt(self) -> None:
        """Take the Lease if it is free, or renew it if it is held."""
        now_s = self._now_s()
        try:
            async with asyncio.timeout(HOLD_S - RENEW_S):
                if await self._try(now_s):
                    self._renewed_s = now_s
                    self._become(True)
                elif self._leads:
                    self._become(False)
        except (ApiRefused, ApiUnreachable, TimeoutError) as error:
            log.warning("lease not renewed", lease=str(self._ref), error=str(error))
        with contextlib.suppress(LeaseLost):
            self.check()

    async def _try(self, now_s: float) -> bool:
        lease = await self._api.get(self._ref)
        free = may_take(lease, self._me, self._observed, now_s)
        if lease is not None:
            version = lease["metadata"]["resourceVersion"]
            if self._observed is None or self._observed.version != version:
                self._observed = ObservedLease(version, now_s)
        if not free:
            return False
        try:
            mine = taken(lease, self._ref, self._me, _now())
            await (self._api.create(mine) if lease is None else self._api.put(mine))
        except ApiRefused as refused:
            if refused.code == 409:  # another operator was faster
                return False
            raise
        return True

    def _become(self, leads: bool) -> None:
        if leads != self._leads:
            self._leads = leads
            log.info("leads" if leads else "on standby", lease=str(self._ref))
            self._changed(leads)

    async def _give_back(self) -> None:
        try:
            async with asyncio.timeout(RENEW_S):
                lease = await self._api.get(self._ref)
                if lease is not None and lease["spec"].get("holderIdentity") == self._me:
                    lease["spec"]["holderIdentity"] = ""
                    await self._api.put(lease)
        except (ApiRefused, ApiUnreachable, TimeoutError) as error:
            log.warning("lease not released", lease=str(self._ref), error=str(error))


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
