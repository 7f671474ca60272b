"""HTTP connections of a router to its replicas' engines, and which engines it can reach.

An engine may be unreachable for this router: because a network policy is missing, the engine listens on its
own machine only, it requires another API key, or the router does not trust its certificate. Requests
to this engine then go through its sidecar, and the router tries again later.
"""

from math import inf

import structlog
from penstock_routing.replicas.replica_link import ReplicaLink
from penstock_routing.replicas.replica_set import ReplicaSet
from penstock_runtime.client_tls import Contexts
from penstock_runtime.clock import monotonic
from penstock_runtime.engine.http_client import EngineHttp

AGENT = "penstock-router"

CONNECT_S = 1.0
"""Timeout for a connection to an engine in the same network. It allows for one lost SYN."""

RETRY_S = 30.0
"""Time until an engine that could not be reached is tried again. Each try may cost a request `CONNECT_S`."""

log = structlog.get_logger()


class EngineAccess:
    """Connections of one router to engines.

    api_key: API key of the engines; empty if they have none.
    tls: for engines that serve TLS; None if the router cannot connect to those.
    """

    def __init__(self, replica_set: ReplicaSet, api_key: str, tls: Contexts | None = None) -> None:
        self._replica_set, self._api_key, self._tls = replica_set, api_key, tls
        self._engines: dict[str, EngineHttp] = {}
        self._retry_at_s: dict[str, float] = {}

    def reaches(self, link: ReplicaLink) -> bool:
        """Return whether a request may be sent to a replica's engine, as far as is known."""
        endpoint = link.description.engine_endpoint
        if endpoint is None or (link.description.engine_tls and self._tls is None):
            return False
        return monotonic() >= self._retry_at_s.get(endpoint, -inf)

    def engine(self, endpoint: str, *, tls: bool) -> EngineHttp:
        """Return the connections to an engine. tls: whether it serves TLS."""
        url = f"{'https' if tls else 'http'}://{endpoint}"
        engine = self._engines.get(url)
        if engine is None:
            self._forget_removed()
            engine = self._engines[url] = EngineHttp(
                url, AGENT, api_key=self._api_key, connect_s=CONNECT_S, tls=self._tls
            )
        return engine

    def unreachable(self, endpoint: str, cause: str) -> None:
        """Record that this router cannot reach an engine."""
        log.warning("engine not reachable: its sidecar forwards answers", engine=endpoint, cause=cause)
        self._retry_at_s[endpoint] = monotonic() + RETRY_S

    def close(self) -> None:
        """Close idle connections."""
        for engine in self._engines.values():
            engine.close()

    def _forget_removed(self) -> None:
        """Forget engines of replicas that have left the pool."""
        current = {link.description.engine_endpoint for link in self._replica_set.links}
        for url in [url for url in self._engines if url.partition("://")[2] not in current]:
            self._engines.pop(url).close()
        self._retry_at_s = {
            endpoint: retry_at_s for endpoint, retry_at_s in self._retry_at_s.items() if endpoint in current
        }
