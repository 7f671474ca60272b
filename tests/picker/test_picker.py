"""A picker's decisions: endpoints, counts, and limits of applications."""

from dataclasses import replace
from threading import current_thread, main_thread
from typing import Any

import httpx2
import orjson
import pytest
from gateway.picking import chat, ext_authz_address, picker_of
from gateway.replica import HttpReplica
from patience import eventually
from penstock_core.routing.replica_load import RoutingRequest, estimated_tokens
from penstock_core.timing.builtin_models import time_model
from penstock_core.timing.time_model import to_json
from penstock_picker.pick import Picked
from penstock_picker.picker import Call, Picker
from penstock_pool import Application, Pool
from penstock_proto import replica_pb2 as wire
from penstock_routing.applications.usage_ledger import Limit, LimitDecision, LimitUsage, OverLimit, Ticket
from penstock_routing.replicas.peer_placements import PeerLoad
from penstock_routing.request.request_body import INLINE_BYTES, BodyFields, BodyReader
from penstock_routing.settings import settings_of
from penstock_runtime.openai_errors import ApiError
from penstock_runtime.prompt_marks import prompt_marks
from scripted.router import TIERS, pool_with
from structlog.testing import capture_logs

CHAT = "/v1/chat/completions"
BODY = orjson.dumps(chat(max_tokens=7))
IDE = {"authorization": "Bearer sk-ide"}
USAGE = LimitUsage(1, 1.0, 2, 2.0)


def call(body: bytes | None = BODY, method: str = "POST", path: str = CHAT, /, **headers: str) -> Call:
    head = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    return Call(method, path, head, body)


def replicas() -> tuple[HttpReplica, HttpReplica]:
    return HttpReplica("r0"), HttpReplica("r1")


def value(picker: Picker, name: str, **labels: str) -> float | None:
    return picker.metrics.registry.get_sample_value(f"penstock_picker_{name}", labels)


async def refused(picker: Picker, requested: Call) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await picker.pick(requested)
    return caught.value


async def test_a_request_gets_the_order_and_two_backups_and_is_counted_at_the_first() -> None:
    r0, r1 = replicas()
    placed: list[tuple[str, int]] = []
    async with picker_of((r0, r1), placed=lambda *of: placed.append(of)) as picker:
        tokens = estimated_tokens(len(BODY))
        endpoints = (r0.endpoint, r1.endpoint) * 2
        picked = await picker.pick(call())
        assert picked == Picked("chat", "r0", endpoints, max_hops=2, uncached_tokens=tokens)
        assert (
            dict(picked.headers).items() >= {"x-penstock-max-hops": "2", "x-envoy-max-retries": "3"}.items()
        )
        assert placed == [("r0", tokens)]
        links = picker._replica_set.links
        assert [[load for _, load in link.peers.placements] for link in links] == [[PeerLoad(1, tokens)], []]
        assert value(picker, "requests_total", tier="chat") == 1
        assert value(picker, "endpoints_total", tier="chat") == 4
        assert value(picker, "decision_seconds_count") == 1
        assert 0 < (value(picker, "decision_seconds_sum") or 0.0) < 20
        assert [value(picker, "replicas", ready=ready) for ready in ("true", "false")] == [2, 0]
        page = orjson.loads(picker.demand_page())
        assert page["held"] == 0
        assert (page["tiers"]["chat"]["arrived"], page["tiers"]["coder"]["arrived"]) == (1, 0)


async def test_the_backups_of_a_burst_take_turns() -> None:
    r0, r1 = replicas()
    async with picker_of((r0, r1)) as picker:
        burst = [await picker.pick(call()) for _ in range(4)]
        assert [picked.endpoints[picked.max_hops] for picked in burst] == [r0.endpoint, r1.endpoint] * 2


async def test_a_replica_with_the_prefix_is_first_and_counts_uncached_tokens_only() -> None:
    r0, r1 = replicas()
    [mark] = prompt_marks(BODY).marks
    async with picker_of((r0, r1), pool_with(routing={"order": "prefix"})) as picker:
        r1.send_prefixes(added=[mark.key], complete=True)
        await eventually(lambda: value(picker, "cached_prefixes") == 1)
        picked = await picker.pick(call())
        assert (picked.first, picked.uncached_tokens) == (
            "r1",
            estimated_tokens(len(BODY)) - estimated_tokens(mark.size),
        )


async def test_each_picker_starts_round_robin_at_its_own_offset() -> None:
    async with picker_of(replicas(), first_number=1) as picker:
        assert [(await picker.pick(call())).first for _ in range(3)] == ["r1", "r0", "r1"]


async def test_best_effort_tiers_have_no_backup() -> None:
    async with picker_of(replicas()) as picker:
        picked = await picker.pick(call(x_penstock_tier="batch"))
        assert (len(picked.endpoints), picked.max_hops) == (2, 1)


