"""Watches the replicas of a Service in a cluster.

    list ── all slices, at a version ──▶ watch from that version ── every change ──▶ …
      ▲                                              │
      └──────────── version expired (410) ───────────┘

A watch that ends or fails is continued from the last version received, so no change is missed. Slices are
listed again only if the server no longer has that version. Bookmarks keep the version recent while nothing
changes. While the API server is unavailable the last set remains in use, because replicas do not depend on
it.

A malformed EndpointSlice is ignored: the last valid one of its name remains in use.

All slices of a Service have its name in a label. A Service of a thousand endpoints has ten slices, so they
are listed in one response.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import orjson
import structlog

from penstock_routing.connections.api_server import ANSWER_S, AccessError
from penstock_routing.connections.backoff import Backoff
from penstock_routing.discovery.endpoint_slices import Slice, endpoints_of
from penstock_routing.discovery.endpoints import Endpoints, Service

WATCH_S = 60
"""Duration of one watch. It is short, so that a server that no longer responds is noticed soon. A watch ends
with a bookmark, and the next one continues from there."""

LINE_BYTES = 16 * 2**20
"""Longest event. Objects in etcd have at most 1.5 MB."""

GONE = 410

Client = Callable[[], httpx2.AsyncClient]
"""Creates a client of the API server. Blocks. Raises AccessError."""

log = structlog.get_logger()


class ApiServerError(Exception):
    """An error response of the API server. status: its HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class EndpointWatch:
    """A source of replica sets.

    connected: whether a watch is open. malformed: number of objects and responses that were unusable.
    """

    def __init__(self, service: Service, client: Client, backoff: Backoff) -> None:
        self.connected = False
        self.malformed = 0
        self._service, self._client, self._backoff = service, client, backoff
        self._path = f"/apis/discovery.k8s.io/v1/namespaces/{service.namespace}/endpointslices"
        self._label = {"labelSelector": f"kubernetes.io/service-name={service.name}"}
        self._slices: dict[str, Slice] = {}
        self._version: str | None = None  # of the slices; None if they must be listed
        self._last_why = ""

    async def sets(self) -> AsyncIterator[Endpoints]:
        """Yield every set that differs from the previous one, for as long as the caller iterates."""
        last: Endpoints | None = None
        async for _ in self._changes():
            now = endpoints_of(self._slices.values())
            if now != last:
                log.info(
                    "replica set changed",
                    service=str(self._service),
                    known=len(now),
                    changes=_changed(last or {}, now),
                )
                yield now
                last = now

    async def _changes(self) -> AsyncIterator[None]:
        """Yield after each list of the slices, and after each event of the watch."""
        while True:
            try:
                async with await asyncio.to_thread(self._client) as http:
                    if self._version is None:
                        self._version = await self._list(http)
                        yield
                    async for _ in self._watch(http, self._version):
                        yield
                why = ""  # the watch reached its duration
            except ApiServerError as refusal:
                why = str(refusal)
                if refusal.status == GONE:
                    self._version = None
            except (httpx2.HTTPError, httpx2.InvalidURL, AccessError) as error:
                why = f"{type(error).__name__}: {error}"
            except Exception as error:  # an invalid response must not end the router
                why = f"malformed answer: {type(error).__name__}: {error}"
                self._version, self.malformed = None, self.malformed + 1
            finally:
                self.connected = False
            await self._wait_to_retry(why)

    async def _wait_to_retry(self, why: str) -> None:
        if why and why != self._last_why:  # log once for each cause, not for each attempt
            log.warning("cluster not watched", service=str(self._service), why=why)
            self._last_why = why
        await asyncio.sleep(self._backoff.wait_s())

    async def _list(self, http: httpx2.AsyncClient) -> str:
        """List all slices. Return their version."""
        answer = await http.get(self._path, params=self._label, timeout=ANSWER_S)
        if answer.status_code != 200:
            raise ApiServerError(answer.status_code, _message(answer.content))
        listed = orjson.loads(answer.content)
        version = str(listed["metadata"]["resourceVersion"])
        items: list[Slice] = listed["items"]
        names = {_name_of(endpoint_slice) for endpoint_slice in items}
        self._slices = {
            name: endpoint_slice for name, endpoint_slice in self._slices.items() if name in names
        }
        for endpoint_slice in items:
            self._store(endpoint_slice)
        return version

    def _store(self, endpoint_slice: Slice) -> None:
        """Store a slice, unless it is malformed."""
        try:
            name = endpoint_slice["metadata"]["name"]
            endpoints_of((endpoint_slice,))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            self.malformed += 1
            why = f"malformed EndpointSlice {_name_of(endpoint_slice)}: {type(error).__name__}: {error}"
            if why != self._last_why:
                log.warning("EndpointSlice ignored", service=str(self._service), why=why)
                self._last_why = why
        else:
            self._slices[name] = endpoint_slice

    async def _watch(self, http: httpx2.AsyncClient, version: str) -> AsyncIterator[None]:
        """Apply every change since a version, and yield after each."""
        params = {
            **self._label,
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_S),
        }
        answer_s = httpx2.Timeout(ANSWER_S, read=WATCH_S + ANSWER_S)
        async with http.stream("GET", self._path, params=params, timeout=answer_s) as answer:
            if answer.status_code != 200:
                raise ApiServerError(answer.status_code, _message(await answer.aread()))
            self.connected = True
            if self._last_why:
                log.info("cluster watched again", service=str(self._service))
                self._last_why = ""
            async for line in _lines(answer):
                self._backoff.reset()
                self._apply(orjson.loads(line))
                yield

    def _apply(self, event: dict[str, Any]) -> None:
        kind, changed = event["type"], event["object"]
        if kind == "ERROR":
            raise ApiServerError(changed.get("code", 500), changed.get("message", "the watch failed"))
        if kind in ("ADDED", "MODIFIED"):
            self._store(changed)
        elif kind == "DELETED":
            self._slices.pop(changed["metadata"].get("name"), None)
        self._version = changed["metadata"]["resourceVersion"]


def _name_of(endpoint_slice: Any) -> str:
    """Return an object's name; empty if it has none."""
    metadata = endpoint_slice.get("metadata") if isinstance(endpoint_slice, dict) else None
    return str(metadata.get("name")) if isinstance(metadata, dict) else ""


async def _lines(answer: httpx2.Response) -> AsyncIterator[bytes]:
    """Yield the lines of a stream. Raises ApiServerError for a line that is too long."""
    held = bytearray()
    async for chunk in answer.aiter_bytes():
        *whole, rest = chunk.split(b"\n")
        for part in whole:
            yield bytes(held + part)
            held.clear()
        held += rest
        if len(held) > LINE_BYTES:
            raise ApiServerError(answer.status_code, f"an event of more than {LINE_BYTES} bytes")


def _message(body: bytes) -> str:
    """Return the API server's message, which names the permission that is missing."""
    try:
        return str(orjson.loads(body)["message"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return body[:200].decode(errors="replace")


def _changed(last: Endpoints, now: Endpoints) -> str:
    """Return the changes as text: `p-0=10.0.0.1:7000/in_service p-1=gone`."""
    current = [f"{name}={at.address}/{at.condition}" for name, at in now.items() if last.get(name) != at]
    return " ".join([*current, *(f"{name}=gone" for name in last if name not in now)])
