"""The replica's HTTP side behind a gateway: decisions, hops, cancels and counts."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import httpx2
import pytest
from patience import eventually
from penstock_core.domain.verdict import Reason, Rejected
from penstock_pool import Pool, parse_pool
from penstock_routing.demand import Demand
from penstock_runtime.http_connection.bounds import HttpBounds
from penstock_runtime.serving import address_of, listen
from penstock_sidecar.bounds import Bounds
from penstock_sidecar.http import http_serving as serving_of_http
from penstock_sidecar.http import request_path
from penstock_sidecar.http.http_serving import http_app, http_serving
from penstock_sidecar.requests.faults import Faults

from tests.sidecar.conftest import DONE, TOKEN, Engine, Rig

COMPLETIONS = "/v1/completions"
BODY = {"model": "m", "prompt": [1, 2, 3], "max_tokens": 5, "stream": True}
WHOLE = {**BODY, "stream": False}
ANSWER = b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}'
STREAM_BYTES = 100_000
BACKUP = {
    "x_penstock_tier": "chat",
    "x_penstock_max_hops": "2",
    "x_envoy_attempt_count": "3",
    "x_gateway_destination_endpoint": "a:1,b:1,a:1,b:1",
}
"""Headers of the first backup in a list of two replicas and two backups."""


def pool_of(**spec: Any) -> Pool:
    return parse_pool(
        {
            "apiVersion": "penstock.dev/v1alpha1",
            "kind": "ServingPool",
            "metadata": {"name": "test"},
            "spec": {
                "model": {"name": "m"},
                "engine": {"type": "simulated", "timeModel": "llama-3-8b-h100"},
                "router": {"streamBufferBytes": STREAM_BYTES},
                "tiers": [
                    {"name": "chat", "slo": {"ttft": "1s", "tpot": "100ms"}, "allowRequestTargets": True},
                    {"name": "batch", "bestEffort": True},
                ],
                **spec,
            },
        },
        "pool.yaml",
    )


class Gateway:
    """A gateway's end: its requests, its metrics of the replica."""

    def __init__(self, rig: Rig, client: httpx2.AsyncClient, url: str, demand: Demand) -> None:
        self.rig, self.client, self.url, self._demand = rig, client, url, demand

    def demand(self, tier: str = "chat") -> dict[str, int]:
        """The tier's counters that are not zero."""
        counted = json.loads(self._demand.page(0, ()))["tiers"][tier]
        return {name: count for name, count in counted.items() if count}

    async def ask(self, body: dict[str, Any] | bytes = BODY, /, **headers: str) -> httpx2.Response:
        return await self.client.post(COMPLETIONS, content=_bytes(body), headers=_named(headers))

    def begin(self, body: dict[str, Any] = BODY, /, **headers: str) -> "asyncio.Task[httpx2.Response]":
        return asyncio.create_task(self.ask(body, **headers))

    def metric(self, name: str, **labels: str) -> float:
        return self.rig.registry.get_sample_value(f"penstock_replica_http_{name}", labels) or 0.0


def _bytes(body: dict[str, Any] | bytes) -> bytes:
    return body if isinstance(body, bytes) else json.dumps(body).encode()


