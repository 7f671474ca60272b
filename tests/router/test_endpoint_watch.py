"""Following a Service's endpoints through an API server that sends what it should not."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from random import Random
from typing import Any

import httpx2
import orjson
from penstock_router.connections.backoff import Backoff
from penstock_router.discovery.endpoint_watch import EndpointWatch
from penstock_router.discovery.endpoints import Endpoints, Service


def endpoint_slice(name: str, **addresses: str) -> dict[str, Any]:
    endpoints = [{"addresses": [at], "targetRef": {"name": pod}} for pod, at in addresses.items()]
    metadata = {"name": name, "resourceVersion": "2"}
    ports = [{"name": "replica", "port": 7000}]
    return {"metadata": metadata, "addressType": "IPv4", "ports": ports, "endpoints": endpoints}


class ApiServer:
    """One that answers lists and watches with what a test has written, one after the other."""

    def __init__(self, lists: list[Any], watches: list[list[Any]]) -> None:
        self._lists, self._watches = iter(lists), iter(watches)

    def client(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(base_url="http://api", transport=httpx2.MockTransport(self._answer))

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        if "watch" not in request.url.params:
            return httpx2.Response(200, content=orjson.dumps(next(self._lists)))
        events = b"".join(orjson.dumps(event) + b"\n" for event in next(self._watches, []))
        return httpx2.Response(200, content=events)


def watching(lists: list[Any], watches: list[list[Any]]) -> EndpointWatch:
    return EndpointWatch(
        Service("ns", "pool"), ApiServer(lists, watches).client, Backoff(Random(1), 0.0001, 0.001)
    )


def listing(*items: Any) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": "1"}, "items": list(items)}


async def first_sets(watch: EndpointWatch, count: int) -> list[Endpoints]:
    sets: list[Endpoints] = []
    async with aclosing(_generator(watch)) as told:
        async for one in told:
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
    (told,) = await first_sets(watch, 1)
    assert list(told) == ["p0"]
    assert watch.malformed == 5


async def test_a_malformed_change_leaves_what_the_slice_said_before() -> None:
    broken = endpoint_slice("a") | {"endpoints": [{"addresses": []}]}
    changes = [
        {"type": "MODIFIED", "object": broken},
        {"type": "ADDED", "object": endpoint_slice("b", p1="10.0.0.2")},
    ]
    watch = watching([listing(endpoint_slice("a", p0="10.0.0.1"))], [changes])
    _, told = await first_sets(watch, 2)
    assert list(told) == ["p0", "p1"]
    assert watch.malformed == 1


async def test_an_answer_that_is_no_answer_is_asked_for_again() -> None:
    lists = [[], {"items": 3}, {"metadata": {"resourceVersion": "1"}, "items": 3}]
    watch = watching([*lists, listing(endpoint_slice("a", p0="10.0.0.1"))], [])
    (told,) = await first_sets(watch, 1)
    assert list(told) == ["p0"]
    assert watch.malformed == 3


async def test_an_event_that_is_no_event_makes_the_watch_begin_anew() -> None:
    before, after = endpoint_slice("a", p0="10.0.0.1"), endpoint_slice("a", p0="10.0.0.9")
    watch = watching([listing(before), listing(after)], [[{"type": "ADDED"}]])
    _, told = await first_sets(watch, 2)
    assert told["p0"].address == "10.0.0.9:7000"
    assert watch.malformed == 1
