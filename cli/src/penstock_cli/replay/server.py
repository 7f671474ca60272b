"""The server to replay against: a Penstock pool, whose admin port reports its tiers, or any other server."""

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from penstock_core.domain.slo import Judge, Slo
from penstock_core.timing.time_model import from_json
from penstock_runtime.serving import is_loopback

from penstock_cli.failure import Failure
from penstock_cli.replay.tier_slos import TierSlos

REQUEST_TIMEOUT_S = 10.0
"""Timeout of each request that inspects the server."""
POOL_PAGE = "/penstock/v1/pool"


@dataclass(frozen=True, slots=True)
class ReplayServer:
    """A server to replay against.

    max_model_len: longest prompt and answer together, if the server reports it.
    policy, replicas, tier_slos: values of a Penstock pool; otherwise None and no SLOs.
    metrics: URLs of its sidecars' metrics, as far as they have any.
    """

    model: str
    simulated: bool
    max_model_len: int | None
    policy: str | None
    replicas: int | None
    tier_slos: TierSlos
    metrics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AdminPages:
    """The source of a pool's tiers and replicas: its router's admin port.

    session: sends no API key. url: URL of the admin port; None for the URL that a router on this machine
    reports.
    """

    session: aiohttp.ClientSession
    url: str | None

    async def pool(self, url: str, model: dict[str, Any]) -> dict[str, Any] | None:
        """Return the pool behind the API at `url`; None if unknown. model: the API's entry of the model.

        Raises Failure if the given admin URL is not one of a router.
        """
        if self.url is not None:
            pool = await _get(self.session, f"{self.url}{POOL_PAGE}")
            if pool is None:
                raise Failure(
                    f"--admin-url {self.url}: not the admin port of a router: it has no {POOL_PAGE}"
                )
            return pool
        admin_url = model.get("admin_url")
        if admin_url is None or not is_loopback(urlsplit(url).hostname or ""):
            return None
        with suppress(Failure):  # the API's port may be forwarded to this machine without the admin port
            pool = await _get(self.session, f"{admin_url}{POOL_PAGE}")
            return pool if pool is not None and pool.get("model") == model["id"] else None
        return None


async def inspect_server(
    session: aiohttp.ClientSession, url: str, model: str | None, admin: AdminPages
) -> ReplayServer:
    """Return what the server reports. Raises Failure if it is not an OpenAI-compatible server."""
    models = await _get(session, f"{url}/v1/models")
    if models is None:
        raise Failure(f"{url}: not an OpenAI-compatible server: it has no /v1/models")
    served = {entry["id"]: entry for entry in models.get("data", ()) if "id" in entry}
    name = model or next(iter(served), "")
    if name not in served:
        raise Failure(f'{url}: does not serve model "{name}"; it serves {", ".join(served) or "none"}')
    pool = await admin.pool(url, served[name])
    return ReplayServer(
        model=name,
        simulated=served[name].get("engine") == "simulated",
        max_model_len=served[name].get("max_model_len"),
        policy=None if pool is None else pool["policy"],
        replicas=None if pool is None else len(pool["replicas"]),
        tier_slos=TierSlos() if pool is None else _tier_slos(pool),
        metrics=() if pool is None else _metrics(pool),
    )


async def _get(session: aiohttp.ClientSession, url: str) -> dict[str, Any] | None:
    """Return the JSON object at a URL; None if it does not exist. Raises Failure."""
    try:
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)) as reply:
            if reply.status in {401, 403}:
                raise Failure(f"{url}: answers {reply.status}; give a key with --api-key")
            if reply.status != 200:
                return None
            found = await reply.json(content_type=None)
            return found if isinstance(found, dict) else None
    except aiohttp.InvalidURL:
        raise Failure(f"{url}: not a URL; write for example http://127.0.0.1:8080", bad_input=True) from None
    except aiohttp.ClientConnectorError as error:
        reason = os.strerror(error.os_error.errno) if error.os_error.errno else str(error.os_error)
        raise Failure(f"{url}: no server answers there ({reason})") from None
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise Failure(f"{url}: {error or 'no answer'}") from None


def _metrics(pool: dict[str, Any]) -> tuple[str, ...]:
    return tuple(url for replica in pool["replicas"] if (url := replica.get("metrics_url")))


def _tier_slos(pool: dict[str, Any]) -> TierSlos:
    model = pool.get("time_model")
    return TierSlos(
        slos={name: _slo(tier) for name, tier in pool["tiers"].items()},
        default_tier=pool["default_tier"],
        time_model=None if model is None else from_json(model),
    )


def _slo(tier: dict[str, Any]) -> Slo:
    return Slo(
        ttft_s=tier.get("ttft_s"),
        ttft_slowdown=tier.get("ttft_slowdown"),
        tpot_s=tier.get("tpot_s"),
        e2e_s=tier.get("e2e_s"),
        judge=Judge(tier.get("judge") or Judge.MEAN),
        answer_tpot_s=tier.get("answer_tpot_s"),
    )