def _named(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


@pytest.fixture
def pool() -> Pool:
    """A test may override this."""
    return pool_of()


@pytest.fixture
async def gateway(rig: Rig, pool: Pool) -> AsyncIterator[Gateway]:
    faults = Faults(rig.metrics.faults)
    demand = Demand(pool.tiers())
    app = http_app(
        "r0", pool, rig.replica, rig.estimates, demand=demand, registry=rig.registry, faults=faults
    )
    listener = listen("127.0.0.1", 0)
    url = f"http://{address_of(listener)}"
    async with (
        http_serving(app, listener, pool, None),
        httpx2.AsyncClient(base_url=url, timeout=60) as client,
    ):
        yield Gateway(rig, client, url, demand)


def rejects(rig: Rig, reason: Reason = Reason.DECODE_BUDGET, earliest_s: float | None = 2.5) -> None:
    """Reject every request with targets."""
    rig.policy.answers = lambda job: Rejected(reason, earliest_s)


async def test_a_stream_is_forwarded_with_verdict_and_replica_in_its_headers(
    gateway: Gateway, engine: Engine
) -> None:
    request = gateway.client.build_request(
        "POST", COMPLETIONS, json=BODY, headers={"x-request-id": "mine", "x-envoy-attempt-count": "2"}
    )
    sending = asyncio.create_task(gateway.client.send(request, stream=True))
    exchange = await engine.asked()
    await exchange.begin()
    await exchange.send(TOKEN)
    response = await sending
    assert (response.status_code, response.headers["content-type"]) == (
        200,
        "text/event-stream; charset=utf-8",
    )
    reported = {name: response.headers[name] for name in response.headers if name.startswith("x-")}
    assert reported == {
        "x-request-id": "mine",
        "x-penstock-tier": "chat",
        "x-penstock-verdict": "admitted",
        "x-penstock-replica": "r0",
        "x-penstock-hops": "2",
    }
    chunks = response.aiter_raw()
    assert await anext(chunks) == TOKEN
    await exchange.send(TOKEN + DONE)
    assert b"".join([chunk async for chunk in chunks]).startswith(TOKEN + DONE)
    await exchange.end()
    await eventually(lambda: gateway.rig.replica.unfinished == 0)


async def test_an_answer_that_is_not_streamed_is_sent_whole(gateway: Gateway, engine: Engine) -> None:
    asking = gateway.begin(WHOLE)
    exchange = await engine.asked()
    await exchange.begin(content_type="application/json")
    await exchange.send(ANSWER)
    await exchange.end()
    response = await asking
    assert (response.status_code, response.content) == (200, ANSWER)
    assert response.headers["x-penstock-verdict"] == "admitted"


async def test_an_acceptance_is_counted_before_the_engine_answers(gateway: Gateway, engine: Engine) -> None:
    asking = gateway.begin(WHOLE)
    exchange = await engine.asked()
    assert gateway.demand() == {"arrived": 1, "admitted": 1, "hops": 1}
    await exchange.begin(content_type="application/json")
    await exchange.send(ANSWER)
    await exchange.end()
    assert (await asking).status_code == 200


async def test_a_rejection_is_a_429_that_hops_with_reason_and_time(gateway: Gateway, engine: Engine) -> None:
    rejects(gateway.rig)
    response = await gateway.ask(x_penstock_max_hops="1", x_penstock_tier="chat")
    assert response.status_code == 429
    assert response.headers["x-penstock-rejected"] == "1"
    assert response.headers["x-penstock-reason"] == "decode_budget"
    assert 3 <= int(response.headers["retry-after"]) <= 5
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("slo_unattainable", "slo_unattainable")
    assert "replica r0: its tokens would be late" in error["message"]
    assert not engine.exchanges


async def test_a_rejection_by_every_idle_replica_is_not_to_be_retried(gateway: Gateway) -> None:
    rejects(gateway.rig, Reason.NEVER, None)
    response = await gateway.ask()
    assert (response.status_code, response.headers["x-should-retry"]) == (429, "false")
    assert "retry-after" not in response.headers


@pytest.mark.parametrize(
    ("attempt", "max_hops", "status"), [("1", "1", 429), ("2", "1", 200), ("3", "3", 429), ("4", "3", 200)]
)
async def test_the_last_endpoint_serves_best_effort_if_the_pool_permits(
    gateway: Gateway, engine: Engine, attempt: str, max_hops: str, status: int
) -> None:
    rejects(gateway.rig)
    engine.script = answer_whole
    reported = {"x_envoy_attempt_count": attempt, "x_penstock_max_hops": max_hops, "x_penstock_tier": "chat"}
    response = await gateway.ask(WHOLE, **reported)
    assert response.status_code == status
    if status == 200:
        assert response.headers["x-penstock-verdict"] == "best-effort"


@pytest.mark.parametrize("pool", [pool_of(routing={"backup": "reject"})])
async def test_the_last_endpoint_rejects_if_the_pool_has_no_backup(gateway: Gateway) -> None:
    rejects(gateway.rig)
    response = await gateway.ask(x_envoy_attempt_count="2", x_penstock_max_hops="1")
    assert response.status_code == 429
    assert (
        gateway.metric(
            "requests_total", tier="chat", verdict="rejected", reason="decode_budget", ending="rejected"
        )
        == 1
    )
    assert gateway.metric("slo_missed_total", tier="chat", why="rejected") == 1


async def test_a_rejection_followed_by_another_replica_is_not_counted_for_the_client(
    gateway: Gateway,
) -> None:
    rejects(gateway.rig)
    await gateway.ask(x_envoy_attempt_count="1", x_penstock_max_hops="1")
    assert gateway.metric("passed_on_total", tier="chat") == 1
    assert gateway.metric("slo_judged_total", tier="chat") == 0
    assert gateway.demand() == {"arrived": 1}


async def test_a_request_rejected_by_another_replica_counts_as_arrived_only_there(
    gateway: Gateway, engine: Engine
) -> None:
    engine.script = answer_whole
    await gateway.ask(WHOLE, x_envoy_attempt_count="3", x_penstock_max_hops="3", x_penstock_tier="chat")
    counted = {"admitted": 1, "hops": 3, "judged": 1, "met": 1, "all_judged": 1, "all_met": 1}
    await eventually(lambda: gateway.demand() == counted)


async def test_a_request_is_demand_before_it_is_answered(gateway: Gateway, engine: Engine) -> None:
    asking = gateway.begin(WHOLE, x_penstock_tier="chat")
    exchange = await engine.asked()
    await eventually(lambda: gateway.demand() == {"arrived": 1, "admitted": 1, "hops": 1})
    asking.cancel()
    async with asyncio.timeout(30):
        await exchange.closed.wait()


@pytest.mark.parametrize(
    ("reason", "counter"),
    [(Reason.DECODE_BUDGET, "rejected"), (Reason.NEVER, "never")],
    ids=["busy", "never"],
)
@pytest.mark.parametrize("pool", [pool_of(routing={"backup": "reject"})])
async def test_the_last_rejection_is_the_requests_verdict(
    gateway: Gateway, reason: Reason, counter: str
) -> None:
    rejects(gateway.rig, reason)
    await gateway.ask(x_envoy_attempt_count="2", x_penstock_max_hops="1", x_penstock_tier="chat")
    assert gateway.demand() == {counter: 1, "hops": 2, "all_judged": 1}
    assert gateway.metric("verdicts_total", tier="chat", verdict=counter) == 1


async def test_requests_hop_from_a_draining_replica_and_one_without_an_engine(gateway: Gateway) -> None:
    gateway.rig.replica.state.draining = True
    response = await gateway.ask()
    assert (response.status_code, response.headers["x-penstock-rejected"]) == (503, "1")
    assert response.json()["error"]["code"] == "no_replicas"
    gateway.rig.replica.state.draining = False
    gateway.rig.replica.state.engine_ready = False
    response = await gateway.ask()
    assert (response.status_code, response.headers["x-penstock-reason"]) == (503, "engine_down")


async def test_a_request_hops_from_a_draining_backup_to_the_next_one(gateway: Gateway) -> None:
    gateway.rig.replica.state.draining = True
    response = await gateway.ask(**BACKUP)
    assert (response.status_code, response.headers["x-penstock-rejected"]) == (503, "1")
    assert (gateway.metric("passed_on_total", tier="chat"), gateway.demand()) == (1, {})
    response = await gateway.ask(**BACKUP | {"x_envoy_attempt_count": "4"})
    assert (response.status_code, response.headers.get("x-penstock-rejected")) == (503, None)
    assert gateway.demand() == {"rejected": 1, "hops": 4, "all_judged": 1}


async def test_a_request_that_a_drain_returns_hops(gateway: Gateway, engine: Engine) -> None:
    asking = gateway.begin()
    await engine.asked()
    draining = asyncio.create_task(gateway.rig.replica.drain(None))
    response = await asking
    assert (response.status_code, response.headers["x-penstock-rejected"]) == (503, "1")
    assert await draining == 0


async def test_an_engines_own_error_and_its_loss_do_not_hop(gateway: Gateway, engine: Engine) -> None:
    asking = gateway.begin()
    exchange = await engine.asked()
    await exchange.begin(400, "application/json")
    await exchange.send(b'{"error":{"message":"bad"}}')
    await exchange.end()
    response = await asking
    assert (response.status_code, response.json()) == (400, {"error": {"message": "bad"}})
    assert "x-penstock-rejected" not in response.headers
    asking = gateway.begin()
    (await engine.asked(2)).die()
    response = await asking
    assert (response.status_code, response.json()["error"]["code"]) == (502, "engine_lost")
    assert "x-penstock-rejected" not in response.headers
    assert gateway.metric("slo_missed_total", tier="chat", why="failed") == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_lost_with_its_engine_at_the_first_attempt_is_passed_on_once(
    gateway: Gateway, engine: Engine, stream: bool
) -> None:
    """A request that crashes engines reaches two of them at most."""
    body, endpoints = {**BODY, "stream": stream}, "a:1,b:1,c:1"
    asking = gateway.begin(body, x_gateway_destination_endpoint=endpoints, x_envoy_attempt_count="1")
    (await engine.asked()).die()
    response = await asking
    assert (response.status_code, response.headers["x-penstock-rejected"]) == (503, "1")
    assert response.headers["x-penstock-reason"] == "engine_down"
    assert gateway.metric("passed_on_total", tier="chat") == 1
    asking = gateway.begin(body, x_gateway_destination_endpoint=endpoints, x_envoy_attempt_count="2")
    (await engine.asked(2)).die()
    response = await asking
    assert (response.status_code, response.json()["error"]["code"]) == (502, "engine_lost")
    assert "x-penstock-rejected" not in response.headers


async def test_an_engine_lost_in_the_middle_of_a_stream_ends_it_with_an_error_event(
    gateway: Gateway, engine: Engine
) -> None:
    asking = gateway.begin()
    exchange = await engine.asked()
    await exchange.begin()
    await exchange.send(TOKEN)
    await eventually(lambda: gateway.rig.replica.unfinished == 1)
    exchange.die()
    text = (await asking).text
    assert text.startswith(TOKEN.decode())
    assert '"code":"engine_lost"' in text and "[DONE]" not in text


async def test_the_engine_is_disconnected_immediately_when_the_client_is(
    gateway: Gateway, engine: Engine
) -> None:
    asking = gateway.begin()
    exchange = await engine.asked()
    await exchange.begin()
    await exchange.send(TOKEN)
    asking.cancel()
    async with asyncio.timeout(30):
        await exchange.closed.wait()
    await eventually(lambda: gateway.rig.replica.unfinished == 0)
    ended = {"tier": "chat", "verdict": "admitted", "reason": "", "ending": "client_gone"}
    await eventually(lambda: gateway.metric("requests_total", **ended) == 1)
    assert gateway.metric("slo_judged_total", tier="chat") == 0


async def test_a_request_without_output_is_cancelled_at_once_when_the_gateway_closes(
    pool: Pool, rig: Rig, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving_of_http, "HttpBounds", partial(HttpBounds, half_closed_s=3600.0))
    faults, demand = Faults(rig.metrics.faults), Demand(pool.tiers())
    app = http_app(
        "r0", pool, rig.replica, rig.estimates, demand=demand, registry=rig.registry, faults=faults
    )
    listener = listen("127.0.0.1", 0)
    async with (
        http_serving(app, listener, pool, None),
        httpx2.AsyncClient(base_url=f"http://{address_of(listener)}", timeout=60) as client,
    ):
        asking = asyncio.create_task(client.post(COMPLETIONS, json=WHOLE))
        exchange = await engine.asked()
        asking.cancel()
        async with asyncio.timeout(30):
            await exchange.closed.wait()
        await eventually(lambda: rig.replica.unfinished == 0)


async def test_a_client_that_does_not_read_is_disconnected_and_others_continue(
    gateway: Gateway, engine: Engine
) -> None:
    host, _, port = gateway.url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
    body = _bytes(BODY)
    writer.write(
        b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (COMPLETIONS.encode(), len(body))
    )
    writer.write(body)
    slow = await engine.asked()
    await slow.begin()

    async def flood() -> None:
        while not slow.closed.is_set():
            await slow.send(b"data: " + b"x" * 65536 + b"\n\n")

    flooding = asyncio.create_task(flood())
    asking = gateway.begin()
    other = await engine.asked(2)
    await other.begin()
    await other.send(TOKEN + DONE)
    await other.end()
    assert (await asking).status_code == 200
    async with asyncio.timeout(30):
        await slow.closed.wait()
    flooding.cancel()
    ended = {"tier": "chat", "verdict": "admitted", "reason": "", "ending": "client_slow"}
    await eventually(lambda: gateway.metric("requests_total", **ended) == 1)
    assert gateway.metric("held_bytes") == 0
    writer.close()
    del reader


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("/v1/models", "GET", 200),
        ("/v1/models/m", "GET", 200),
        ("/v1/models/other", "GET", 404),
        ("/health", "GET", 200),
        ("/ready", "GET", 200),
        ("/v1/completions", "GET", 405),
        ("/v1/models", "POST", 405),
        ("/tokenize", "POST", 404),
        ("/v1/embeddings", "POST", 404),
        ("/metrics", "GET", 404),
        ("/v1/completions/", "POST", 404),
    ],
)
async def test_no_path_bypasses_admission(
    gateway: Gateway, engine: Engine, path: str, method: str, status: int
) -> None:
    response = await gateway.client.request(method, path, content=b"{}")
    assert response.status_code == status
    assert not engine.exchanges


