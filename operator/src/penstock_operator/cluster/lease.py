"""Which of several operators acts: the one that holds a Lease, as everywhere in Kubernetes.

The holder renews; who finds that the Lease was not renewed for its duration takes it. What counts is how
long one has oneself seen it unchanged, so clocks need not agree. A holder that cannot renew stops acting
before others may begin, and one that is told to stop gives the Lease back, so that the next begins at once.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog

from penstock_operator.cluster.api import Api, ApiRefused, ApiUnreachable
from penstock_operator.cluster.kinds import LEASE
from penstock_operator.manifest import Manifest, Ref

log = structlog.get_logger()

DURATION_S = 15.0
RENEW_S = 4.0
GIVE_UP_S = 10.0
"""A holder that could not renew for so long stops acting: well before others may begin."""


@dataclass(slots=True)
class Sighting:
    """A Lease's last version, and since when it has been the last. since_s: on this process' clock."""

    version: str
    since_s: float


def may_take(lease: Manifest | None, me: str, sighting: Sighting | None, now_s: float) -> bool:
    """Whether the Lease is free: absent, given back, mine already, or silent for its whole duration."""
    if lease is None:
        return True
    spec = lease.get("spec", {})
    if spec.get("holderIdentity", "") in ("", me):
        return True
    unchanged = sighting is not None and sighting.version == lease["metadata"]["resourceVersion"]
    duration_s = float(spec.get("leaseDurationSeconds", DURATION_S))
    return unchanged and sighting is not None and now_s - sighting.since_s >= duration_s


def taken(lease: Manifest | None, ref: Ref, me: str, now: str) -> Manifest:
    """The Lease as its holder writes it. Its resource version stays: it only counts if nobody was faster."""
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
    """This operator's place among those that share a Lease. changed: called with whether it leads now."""

    def __init__(self, api: Api, ref: Ref, me: str, changed: Callable[[bool], None]) -> None:
        self._api, self._ref, self._me, self._changed = api, ref, me, changed
        self._leads = False
        self._renewed_s = 0.0
        self._sighting: Sighting | None = None

    async def run(self) -> None:
        """Seek and keep the Lease until cancelled; then give it back."""
        try:
            while True:
                await self._once()
                await asyncio.sleep(RENEW_S if self._leads else RENEW_S / 2)
        finally:
            if self._leads:
                await asyncio.shield(self._give_back())

    async def _once(self) -> None:
        now_s = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(GIVE_UP_S - RENEW_S):
                if await self._try(now_s):
                    self._renewed_s = now_s
                    self._become(True)
                elif self._leads:
                    self._become(False)
        except (ApiRefused, ApiUnreachable, TimeoutError) as error:
            log.warning("lease not renewed", lease=str(self._ref), error=str(error))
        if self._leads and asyncio.get_running_loop().time() - self._renewed_s >= GIVE_UP_S:
            self._become(False)

    async def _try(self, now_s: float) -> bool:
        lease = await self._api.get(self._ref)
        free = may_take(lease, self._me, self._sighting, now_s)
        if lease is not None:
            version = lease["metadata"]["resourceVersion"]
            if self._sighting is None or self._sighting.version != version:
                self._sighting = Sighting(version, now_s)
        if not free:
            return False
        try:
            mine = taken(lease, self._ref, self._me, _now())
            await (self._api.create(mine) if lease is None else self._api.put(mine))
        except ApiRefused as refused:
            if refused.code == 409:  # somebody was faster
                return False
            raise
        return True

    def _become(self, leads: bool) -> None:
        if leads != self._leads:
            self._leads = leads
            log.info("leads" if leads else "stands by", lease=str(self._ref))
            self._changed(leads)

    async def _give_back(self) -> None:
        try:
            async with asyncio.timeout(RENEW_S):
                lease = await self._api.get(self._ref)
                if lease is not None and lease["spec"].get("holderIdentity") == self._me:
                    lease["spec"]["holderIdentity"] = ""
                    await self._api.put(lease)
        except (ApiRefused, ApiUnreachable, TimeoutError) as error:
            log.warning("lease not given back", lease=str(self._ref), error=str(error))


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
