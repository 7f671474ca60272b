"""How the operator reads routers' demand, and handles those that report none."""

import asyncio
from typing import Any

import orjson
import pytest
from clusterless.http_api import HttpApi
from penstock_operator.demand import demand_client
from penstock_operator.demand.demand_client import DemandClient
from penstock_operator.demand.demand_page import (
    ATTAINMENT,
    COUNTERS,
    TierCounts,
    counts_of,
    parse_demand_page,
)
from penstock_operator.manifests.manifest import Manifest
from structlog.testing import capture_logs

COUNTS = dict.fromkeys((*COUNTERS, *ATTAINMENT), 3)
PAGE: dict[str, Any] = {"since_s": 60, "held": 2, "tiers": {"chat": COUNTS}, "replicas": [{"name": "r0"}]}
INVALID: list[Any] = [
    (500, {}),
    (200, b"no JSON"),
    (200, []),
    (200, {}),
    (200, {**PAGE, "since_s": "long"}),
    (200, {**PAGE, "tiers": {"chat": {}}}),
    None,
]


def pod(name: str = "router-0", ready: str = "True", address: str = "127.0.0.1") -> Manifest:
    conditions = [{"type": "Ready", "status": ready}]
    return {
        "kind": "Pod",
        "metadata": {"name": name, "uid": f"uid-of-{name}"},
        "status": {"podIP": address, "conditions": conditions},
    }


def port_of(server: HttpApi) -> int:
    return int(server.url.rpartition(":")[2])


def asked(server: HttpApi, *rounds: list[Manifest]) -> list[list[str]]:
    """Return the routers that answered, in each round."""

    async def story() -> list[list[str]]:
        async with server.listening():
            routers = DemandClient()
            port = port_of(server)
            found = [[one.pod for one in await routers.fetch(pods, port)] for pods in rounds]
            await routers.close()
            return found

    return asyncio.run(story())


def test_ready_routers_are_read_for_their_demand() -> None:
    server = HttpApi([(200, PAGE)] * 2)
    found = asked(server, [pod("a"), pod("b", ready="False"), pod("c")])
    assert sorted(found[0]) == ["uid-of-a", "uid-of-c"]
    assert [(request.method, request.path) for request in server.requests] == [
        ("GET", "/penstock/v1/demand")
    ] * 2


def test_routers_are_read_at_ipv6_addresses() -> None:
    async def story() -> None:
        server = HttpApi([(200, PAGE)])
        async with server.listening(host="::1"):
            routers = DemandClient()
            assert len(await routers.fetch([pod(address="::1")], port_of(server))) == 1
            await routers.close()

    asyncio.run(story())


@pytest.mark.parametrize("answer", INVALID, ids=str)
def test_a_router_without_a_valid_answer_is_left_out(answer: Any) -> None:
    assert asked(HttpApi([answer, (200, PAGE)]), [pod()], [pod()]) == [[], ["uid-of-router-0"]]


def test_a_router_is_logged_when_it_stops_answering_and_when_it_answers_again() -> None:
    answers = [(200, PAGE), (500, {}), (500, {}), (200, PAGE), (200, PAGE), (500, {})]
    with capture_logs() as logged:
        asked(HttpApi(list(answers)), *[[pod()]] * len(answers))
    silent, again = "demand is not reported", "demand is reported again"
    assert [(one["event"], one["pod"]) for one in logged] == [
        (event, "router-0") for event in (silent, again, silent)
    ]
    assert "500" in logged[0]["error"]


def test_an_invalid_page_is_logged_as_such() -> None:
    with capture_logs() as logged:
        asked(HttpApi([(200, {})]), [pod()])
    assert logged[0]["error"] == "its demand page is invalid: KeyError('tiers')"


def test_a_page_is_read_at_most_up_to_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demand_client, "MAX_ANSWER_BYTES", len(orjson.dumps(PAGE)))
    server = HttpApi([(200, PAGE), (200, orjson.dumps(PAGE) + b" ")])
    assert asked(server, [pod()], [pod()]) == [["uid-of-router-0"], []]


def test_a_router_that_is_too_slow_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demand_client, "TIMEOUT_S", 0.0)
    with capture_logs() as logged:
        assert asked(HttpApi([(200, PAGE)]), [pod()]) == [[]]
    assert logged[0]["error"] == "TimeoutError"


def test_a_reading_has_the_pages_numbers() -> None:
    reading = parse_demand_page("uid", PAGE)
    assert (reading.pod, reading.since_s, reading.held) == ("uid", 60.0, 2)
    assert (reading.tiers, reading.replicas) == ({"chat": COUNTS}, ({"name": "r0"},))
    assert parse_demand_page("uid", {k: v for k, v in PAGE.items() if k != "replicas"}).replicas == ()


def test_attainment_is_added_up_by_tier() -> None:
    def reading(**tiers: tuple[int, int]) -> Any:
        counts = {
            name: COUNTS | {"all_judged": judged, "all_met": met} for name, (judged, met) in tiers.items()
        }
        return parse_demand_page("uid", PAGE | {"tiers": counts})

    found = counts_of([reading(chat=(5, 4), code=(1, 0)), reading(chat=(10, 3))])
    assert found == {"chat": TierCounts(15, 7), "code": TierCounts(1, 0)}
    assert counts_of([]) == {}