class Refused(NamedTuple):
    status: int
    code: str | None
    body: dict[str, Any] | bytes = BODY
    headers: tuple[tuple[str, str], ...] = ()


@pytest.mark.parametrize(
    "case",
    [
        Refused(400, "invalid_json", b"not json"),
        Refused(404, "model_not_found", {**BODY, "model": "other"}),
        Refused(400, "unsupported_parameter", {**BODY, "priority": -5}),
        Refused(400, "unknown_tier", headers=(("x_penstock_tier", "gold"),)),
        Refused(400, "not_allowed", headers=(("x_penstock_tier", "batch"), ("x_slo_ttft_ms", "5"))),
        Refused(415, None, headers=(("content_encoding", "gzip"),)),
    ],
)
async def test_a_request_that_cannot_be_served_is_refused_before_admission_and_does_not_hop(
    gateway: Gateway, engine: Engine, case: Refused
) -> None:
    response = await gateway.ask(case.body, **dict(case.headers))
    assert (response.status_code, response.json()["error"]["code"]) == (case.status, case.code)
    assert response.headers["x-should-retry"] == "false"
    assert "x-penstock-rejected" not in response.headers
    assert gateway.metric("refused_total", status=str(case.status)) == 1
    assert not engine.exchanges


APPLICATIONS = pool_of(
    applications=[{"name": "ide", "tier": "chat", "allow": [], "keys": {"file": "keys.txt"}}],
    defaultTier="batch",
)