async def test_a_body_that_the_gateway_does_not_send_is_left_to_the_replicas() -> None:
    async with picker_of(replicas()) as picker:
        assert (await picker.pick(call(None, x_penstock_tier="coder"))).tier == "coder"
        assert (await refused(picker, call(b""))).code == "invalid_json"


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/test/model"])
async def test_pages_of_replicas_go_to_any_replica_and_are_no_demand(method: str, path: str) -> None:
    async with picker_of(replicas()) as picker:
        assert (await picker.pick(call(b"", method, path))).first == "r0"
        assert value(picker, "requests_total", tier="chat") is None
        assert orjson.loads(picker.demand_page())["tiers"]["chat"]["arrived"] == 0


@pytest.mark.parametrize(
    ("method", "path", "status", "allowed"),
    [
        ("GET", CHAT, 405, "POST"),
        ("POST", "/v1/models", 405, "GET, HEAD"),
        ("DELETE", "/v1/models/x", 405, "GET, HEAD"),
        ("GET", "/v1/modelsx", 404, None),
        ("POST", "/v1/nothing", 404, None),
    ],
)
async def test_other_pages_are_refused(method: str, path: str, status: int, allowed: str | None) -> None:
    async with picker_of(()) as picker:
        error = await refused(picker, call(b"", method, path))
        assert (error.status, dict(error.headers).get("allow")) == (status, allowed)
        assert value(picker, "refused_total", status=str(status)) == 1


async def test_a_compressed_body_is_refused() -> None:
    async with picker_of(()) as picker:
        assert (await refused(picker, call(content_encoding="gzip"))).status == 415


async def test_without_replicas_the_answer_is_503_and_the_request_is_demand() -> None:
    async with picker_of(()) as picker:
        assert (await refused(picker, call())).code == "no_replicas"
        assert orjson.loads(picker.demand_page())["tiers"]["chat"]["arrived"] == 1
        assert [value(picker, name, tier="chat") for name in ("requests_total", "endpoints_total")] == [
            None,
            None,
        ]
        assert value(picker, "refused_total", status="503") == 1


async def test_a_fault_fails_only_its_own_request() -> None:
    pool = pool_with()
    found = settings_of(pool)
    faults = [ZeroDivisionError("1 / 0")]

    def order(loads: Any, requested: RoutingRequest) -> tuple[str, ...]:
        if faults:
            raise faults.pop()
        return found.order(loads, requested)

    async with picker_of(replicas(), pool, settings=replace(found, order=order)) as picker:
        with capture_logs() as logs:
            error = await refused(picker, call())
        assert (error.status, error.message) == (500, "internal error")
        assert "x-request-id" in dict(error.headers)
        assert [line["event"] for line in logs] == ["request failed"]
        assert (value(picker, "faults_total"), value(picker, "refused_total", status="500")) == (1, None)
        assert (await picker.pick(call())).tier == "chat"


async def test_orders_see_the_requests_targets_by_the_replicas_own_time_model() -> None:
    pool = pool_with(tiers=[{"name": "quick", "slo": {"ttft": {"slowdown": 3}}}, *TIERS])
    found = settings_of(pool)
    seen: list[RoutingRequest] = []

    def order(loads: Any, requested: RoutingRequest) -> tuple[str, ...]:
        seen.append(requested)
        return found.order(loads, requested)

    tokens = estimated_tokens(len(BODY))
    r0 = HttpReplica("r0")
    for own, name in (("", "llama-3-8b-a100"), ("llama-3-8b-h100", "llama-3-8b-h100")):
        r0.time_model_json = orjson.dumps(to_json(time_model(own))).decode() if own else ""
        async with picker_of((r0,), pool, settings=replace(found, order=order)) as picker:
            await picker.pick(call(x_penstock_tier="quick"))
            assert seen[-1].ttft_s == 3 * time_model(name).prefill_seconds(tokens)
            await picker.pick(call(x_penstock_tier="coder", x_slo_ttft_ms="120"))
            assert (seen[-1].ttft_s, seen[-1].body_bytes) == (0.12, len(BODY))


def limited(**limits: int) -> tuple[Pool, dict[str, Application]]:
    ide = {"name": "ide", "tier": "chat", "keys": {"file": "keys"}, "limits": limits}
    pool = pool_with(applications=[ide])
    return pool, {"sk-ide": pool.spec.applications[0]}


async def test_limits_count_a_requests_estimate_and_no_end() -> None:
    each = estimated_tokens(len(BODY)) + 7
    pool, keys = limited(concurrentRequests=1, tokensPerMinute=3 * each)
    async with picker_of(replicas(), pool, keys) as picker:
        assert [(await picker.pick(call(**IDE))).first for _ in range(3)] == ["r0", "r1", "r0"]
        error = await refused(picker, call(**IDE))
        assert (error.status, error.type) == (429, "tokens")
        assert value(picker, "limited_total", application="ide", limit="tokens_per_minute") == 1


