"""HTTP client for the demand pages of a pool's routers or sidecars: all at once, with a short timeout.

A pod that does not answer in time, or whose page is invalid, is left out of this reconciliation and logged
once. Status and autoscaling use the answers of the other pods.
"""

import asyncio
from collections.abc import Sequence

import httpx2
import orjson
import structlog

from penstock_operator.demand.demand_page import DemandReport, parse_demand_page
from penstock_operator.manifests.manifest import Manifest
from penstock_operator.manifests.pods import is_ready

TIMEOUT_S = 2.0
"""Timeout of one pod's answer."""
MAX_ANSWER_BYTES = 4 * 2**20
"""Largest answer that is read; one of 32 tiers and 1,000 replicas has a tenth of it."""

log = structlog.get_logger()


class DemandClient:
    """One HTTP client for all pools."""

    def __init__(self) -> None:
        limits = httpx2.Limits(max_connections=64, max_keepalive_connections=0)
        self._http = httpx2.AsyncClient(timeout=TIMEOUT_S, limits=limits, trust_env=False)
        self._failing: set[str] = set()

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def fetch(self, pods: Sequence[Manifest], port: int) -> tuple[DemandReport, ...]:
        """Return the reports of all pods that are ready and answer at this port."""
        answers = await asyncio.gather(*(self._fetch_pod(pod, port) for pod in pods if is_ready(pod)))
        return tuple(answer for answer in answers if answer is not None)

    def _log_change(self, uid: str, name: str, error: str | None) -> None:
        """Log once when a pod stops answering, and once when it answers again."""
        if error is None and uid in self._failing:
            self._failing.discard(uid)
            log.info("demand is reported again", pod=name)
        elif error is not None and uid not in self._failing:
            self._failing.add(uid)
            log.warning("demand is not reported", pod=name, error=error)

    async def _fetch_pod(self, pod: Manifest, port: int) -> DemandReport | None:
        metadata, address = pod["metadata"], pod["status"]["podIP"]
        host = f"[{address}]" if ":" in address else address
        report, failure = None, None
        try:
            async with asyncio.timeout(TIMEOUT_S):
                page = await self._read(f"http://{host}:{port}/penstock/v1/demand")
            report = parse_demand_page(metadata["uid"], page)
        except (httpx2.HTTPError, OSError, TimeoutError) as error:
            failure = str(error).partition("\n")[0] or type(error).__name__
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            failure = f"its demand page is invalid: {error!r}"
        self._log_change(metadata["uid"], metadata["name"], failure)
        return report

    async def _read(self, url: str) -> dict[str, object]:
        async with self._http.stream("GET", url) as response:
            response.raise_for_status()
            body = bytearray()
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > MAX_ANSWER_BYTES:
                    raise ValueError(f"more than {MAX_ANSWER_BYTES} bytes")
            page: dict[str, object] = orjson.loads(body)
            return page