@pytest.mark.parametrize("pool", [APPLICATIONS])
@pytest.mark.parametrize(
    ("headers", "tier", "verdict"),
    [
        ({"x_penstock_max_hops": "1", "x_penstock_tier": "chat"}, "chat", "admitted"),  # by the picker
        (
            {"x_penstock_max_hops": "1", "x_penstock_tier": "batch", "x_penstock_application": "ide"},
            "batch",
            "best-effort",
        ),  # which has the last word on what an application may
        ({"x_penstock_application": "ide"}, "chat", "admitted"),  # no picker: by the key that was checked
        ({"x_penstock_tier": "chat"}, "chat", "best-effort"),  # by nobody
        ({"x_penstock_application": "other"}, "batch", "best-effort"),
        ({}, "batch", "best-effort"),
    ],
)
async def test_without_picker_and_without_checked_key_a_request_gets_best_effort_at_most(
    gateway: Gateway, engine: Engine, headers: dict[str, str], tier: str, verdict: str
) -> None:
    engine.script = answer_whole
    response = await gateway.ask(WHOLE, **headers)
    assert response.headers["x-penstock-tier"] == tier
    assert response.headers["x-penstock-verdict"] == verdict


@pytest.mark.parametrize("pool", [APPLICATIONS])
async def test_each_application_has_cached_prefixes_of_its_own(gateway: Gateway, engine: Engine) -> None:
    engine.script = answer_whole
    for application in ("ide", "other", "ide"):
        await gateway.ask(WHOLE, x_penstock_application=application)
    await gateway.ask(WHOLE)
    ide, other, again, nobody = (exchange.body["cache_salt"] for exchange in engine.exchanges)
    assert ide == again
    assert len({ide, other, nobody}) == 3


