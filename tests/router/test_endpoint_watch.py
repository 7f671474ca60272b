"""Watching a Service's endpoints on an API server that fails, loses versions and sends invalid events."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from random import Random
from typing import Any

import httpx2
import orjson
import pytest
from penstock_routing.connections.api_server import AccessError
from penstock_routing.connections.backoff import Backoff
from penstock_routing.discovery import endpoint_watch
from penstock_routing.discovery.endpoint_watch import EndpointWatch
from penstock_routing.discovery.endpoints import Endpoints, Service
from structlog.testing import capture_logs


def endpoint_slice(name: str, version: str = "2", **addresses: str) -> dict[str, Any]:
    endpoints = [{"addresses": [at], "targetRef": {"name": pod}} for pod, at in addresses.items()]
    metadata = {"name": name, "resourceVersion": version}
    ports = [{"name": "replica", "port": 7000}]
    return {"metadata": metadata, "addressType": "IPv4", "ports": ports, "endpoints": endpoints}


def change(kind: str, name: str, version: str = "2", **addresses: str) -> dict[str, Any]:
    return {"type": kind, "object": endpoint_slice(name, version, **addresses)}


def refused(status: int, output: str = "no") -> httpx2.Response:
    return httpx2.Response(status, json={"message": output})


class ApiServer:
    """One that answers lists and watches with what a test has written, one after the other.

    An exception is raised, an answer sent as it is; what else there is becomes an answer.
    """

    def __init__(self, lists: list[Any], watches: list[Any]) -> None:
        self._lists, self._watches = iter(lists), iter(watches)
        self.asked: list[httpx2.Request] = []

    @property
    def watched_from(self) -> list[str]:
        """The versions from which it was asked for changes."""
        params = [request.url.params for request in self.asked]
        return [each["resourceVersion"] for each in params if "watch" in each]

    @property
    def listed(self) -> int:
        return len(self.asked) - len(self.watched_from)

    def client(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(base_url="http://api", transport=httpx2.MockTransport(self._answer))

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append(request)
        watch = "watch" in request.url.params
        output = next(self._watches, []) if watch else next(self._lists)
        if isinstance(output, Exception):
            raise output
        if isinstance(output, httpx2.Response):
            return output
        if not watch:
            return httpx2.Response(200, content=orjson.dumps(output))
        return httpx2.Response(200, content=b"".join(orjson.dumps(event) + b"\n" for event in output))


def watch_of(server: ApiServer, backoff: Backoff | None = None) -> EndpointWatch:
    return EndpointWatch(Service("ns", "pool"), server.client, backoff or Backoff(Random(1), 0.0001, 0.001))


def watching(lists: list[Any], watches: list[Any]) -> EndpointWatch:
    return watch_of(ApiServer(lists, watches))


def listing(*items: Any) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": "1"}, "items": list(items)}


async def first_sets(watch: EndpointWatch, count: int) -> list[Endpoints]:
    sets: list[Endpoints] = []
    async with aclosing(_generator(watch)) as reported:
        async for one in reported:
            sets.append(one)
            if len(sets) == count:
                break
    return sets


async def _generator(watch: EndpointWatch) -> AsyncGenerator[Endpoints, None]:
    async for one in watch.sets():
        yield one


async def test_a_malformed_slice_in_a_list_is_passed_over() -> None:
    nonsense = [{"metadata": {"name": "b"}}, {"metadata": None}, "slice", 7, None]
    watch = watching([listing(*nonsense, endpoint_slice("a", p0="10.0.0.1"))], [])
    (reported,) = await first_sets(watch, 1)
    assert list(reported) == ["p0"]
    assert watch.malformed == 5


async def test_a_malformed_change_leaves_the_slices_earlier_endpoints_in_force() -> None:
    broken = endpoint_slice("a") | {"endpoints": [{"addresses": []}]}
    changes = [
        {"type": "MODIFIED", "object": broken},
        {"type": "ADDED", "object": endpoint_slice("b", p1="10.0.0.2")},
    ]
    watch = watching([listing(endpoint_slice("a", p0="10.0.0.1"))], [changes])
    _, reported = await first_sets(watch, 2)
    assert list(reported) == ["p0", "p1"]
    assert watch.malformed == 1


async def test_an_invalid_answer_is_requested_again() -> None:
    lists = [[], {"items": 3}, {"metadata": {"resourceVersion": "1"}, "items": 3}]
    watch = watching([*lists, listing(endpoint_slice("a", p0="10.0.0.1"))], [])
    (reported,) = await first_sets(watch, 1)
    assert list(reported) == ["p0"]
    assert watch.malformed == 3


async def test_an_invalid_event_restarts_the_watch() -> None:
    before, after = endpoint_slice("a", p0="10.0.0.1"), endpoint_slice("a", p0="10.0.0.9")
    watch = watching([listing(before), listing(after)], [[{"type": "ADDED"}]])
    _, reported = await first_sets(watch, 2)
    assert reported["p0"].address == "10.0.0.9:7000"
    assert watch.malformed == 1


A, B = endpoint_slice("a", p0="10.0.0.1"), endpoint_slice("b", p1="10.0.0.2")
P2 = change("ADDED", "c", "9", p2="10.0.0.3")
"""A change that a test waits for, after which all earlier changes have been applied."""


def names(sets: list[Endpoints]) -> list[list[str]]:
    return [list(one) for one in sets]


async def test_only_slices_of_this_service_are_requested() -> None:
    server = ApiServer([listing(A)], [[P2]])
    await first_sets(watch_of(server), 2)
    listed, watched = server.asked[:2]
    assert listed.url.path == watched.url.path == "/apis/discovery.k8s.io/v1/namespaces/ns/endpointslices"
    assert dict(listed.url.params) == {"labelSelector": "kubernetes.io/service-name=pool"}
    assert dict(watched.url.params) == {
        "labelSelector": "kubernetes.io/service-name=pool",
        "watch": "true",
        "resourceVersion": "1",
        "allowWatchBookmarks": "true",
        "timeoutSeconds": "60",
    }


async def test_a_list_has_a_short_timeout_and_a_watch_one_beyond_its_duration() -> None:
    server = ApiServer([listing(A)], [[P2]])
    await first_sets(watch_of(server), 2)
    waits = [request.extensions["timeout"]["read"] for request in server.asked[:2]]
    assert waits == [10, 70]


async def test_replicas_are_added_moved_and_removed_with_their_slices() -> None:
    changes = [
        change("ADDED", "b", p1="10.0.0.2"),
        change("MODIFIED", "a", p0="10.0.0.9"),
        change("DELETED", "b", p1="10.0.0.2"),
        change("DELETED", "unknown"),
        P2,
    ]
    sets = await first_sets(watching([listing(A)], [changes]), 5)
    assert names(sets) == [["p0"], ["p0", "p1"], ["p0", "p1"], ["p0"], ["p0", "p2"]]
    assert sets[2]["p0"].address == "10.0.0.9:7000"


async def test_an_unchanged_set_is_not_reported_again() -> None:
    again = [change("MODIFIED", "a", p0="10.0.0.1"), change("BOOKMARK", "", "5"), P2]
    assert names(await first_sets(watching([listing(A)], [again]), 2)) == [["p0"], ["p0", "p2"]]


async def test_a_service_without_replicas_has_an_empty_set() -> None:
    assert names(await first_sets(watching([listing()], [[P2]]), 2)) == [[], ["p2"]]


async def test_a_watch_continues_from_the_last_version_seen() -> None:
    watches = [[], [change("ADDED", "b", "4", p1="10.0.0.2")], [change("BOOKMARK", "", "7")], [P2]]
    server = ApiServer([listing(A)], watches)
    assert names(await first_sets(watch_of(server), 3))[-1] == ["p0", "p1", "p2"]
    assert server.watched_from == ["1", "1", "4", "7"]
    assert server.listed == 1


@pytest.mark.parametrize(
    "forgotten",
    [refused(410), [{"type": "ERROR", "object": {"code": 410, "message": "too old"}}]],
    ids=["refused", "reported by the watch"],
)
async def test_an_expired_version_leads_to_a_new_list(forgotten: Any) -> None:
    server = ApiServer([listing(A, B), listing(B)], [forgotten, [P2]])
    watch = watch_of(server)
    assert names(await first_sets(watch, 3)) == [["p0", "p1"], ["p1"], ["p1", "p2"]]
    assert (server.listed, watch.malformed) == (2, 0)


@pytest.mark.parametrize(
    "trouble",
    [
        refused(500),
        refused(403),
        httpx2.ConnectError("refused"),
        httpx2.ReadTimeout("silent"),
        AccessError("no token"),
        [{"type": "ERROR", "object": {"code": 500, "message": "etcd is away"}}],
        [{"type": "ERROR", "object": {}}],
    ],
    ids=["500", "403", "unreachable", "silent", "no access", "an error in the watch", "an unknown one"],
)
async def test_while_the_server_is_unavailable_the_last_set_stays_and_nothing_is_listed(trouble: Any) -> None:
    server = ApiServer([listing(A)], [trouble, [P2]])
    watch = watch_of(server)
    assert names(await first_sets(watch, 2)) == [["p0"], ["p0", "p2"]]
    assert server.watched_from == ["1", "1"]
    assert (server.listed, watch.malformed) == (1, 0)


async def test_a_refused_list_is_requested_again() -> None:
    server = ApiServer([refused(403, "cannot list endpointslices"), listing(A)], [])
    with capture_logs() as output:
        assert names(await first_sets(watch_of(server), 1)) == [["p0"]]
    assert [line["why"] for line in output if "why" in line] == ["403: cannot list endpointslices"]


@pytest.mark.parametrize("body", [b"\xff" * 300, b"[]", b"{}"], ids=["no JSON", "a list", "no message"])
async def test_a_refusal_without_a_message_is_logged_raw_and_truncated(body: bytes) -> None:
    server = ApiServer([httpx2.Response(502, content=body), listing(A)], [])
    with capture_logs() as output:
        await first_sets(watch_of(server), 1)
    (why,) = [line["why"] for line in output if "why" in line]
    assert why == f"502: {body[:200].decode(errors='replace')}"


async def test_each_cause_is_logged_once_and_so_is_the_recovery() -> None:
    watches = [refused(500), refused(500), refused(503), [change("BOOKMARK", "", "5")], [], [P2]]
    with capture_logs() as output:
        await first_sets(watching([listing(A)], watches), 2)
    logged = [line["event"] for line in output if line["event"].startswith("cluster")]
    assert logged == ["cluster not watched", "cluster not watched", "cluster watched again"]


async def test_a_malformed_slice_is_logged_once_however_often_it_comes() -> None:
    broken = {"type": "MODIFIED", "object": {"metadata": {"name": "b", "resourceVersion": "3"}}}
    watch = watching([listing(A)], [[broken, broken, broken, P2]])
    with capture_logs() as output:
        await first_sets(watch, 2)
    assert watch.malformed == 3
    assert [line["event"] for line in output].count("EndpointSlice ignored") == 1


async def test_it_is_connected_while_a_watch_is_open() -> None:
    watch = watching([listing(A), listing(B)], [[P2], refused(410)])
    seen = []
    async with aclosing(_generator(watch)) as reported:
        async for one in reported:
            seen.append((list(one), watch.connected))
            if len(seen) == 3:
                break
    assert seen == [(["p0"], False), (["p0", "p2"], True), (["p1"], False)]


class Waits(Backoff):
    """Waits that are counted, and those since the last good connection."""

    def __init__(self) -> None:
        super().__init__(Random(1), 0.0, 0.0)
        self.waits = self.resets = 0

    def wait_s(self) -> float:
        self.waits += 1
        return super().wait_s()

    def reset(self) -> None:
        self.resets += 1


async def test_only_events_of_a_watch_reset_the_backoff() -> None:
    backoff = Waits()
    server = ApiServer([listing(A)], [[], refused(500), [change("BOOKMARK", "", "3"), P2]])
    await first_sets(watch_of(server, backoff), 2)
    assert (backoff.waits, backoff.resets) == (2, 2)


async def test_events_are_read_however_the_stream_is_cut() -> None:
    text = b"".join(orjson.dumps(event) + b"\n" for event in (change("DELETED", "a"), P2))

    async def bytewise() -> AsyncIterator[bytes]:
        for at in range(len(text)):
            yield text[at : at + 1]

    for content in (text, bytewise()):
        server = ApiServer([listing(A, B)], [httpx2.Response(200, content=content)])
        assert names(await first_sets(watch_of(server), 3)) == [["p0", "p1"], ["p1"], ["p1", "p2"]]


async def test_an_event_without_end_closes_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = orjson.dumps(P2)
    monkeypatch.setattr(endpoint_watch, "LINE_BYTES", len(whole))
    endless = httpx2.Response(200, content=whole + b" ")
    watch = watching([listing(A)], [endless, httpx2.Response(200, content=whole + b"\n")])
    with capture_logs() as output:
        assert names(await first_sets(watch, 2)) == [["p0"], ["p0", "p2"]]
    assert f"an event of more than {len(whole)} bytes" in str(output)
    assert watch.malformed == 0


async def test_changes_of_endpoints_are_logged() -> None:
    changes = [change("MODIFIED", "a", p0="10.0.0.9"), change("DELETED", "b"), P2]
    with capture_logs() as output:
        await first_sets(watching([listing(A, B)], [changes]), 4)
    reported = [(line["known"], line["changes"]) for line in output if line["event"] == "replica set changed"]
    assert reported == [
        (2, "p0=10.0.0.1:7000/in_service p1=10.0.0.2:7000/in_service"),
        (2, "p0=10.0.0.9:7000/in_service"),
        (1, "p1=gone"),
        (2, "p2=10.0.0.3:7000/in_service"),
    ]
