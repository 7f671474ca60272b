"""Drains the Envoy beside a picker that is stopping.

    /healthcheck/fail ─▶ wait until proxies have removed it ─▶ /drain_listeners ─▶ wait for its open requests

Envoy itself cuts all streams on SIGTERM, so it must be stopped only after the drain. The picker continues to
answer meanwhile. Envoy's administration interface is a Unix socket that only the two processes can reach.
"""

import asyncio
import re
from pathlib import Path
from time import monotonic

import httpx2
import structlog

ANSWER_S = 2.0
"""Timeout of one request to Envoy's administration interface."""
POLL_S = 0.05
"""Seconds between reads of Envoy's open requests."""
ACTIVE = re.compile(rb"^http\.api\.downstream_rq_active: (\d+)$", re.MULTILINE)

log = structlog.get_logger()


def admin_client(socket: Path) -> httpx2.AsyncClient:
    """Return a client of Envoy's administration interface."""
    transport = httpx2.AsyncHTTPTransport(uds=str(socket))
    return httpx2.AsyncClient(transport=transport, base_url="http://envoy", timeout=ANSWER_S)


async def drain_envoy(socket: Path, lame_duck_s: float, drain_s: float) -> None:
    """Drain Envoy, and return when it has no open requests or `drain_s` is over.

    lame_duck_s: Envoy first serves for this long, while its readiness fails and responses close connections.
    """
    async with admin_client(socket) as admin:
        try:
            await post(admin, "/healthcheck/fail")
            await asyncio.sleep(min(lame_duck_s, drain_s))
            await post(admin, "/drain_listeners")
            left = await _wait_until_idle(admin, drain_s)
        except httpx2.HTTPError as error:  # Envoy has ended, or was never started
            log.warning("envoy not drained", why=f"{type(error).__name__}: {error}")
        else:
            log.info("envoy drained", unfinished=left)


async def _wait_until_idle(admin: httpx2.AsyncClient, drain_s: float) -> int:
    """Wait until Envoy has no open requests. Return how many are left."""
    give_up_s = monotonic() + drain_s
    while left := await _open_requests(admin):
        if monotonic() > give_up_s:
            break
        await asyncio.sleep(POLL_S)
    return left


async def _open_requests(admin: httpx2.AsyncClient) -> int:
    page = await admin.get("/stats", params={"filter": "^http.api.downstream_rq_active$"})
    found = ACTIVE.search(page.content)
    return 0 if found is None else int(found[1])


async def post(admin: httpx2.AsyncClient, path: str) -> None:
    """Send a command to Envoy. Raises httpx2.HTTPError, also for an error status."""
    (await admin.post(path)).raise_for_status()