@pytest.mark.parametrize("pool", [APPLICATIONS])
async def test_an_application_gets_no_tier_beyond_its_own(gateway: Gateway) -> None:
    response = await gateway.ask(x_penstock_application="ide", x_penstock_tier="batch")
    assert (response.status_code, response.json()["error"]["code"]) == (403, "tier_not_allowed")


async def test_targets_shrink_by_the_time_spent_at_earlier_endpoints(
    gateway: Gateway, engine: Engine
) -> None:
    engine.script = answer_whole
    times = {"x_penstock_timeout_ms": "3600000", "x_envoy_expected_rq_timeout_ms": "3599500"}
    await gateway.ask(WHOLE, x_slo_ttft_ms="900", **times)
    job, view = gateway.rig.policy.asked[0][0], gateway.rig.policy.views[0]
    assert job.request.targets.ttft_s == pytest.approx(0.9)
    assert view.now_s - job.request.arrival_s >= 0.5
    assert gateway.metric("ttft_seconds_count", tier="chat") == 0  # not known of this answer
    assert gateway.metric("e2e_seconds_sum", tier="chat") >= 0.5


async def test_a_fault_in_answering_fails_one_request_and_is_counted(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(request_path, "submit_fields", broken)
    response = await gateway.ask()
    assert (response.status_code, response.json()["error"]["message"]) == (500, "internal error")
    assert gateway.rig.metric("faults_total", where="http") == 1
    assert (await gateway.client.get("/health")).status_code == 200


async def test_unwritten_bytes_count_as_held(gateway: Gateway, engine: Engine) -> None:
    asking = gateway.begin(WHOLE)
    exchange = await engine.asked()
    body_bytes = gateway.metric("held_bytes")
    assert (body_bytes, gateway.metric("open_requests")) == (len(_bytes(WHOLE)), 1)
    await exchange.begin(content_type="application/json")
    await exchange.send(ANSWER)
    await exchange.end()
    await asking
    assert (gateway.metric("held_bytes"), gateway.metric("open_requests")) == (0, 0)


@pytest.mark.parametrize(("status", "ending"), [(499, "invalid"), (500, "failed")])
async def test_an_engines_error_counts_as_the_clients_or_the_engines_failure(
    gateway: Gateway, engine: Engine, status: int, ending: str
) -> None:
    asking = gateway.begin(WHOLE)
    exchange = await engine.asked()
    await exchange.begin(status, "application/json")
    await exchange.end()
    assert (await asking).status_code == status
    ended = {"tier": "chat", "verdict": "admitted", "reason": "", "ending": ending}
    assert gateway.metric("requests_total", **ended) == 1


@pytest.mark.parametrize(
    "pool", [pool_of(router={"maxBodyBytes": len(_bytes(WHOLE)), "streamBufferBytes": STREAM_BYTES})]
)
async def test_a_body_may_be_exactly_as_long_as_the_bound(gateway: Gateway, engine: Engine) -> None:
    engine.script = answer_whole
    response = await gateway.ask(WHOLE)
    assert (response.status_code, response.headers["x-penstock-hops"]) == (200, "1")
    assert (await gateway.ask(_bytes(WHOLE) + b" ")).status_code == 413


async def test_bodies_are_bounded_over_all_requests(gateway: Gateway) -> None:
    response = await gateway.ask(b"x" * (8 * 2**20 + 1))
    assert (response.status_code, response.json()["error"]["code"]) == (413, "request_too_large")


@pytest.mark.parametrize("pool", [pool_of(router={"bufferBytes": 100})])
async def test_a_body_over_the_bound_of_all_bytes_is_answered_with_the_replicas_name(
    gateway: Gateway,
) -> None:
    response = await gateway.ask(b"x" * 101)
    assert (response.status_code, response.json()["error"]["code"]) == (429, "router_full")
    assert response.json()["error"]["message"].startswith("replica r0 already buffers 100 bytes")
    assert response.headers["x-penstock-rejected"] == "1"
    assert gateway.metric("passed_on_total", tier="chat") == 1
    assert gateway.demand()["arrived"] == 1


@pytest.mark.parametrize("pool", [pool_of(router={"bufferBytes": 100})])
async def test_the_last_replica_without_room_for_a_body_answers_the_client(gateway: Gateway) -> None:
    response = await gateway.ask(b"x" * 101, **BACKUP)
    assert (response.status_code, response.json()["error"]["code"]) == (429, "router_full")
    assert "x-penstock-rejected" not in response.headers
    assert gateway.metric("passed_on_total", tier="chat") == 0


class TestTooMany:
    @pytest.fixture
    def bounds(self) -> Bounds:
        return replace(Bounds(), probe_s=0.05, requests=1)

    async def test_requests_over_the_bound_hop(self, gateway: Gateway, engine: Engine) -> None:
        first = gateway.begin()
        await engine.asked()
        response = await gateway.ask()
        assert (response.status_code, response.headers["x-penstock-reason"]) == (429, "queue_full")
        assert response.headers["x-penstock-rejected"] == "1"
        first.cancel()

    async def test_a_backup_without_capacity_answers_the_client(
        self, gateway: Gateway, engine: Engine
    ) -> None:
        first = gateway.begin(BODY, x_envoy_attempt_count="2")
        await engine.asked()
        response = await gateway.ask(**BACKUP)
        assert (response.status_code, response.headers["x-penstock-reason"]) == (429, "queue_full")
        assert "x-penstock-rejected" not in response.headers
        assert gateway.metric("passed_on_total", tier="chat") == 0
        assert gateway.demand()["rejected"] == 1
        first.cancel()


async def answer_whole(exchange: Any) -> None:
    await exchange.begin(content_type="application/json")
    await exchange.send(ANSWER)
    await exchange.end()
