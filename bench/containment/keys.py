"""Measures how soon a revoked key is rejected and how exact limits are, with one router and with three."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
from containment.report import GoalRow, row
from live.pool import LivePool
from live.redis import PROGRAM, RedisServer
from patience import until

REVOKED_S, REVOCATIONS = 5.0, 5
LIMIT, SENT = 90, 240
ROUTERS = ("main", "second", "third")
SHARED_ERROR = 0.05


def measured(folder: Path) -> list[GoalRow]:
    """Measure both, and return the rows."""
    keys = {name: folder / f"{name}.txt" for name in ("revoked", "requests", "concurrent")}
    for name, file in keys.items():
        file.write_text(f"key-{name}\n")
    pool = LivePool(folder, 1, applications=[_application(name, file) for name, file in keys.items()])
    redis = RedisServer(folder)
    try:
        pool.open()
        rows = [_revocation(pool, keys["revoked"]), *_exact(pool, ["main"], "one router", 0.0)]
        if PROGRAM is None:
            return [*rows, row("limits on three routers", f"± {SHARED_ERROR:.0%}", "no redis-server", False)]
        redis.start()
        _share(pool, redis, folder)
        return [*rows, *_exact(pool, ROUTERS, "three routers", SHARED_ERROR)]
    finally:
        pool.close()
        redis.kill()


LIMITS: dict[str, dict[str, int]] = {
    "revoked": {},
    "requests": {"requestsPerMinute": LIMIT},
    "concurrent": {"concurrentRequests": LIMIT},
}


def _application(name: str, keys: Path) -> dict[str, Any]:
    limits = {"limits": LIMITS[name]} if LIMITS[name] else {}
    return {"name": name, "tier": "chat", "keys": {"file": str(keys)}, **limits}


def _share(pool: LivePool, redis: RedisServer, folder: Path) -> None:
    """Restart three routers, which share limits through Redis."""
    url = folder / "redis-url"
    url.write_text(f"{redis.url}\n")
    for name in ROUTERS[1:]:
        pool.start_router(name)
    for name in ROUTERS:
        pool.start("router", name, "--redis-url-file", str(url))
    for name in ROUTERS:
        until(lambda name=name: pool.ready_replicas(name) == set(pool.replicas), f"{name} ready")  # type: ignore[misc]
        until(lambda name=name: pool.router_value("penstock_router_limits_shared", name) == 1, name)  # type: ignore[misc]


def _revocation(pool: LivePool, keys: Path) -> GoalRow:
    """Revoke and restore the key a few times, and return a row with the longest time that it still worked."""
    took_s = []
    with httpx2.Client(headers={"authorization": "Bearer key-revoked"}, timeout=60) as client:

        def status() -> int:
            return client.get(f"{pool.url()}/v1/models").status_code

        for _ in range(REVOCATIONS):
            until(lambda: status() == 200, "the key works")
            keys.write_text("")
            began_s = time.monotonic()
            until(lambda: status() == 401, "the key is refused")
            took_s.append(time.monotonic() - began_s)
            keys.write_text("key-revoked\n")
    output = f"{max(took_s):.2f} s at most, of {REVOCATIONS} revocations"
    return row("a revoked key is refused", f"within {REVOKED_S:g} s", output, max(took_s) <= REVOKED_S)


def _exact(pool: LivePool, routers: Sequence[str], where: str, error: float) -> list[GoalRow]:
    rows = []
    for name, limit in (("requests", "requests a minute"), ("concurrent", "concurrent requests")):
        statuses = asyncio.run(_statuses(pool, routers, f"key-{name}"))
        admitted = statuses[200]
        met = abs(admitted - LIMIT) <= error * LIMIT and statuses[200] + statuses[429] == SENT
        goal = f"{LIMIT}" + (f" ± {error:.0%}" if error else "")
        rows.append(row(f"{limit} admitted on {where}, {SENT} sent at once", goal, f"{admitted}", met))
    return rows


async def _statuses(pool: LivePool, routers: Sequence[str], key: str) -> Counter[int]:
    """Send all requests at once, to the routers in turn. Each takes longer than the arrival of all."""
    body = {"model": pool.model, "prompt": "hello", "max_tokens": 600, "ignore_eos": True}
    headers = {"authorization": f"Bearer {key}"}
    async with httpx2.AsyncClient(headers=headers, timeout=120, limits=httpx2.Limits()) as client:
        urls = [f"{pool.url(routers[number % len(routers)])}/v1/completions" for number in range(SENT)]
        answers = await asyncio.gather(*(client.post(url, json=body) for url in urls))
    return Counter(answer.status_code for answer in answers)
