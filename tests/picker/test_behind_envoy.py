"""The real Envoy asks the picker: by ext_authz over HTTP, and by ext_proc as gateways of others do."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx2
import orjson
import pytest
from gateway.envoy import PATIENCE_S, Gateway, ext_authz, ext_proc, gateway
from gateway.picking import chat, ext_authz_address, ext_proc_address, picker_of
from gateway.replica import HttpReplica
from patience import eventually
from penstock_picker.picker import Picker
from penstock_pool import Application
from penstock_proto.engine_calls import DECIDED
from penstock_runtime.envoy.ext_authz import PickerFilter
from penstock_runtime.openai_errors import ApiError
from penstock_runtime.serving import address_of, listen
from scripted.router import pool_with

BODY = orjson.dumps(chat())


@dataclass(frozen=True, slots=True)
class Front:
    """A way to ask: where the picker listens, and how Envoy is configured for it.

    opens: whether Envoy can fail open for a request with a body; it cannot once it has streamed it away.
    too_slow: the status of a request whose picker does not answer in time, where Envoy fails closed.
    """

    address: Callable[..., AbstractAsyncContextManager[str]]
    asks: Callable[..., PickerFilter]
    opens: bool = True
    too_slow: int = 504

    @property
    def failures(self) -> tuple[bool, ...]:
        """How this front may fail: open or not."""
        return (True, False) if self.opens else (False,)

    @asynccontextmanager
    async def behind(
        self, tmp_path: Path, *replicas: HttpReplica, fail_open: bool = False
    ) -> AsyncIterator[tuple[Gateway, Picker]]:
        async with (
            picker_of(replicas) as picker,
            self.address(picker) as address,
            gateway(
                tmp_path, self.asks(address, fail_open=fail_open), [r.endpoint for r in replicas]
            ) as envoy,
        ):
            yield envoy, picker


FRONTS = {
    "ext_authz": Front(ext_authz_address, ext_authz, too_slow=503),
    "ext_proc": Front(ext_proc_address, ext_proc, opens=False, too_slow=503),
    "ext_proc-buffered": Front(ext_proc_address, partial(ext_proc, mode="BUFFERED")),
}


@pytest.fixture(params=FRONTS)
def front(request: pytest.FixtureRequest) -> Front:
    return FRONTS[request.param]


def replicas() -> tuple[HttpReplica, HttpReplica]:
    return HttpReplica("r0"), HttpReplica("r1")


async def test_a_request_reaches_the_first_replica_of_the_order(front: Front, tmp_path: Path) -> None:
    r0, r1 = replicas()
    async with front.behind(tmp_path, r0, r1) as (envoy, _):
        answer = await envoy.chat(BODY, x_penstock_tier="coder")
        assert (answer.status_code, answer.json()) == (200, {"replica": "r0"})
        assert answer.headers["x-penstock-hops"] == "1"
        (seen,) = r0.seen
        assert seen.body == BODY
        assert seen.headers["x-penstock-tier"] == "coder"
        assert seen.headers["x-penstock-max-hops"] == "2"
        endpoints = [r0.endpoint, r1.endpoint, r0.endpoint, r1.endpoint]
        assert seen.headers["x-gateway-destination-endpoint"] == ",".join(endpoints)
        assert (await envoy.chat(BODY)).json() == {"replica": "r1"}


async def test_only_a_rejection_hops(front: Front, tmp_path: Path) -> None:
    r0, r1 = replicas()
    async with front.behind(tmp_path, r0, r1) as (envoy, _):
        r0.rejects = True
        answer = await envoy.chat(BODY)
        assert (answer.json(), answer.headers["x-penstock-hops"]) == ({"replica": "r1"}, "2")
        assert r1.seen[-1].headers["x-envoy-attempt-count"] == "2"


async def test_a_backup_that_cannot_be_reached_is_replaced_by_another_replica(
    front: Front, tmp_path: Path
) -> None:
    r0, r1 = replicas()
    r0.busy = r1.busy = r0.leaves = True
    async with front.behind(tmp_path, r0, r1) as (envoy, _):
        answer = await envoy.chat(BODY)
        assert (answer.status_code, answer.json()) == (200, {"replica": "r1"})
        assert answer.headers["x-penstock-hops"] == "4"
        assert (len(r0.seen), [seen.backup for seen in r1.seen]) == (1, [False, True])


async def test_the_backup_is_asked_last_and_its_answer_is_the_clients(front: Front, tmp_path: Path) -> None:
    r0, r1 = replicas()
    r0.rejects = r1.rejects = True
    async with front.behind(tmp_path, r0, r1) as (envoy, _):
        answer = await envoy.chat(BODY)
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")
        assert answer.json()["error"]["code"] == "slo_unattainable"
        assert ([seen.backup for seen in r0.seen], len(r1.seen)) == ([False, True], 1)


async def test_headers_reserved_for_the_picker_are_removed_from_client_requests(
    front: Front, tmp_path: Path
) -> None:
    r0, r1 = replicas()
    async with front.behind(tmp_path, r0, r1, fail_open=True) as (envoy, _):
        smuggled = {
            "x_gateway_destination_endpoint": r1.endpoint,
            "x_gateway_destination_endpoint_subset": r1.endpoint,
            "x_envoy_max_retries": "9",
            "x_penstock_max_hops": "0",
            "x_penstock_timeout_ms": "5",
            "x_penstock_application": "ide",
            "x_prefiller_host_port": "10.0.0.1:1",
            "x_penstock_decided": "1",
        }
        assert (await envoy.chat(BODY, **smuggled)).json() == {"replica": "r0"}
        (seen,) = r0.seen
        assert seen.headers["x-penstock-max-hops"] == "2"
        assert seen.headers["x-penstock-timeout-ms"] == seen.headers["x-envoy-expected-rq-timeout-ms"]
        assert not {"x-prefiller-host-port", "x-penstock-application", DECIDED} & seen.headers.keys()
        assert "x-gateway-destination-endpoint-subset" not in seen.headers


async def test_an_endpoint_that_the_gateway_does_not_know_is_passed_over(
    front: Front, tmp_path: Path
) -> None:
    r0, r1 = replicas()
    async with (
        picker_of((r0, r1)) as picker,
        front.address(picker) as address,
        gateway(tmp_path, front.asks(address), [r1.endpoint]) as envoy,
    ):
        assert (await envoy.chat(BODY)).json() == {"replica": "r1"}


async def test_an_invalid_request_is_answered_by_the_picker(front: Front, tmp_path: Path) -> None:
    r0 = HttpReplica("r0")
    async with front.behind(tmp_path, r0) as (envoy, _):
        for body, status, code in (
            (b"{", 400, "invalid_json"),
            (b"", 400, "invalid_json"),
            (orjson.dumps(chat(model="other")), 404, "model_not_found"),
            (b"[" * 100_000, 400, "invalid_json"),
            (b'{"model": "test/model", "x": ' + b"[" * 5000 + b"]" * 5000 + b"}", 400, "too_complex"),
        ):
            answer = await envoy.chat(body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), body[:40]
        assert (await envoy.chat(BODY, x_penstock_tier="gold")).json()["error"]["code"] == "unknown_tier"
        assert (await envoy.http.get("/v1/nothing")).status_code == 404
        assert (await envoy.http.get("/v1/models")).json() == {"replica": "r0"}
        assert len(r0.seen) == 1
        assert (await envoy.chat(BODY)).status_code == 200


async def test_a_long_body_arrives_whole_and_one_over_the_bound_is_413(front: Front, tmp_path: Path) -> None:
    r0 = HttpReplica("r0")
    async with front.behind(tmp_path, r0) as (envoy, picker):
        full = orjson.dumps(chat(user="u" * (picker.max_body_bytes - len(orjson.dumps(chat(user=""))))))
        assert len(full) == picker.max_body_bytes
        assert (await envoy.chat(full)).status_code == 200
        assert r0.seen[-1].body == full
        answer = await envoy.chat(full + b" ")
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")


async def test_a_body_past_the_pickers_budget_is_429_and_the_next_is_served(
    front: Front, tmp_path: Path
) -> None:
    async with front.behind(tmp_path, HttpReplica("r0")) as (envoy, picker):
        picker.budget.bound_bytes = len(BODY) - 1
        answer = await envoy.chat(BODY, x_request_id="mine")
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        assert answer.headers["x-request-id"] == "mine"
        assert answer.json()["error"]["code"] == "router_full"
        picker.budget.bound_bytes += 1
        assert (await envoy.chat(BODY)).status_code == 200
        assert picker.budget.held_bytes == 0


async def test_no_replica_is_503_with_retry_after(front: Front, tmp_path: Path) -> None:
    r0 = HttpReplica("r0")
    async with front.behind(tmp_path, r0) as (envoy, picker):
        r0.send_snapshot(draining=True)
        await eventually(lambda: not picker._replica_set.loads())
        answer = await envoy.chat(BODY)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_replicas")
        assert answer.headers["retry-after"] == "1"


async def test_without_the_picker_a_gateway_that_fails_open_loses_only_the_order(
    front: Front, tmp_path: Path
) -> None:
    r0, r1 = replicas()
    async with picker_of((r0, r1)) as picker:
        for fail_open in front.failures:
            while_down = 200 if fail_open else 503
            async with front.address(picker) as address:
                port = int(address.rpartition(":")[2])
            asks = front.asks(address, fail_open=fail_open)
            async with gateway(tmp_path, asks, [r0.endpoint, r1.endpoint]) as envoy:
                assert (await envoy.chat(BODY)).status_code == while_down
                async with front.address(picker, port):
                    assert (await envoy.chat(BODY)).status_code == 200
                    picked = [each for each in r0.seen + r1.seen if "x-penstock-tier" in each.headers]
                    assert len(picked) == 1
                    r0.seen, r1.seen = [], []


async def test_a_slow_picker_times_out(front: Front, tmp_path: Path) -> None:
    r0 = HttpReplica("r0")
    async with picker_of((r0,)) as picker:
        silent = listen("127.0.0.1", 0)
        for fail_open in front.failures:
            asks = front.asks(address_of(silent), fail_open=fail_open, timeout=0.05)
            async with gateway(tmp_path, asks, [r0.endpoint]) as envoy:
                assert (await envoy.chat(BODY)).status_code == (200 if fail_open else front.too_slow)
        silent.close()
        assert picker.metrics.registry.get_sample_value("penstock_picker_faults_total") == 0


async def test_streams_outlive_the_picker(front: Front, tmp_path: Path) -> None:
    r0 = HttpReplica("r0")
    r0.streams = True
    async with picker_of((r0,)) as picker, AsyncExitStack() as stack:
        async with front.address(picker) as address:
            envoy = await stack.enter_async_context(gateway(tmp_path, front.asks(address), [r0.endpoint]))
            request = envoy.http.build_request("POST", "/v1/chat/completions", content=BODY)
            stream = await envoy.http.send(request, stream=True)
        r0.held.set()
        assert (await stream.aread()).endswith(b"[DONE]\n\n")


async def test_a_disconnected_client_ends_its_request_at_the_replica(front: Front, tmp_path: Path) -> None:
    r0 = HttpReplica("r0")
    r0.streams = True
    async with front.behind(tmp_path, r0) as (envoy, _):
        request = envoy.http.build_request("POST", "/v1/chat/completions", content=BODY)
        stream = await envoy.http.send(request, stream=True)
        assert stream.status_code == 200 and not r0.gone.is_set()
        await stream.aclose()
        await eventually(r0.gone.is_set)


async def test_an_envoy_that_is_killed_ends_its_requests_and_the_next_one_serves(
    front: Front, tmp_path: Path
) -> None:
    r0 = HttpReplica("r0")
    async with picker_of((r0,)) as picker, front.address(picker) as address:
        r0.streams = True
        async with gateway(tmp_path, front.asks(address), [r0.endpoint]) as envoy:
            request = envoy.http.build_request("POST", "/v1/chat/completions", content=BODY)
            stream = await envoy.http.send(request, stream=True)
            envoy.process.kill()
            await eventually(r0.gone.is_set)
            with pytest.raises(httpx2.TransportError):
                await stream.aread()
        r0.streams = False
        async with gateway(tmp_path, front.asks(address), [r0.endpoint]) as envoy:
            assert (await envoy.chat(BODY)).status_code == 200
        assert picker.metrics.registry.get_sample_value("penstock_picker_faults_total") == 0


async def test_a_client_that_does_not_read_slows_its_own_stream_and_no_other(
    front: Front, tmp_path: Path
) -> None:
    r0 = HttpReplica("r0")
    async with front.behind(tmp_path, r0) as (envoy, _):
        r0.floods = True
        request = envoy.http.build_request("POST", "/v1/chat/completions", content=BODY)
        stream = await envoy.http.send(request, stream=True)
        await r0.held_back.wait()
        r0.floods = False
        assert (await envoy.chat(BODY)).status_code == 200
        assert stream.status_code == 200 and not r0.gone.is_set()
        await stream.aclose()
        await eventually(r0.gone.is_set)


def limit_headers(answer: httpx2.Response) -> dict[str, str]:
    """The headers about limits, without the times, which pass."""
    prefix = "x-ratelimit-"
    named = {name.removeprefix(prefix): text for name, text in answer.headers.items() if prefix in name}
    return {name: text for name, text in named.items() if not name.startswith("reset-")}


async def test_an_admitted_answer_has_the_headers_about_limits_by_ext_authz_only(
    front: Front, tmp_path: Path
) -> None:
    limits = {"requestsPerMinute": 5, "tokensPerMinute": 100_000}
    pool = pool_with(
        applications=[{"name": "ide", "tier": "coder", "keys": {"file": "keys"}, "limits": limits}]
    )
    r0 = HttpReplica("r0")
    async with (
        picker_of((r0,), pool, {"sk-ide": pool.spec.applications[0]}) as picker,
        front.address(picker) as address,
        gateway(tmp_path, front.asks(address), [r0.endpoint]) as envoy,
    ):
        answer = await envoy.chat(orjson.dumps(chat(max_tokens=7)), authorization="Bearer sk-ide")
        assert answer.status_code == 200
        seen = limit_headers(answer)
        if front is not FRONTS["ext_authz"]:
            assert seen == {}
            return
        tokens = int(seen.pop("remaining-tokens"))
        assert seen == {"limit-requests": "5", "remaining-requests": "4", "limit-tokens": "100000"}
        assert tokens < 100_000
        assert not any("ratelimit" in name for name in r0.seen[-1].headers)


async def test_keys_name_the_tier_and_go_no_further_than_the_picker(front: Front, tmp_path: Path) -> None:
    pool = pool_with(
        applications=[
            {"name": "ide", "tier": "coder", "keys": {"file": "keys"}, "limits": {"requestsPerMinute": 2}}
        ]
    )
    ide: Application = pool.spec.applications[0]
    r0 = HttpReplica("r0")
    async with (
        picker_of((r0,), pool, {"sk-ide": ide}) as picker,
        front.address(picker) as address,
        gateway(tmp_path, front.asks(address), [r0.endpoint]) as envoy,
    ):
        answer = await envoy.chat(BODY)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
        for status in (200, 200, 429):
            answer = await envoy.chat(BODY, authorization="Bearer sk-ide")
            assert answer.status_code == status
        assert answer.json()["error"]["code"] == "rate_limit_exceeded"
        assert int(answer.headers["retry-after"]) > 0
        assert r0.seen[-1].headers["x-penstock-tier"] == "coder"
        answer = await envoy.chat(BODY, authorization="Bearer sk-ide", x_penstock_tier="chat")
        assert answer.json()["error"]["code"] == "tier_not_allowed"


REFUSED_BY_ENVOY = {
    b"GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n": (
        403,
        "no other protocol is supported",
    ),
    b"GET / HTTP/1.0\r\nhost: a\r\n\r\n": (426, "HTTP/1.0 is not supported"),
    b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip\r\n\r\n": (
        501,
        "no transfer encoding other than chunked is supported",
    ),
}


async def test_what_envoy_itself_refuses_has_the_format_of_openai(front: Front, tmp_path: Path) -> None:
    async with front.behind(tmp_path, *replicas()) as (envoy, _):
        for raw, (status, message) in REFUSED_BY_ENVOY.items():
            head, body = await raw_answer(envoy.settings.api.port, raw)
            assert head.split()[1] == str(status).encode()
            assert b"x-should-retry: false" in head and b"retry-after" not in head
            assert orjson.loads(body)["error"] == ApiError(status, message).as_dict()
        answer = await envoy.chat(b"{]")
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")


@pytest.mark.parametrize("line", [b"OPTIONS *", b"CONNECT a:443"])
async def test_a_request_for_no_path_is_404_in_the_format_of_openai(line: bytes, tmp_path: Path) -> None:
    async with FRONTS["ext_authz"].behind(tmp_path, *replicas()) as (envoy, _):
        raw = line + b" HTTP/1.1\r\nhost: a:443\r\nconnection: close\r\n\r\n"
        head, body = await raw_answer(envoy.settings.api.port, raw)
        assert head.startswith(b"HTTP/1.1 404 ") and b"x-should-retry: false" in head
        assert orjson.loads(body)["error"]["code"] == "not_found"
        answer = await envoy.http.get("/other")
        assert answer.json()["error"]["message"] == "no such path: /other"  # the picker's


@pytest.mark.parametrize("headers", [{f"x-{number}": "1" for number in range(88)}, {"cookie": "a" * 32_500}])
async def test_headers_past_the_bound_only_with_those_of_the_picker_are_431(
    headers: dict[str, str], tmp_path: Path
) -> None:
    async with FRONTS["ext_authz"].behind(tmp_path, *replicas()) as (envoy, _):
        answer = await envoy.chat(BODY, **headers)
        assert (answer.status_code, answer.headers["x-should-retry"]) == (431, "false")
        assert "with those that the gateway adds" in answer.json()["error"]["message"]
        assert "retry-after" not in answer.headers


async def raw_answer(port: int, request: bytes) -> tuple[bytes, bytes]:
    """Return the head and the body of an answer, after which Envoy closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(PATIENCE_S):
        writer.write(request)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return head, body