async def test_the_replica_gets_the_application_of_a_request_s_key() -> None:
    pool, keys = limited(concurrentRequests=1)
    async with picker_of(replicas(), pool, keys) as picker:
        assert dict((await picker.pick(call(**IDE))).headers)["x-penstock-application"] == "ide"
    async with picker_of(replicas()) as picker:
        assert "x-penstock-application" not in dict((await picker.pick(call())).headers)


class PoolOfPickers:
    """Limits shared by all pickers, with answers scripted by the test."""

    def __init__(self, *verdicts: Ticket | OverLimit | None) -> None:
        self.verdicts = list(verdicts)
        self.asked: list[tuple[str, int]] = []
        self.over: list[tuple[str, Ticket | None, int]] = []

    async def ask(self, application: str, tokens: int) -> LimitDecision | None:
        self.asked.append((application, tokens))
        verdict = self.verdicts.pop(0)
        return None if verdict is None else LimitDecision(verdict, USAGE)

    def ended(self, application: str, ticket: Ticket | None, tokens: int) -> None:
        self.over.append((application, ticket, tokens))


async def test_shared_limits_are_checked_once_and_not_settled() -> None:
    each = estimated_tokens(len(BODY)) + 7
    over = OverLimit(Limit.REQUESTS_PER_MINUTE, 2.0)
    shared = PoolOfPickers(Ticket(5, each), over, None)
    pool, keys = limited(requestsPerMinute=9)
    async with picker_of(replicas(), pool, keys, shared_limits=shared) as picker:
        assert (await picker.pick(call(**IDE))).first == "r0"
        with pytest.raises(ApiError) as caught:
            await picker.pick(call(**IDE))
        assert caught.value.code == "rate_limit_exceeded"
        assert (await picker.pick(call(**IDE))).first == "r0"  # the refused one had the other turn
        assert shared.asked == [("ide", each)] * 3
        assert shared.over == [("ide", Ticket(5, each), each), ("ide", None, each)]
        assert value(picker, "limits_decided_locally_total") == 1
        assert value(picker, "refused_total", status="429") == 1
        assert orjson.loads(picker.demand_page())["tiers"]["chat"]["arrived"] == 2


@pytest.mark.parametrize("allowed", [{"r1"}, set()], ids=["one", "none"])
async def test_a_gateways_subset_bounds_the_choice(allowed: set[str]) -> None:
    r0, r1 = replicas()
    async with picker_of((r0, r1)) as picker:
        subset = frozenset(each.endpoint for each in (r0, r1) if each.name in allowed)
        requested = call()._replace(subset=subset)
        if allowed:
            assert (await picker.pick(requested)).endpoints == (r1.endpoint, r1.endpoint)
        else:
            assert (await refused(picker, requested)).code == "no_replicas"


async def test_a_replica_without_an_http_side_is_no_endpoint() -> None:
    r0, r1 = replicas()
    async with picker_of((r0, r1)) as picker:
        link = picker._replica_set["r0"]
        link.description = replace(link.description, http_endpoint=None)
        assert (await picker.pick(call())).endpoints == (r1.endpoint, r1.endpoint)


async def test_only_long_bodies_are_read_off_the_event_loop() -> None:
    on_loop: list[bool] = []
    async with picker_of(
        (HttpReplica("r0"),), placed=lambda *of: on_loop.append(current_thread() is main_thread())
    ) as picker:
        for length in (INLINE_BYTES, INLINE_BYTES + 1):
            body = orjson.dumps(chat(user="u" * (length - len(orjson.dumps(chat(user=""))))))
            await picker.pick(call(body))
        assert on_loop == [True, False]


async def test_only_long_bodies_are_read_off_the_event_loop_with_shared_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on_loop: list[bool] = []
    parse = BodyReader.parse

    def noted(reader: BodyReader, endpoint: "wire.Endpoint.ValueType", body: bytes) -> BodyFields:
        on_loop.append(current_thread() is main_thread())
        return parse(reader, endpoint, body)

    monkeypatch.setattr(BodyReader, "parse", noted)
    shared = PoolOfPickers(None, None)
    pool, keys = limited(requestsPerMinute=9)
    async with picker_of((HttpReplica("r0"),), pool, keys, shared_limits=shared) as picker:
        for length in (INLINE_BYTES, INLINE_BYTES + 1):
            body = orjson.dumps(chat(user="u" * (length - len(orjson.dumps(chat(user=""))))))
            await picker.pick(call(body, **IDE))
    assert on_loop == [True, False]


async def test_an_http_filter_s_requests_count_for_limits_over_all_pickers() -> None:
    shared = PoolOfPickers(Ticket(5, 7), OverLimit(Limit.REQUESTS_PER_MINUTE, 2.0))
    pool, keys = limited(requestsPerMinute=9)
    async with (
        picker_of((HttpReplica("r0"),), pool, keys, shared_limits=shared) as picker,
        ext_authz_address(picker) as address,
        httpx2.AsyncClient(timeout=20.0) as http,
    ):
        answers = [await http.post(f"http://{address}{CHAT}", content=BODY, headers=IDE) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
    assert [application for application, _ in shared.asked] == ["ide", "ide"]
