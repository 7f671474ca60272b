"""Restarts an Envoy that an earlier picker has drained.

    picker gets SIGTERM alone ─▶ drains Envoy ─▶ next picker starts ─▶ /server_info: DRAINING ─▶ /quitquitquit

A drained Envoy has closed its listeners and cannot open them again, so it must end: its supervisor, which is
`penstock up` or the kubelet, starts it again. This process is not ready until Envoy is live. Only the first
state that a picker reads counts: an Envoy that is drained later, by hand, is left alone.
"""

import asyncio
import re
from contextlib import suppress
from pathlib import Path

import httpx2
import structlog

from penstock_picker.envoy_drain import admin_client, drain_envoy, post

CHECK_S = 0.1
"""Seconds between reads of Envoy's state."""
DRAINING, LIVE = b"DRAINING", b"LIVE"
STATE = re.compile(rb'^ *"state": *"(\w+)"', re.MULTILINE)

log = structlog.get_logger()


class DrainedEnvoy:
    """The Envoy beside this picker, which may be drained when the picker starts.

    drain_s: longest wait for its last requests before it is ended.
    unready: why Envoy serves no requests; None if it does, or is not started yet.
    """

    def __init__(self, socket: Path, drain_s: float) -> None:
        self._socket, self._drain_s = socket, drain_s
        self.unready: str | None = "the state of Envoy is not known yet"

    async def restart(self) -> None:
        """If Envoy is drained, end it and wait until it is live again. Then wait until cancelled."""
        async with admin_client(self._socket) as admin:
            if await self._first_state(admin) == DRAINING:
                await self._restart(admin)
        self.unready = None
        await asyncio.Event().wait()

    async def _first_state(self, admin: httpx2.AsyncClient) -> bytes:
        """Wait until Envoy has started, which is no reason to be unready. Return its state."""
        while (state := await _state(admin)) is None:
            self.unready = None
            await asyncio.sleep(CHECK_S)
        return state

    async def _restart(self, admin: httpx2.AsyncClient) -> None:
        self.unready = "Envoy was drained by an earlier picker, and has to be restarted"
        log.warning("envoy is drained; restarting it")
        await drain_envoy(self._socket, 0.0, self._drain_s)
        while (state := await _state(admin)) != LIVE:
            if state == DRAINING:
                with suppress(httpx2.HTTPError):  # it ends before it answers, or is asked again
                    await post(admin, "/quitquitquit")
            await asyncio.sleep(CHECK_S)
        log.info("envoy restarted")


async def _state(admin: httpx2.AsyncClient) -> bytes | None:
    """Return Envoy's state; None if it does not answer."""
    try:
        page = await admin.get("/server_info")
    except httpx2.HTTPError:
        return None
    found = STATE.search(page.content)
    return None if found is None else found[1]
