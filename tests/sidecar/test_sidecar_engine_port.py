"""Gateways' requests at the engine's own port: the engine asks, the sidecar decides, the engine answers."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import orjson
import pytest
from patience import eventually
from penstock_core.domain.ticket import TICKET, opened
from penstock_core.domain.verdict import BestEffort, Reason, Rejected
from penstock_pool import Pool
from penstock_proto import replica_pb2 as wire
from penstock_proto.engine_calls import (
    LONGEST_BYTES,
    Call,
    Proceed,
    Progress,
    Reply,
    Report,
    decided_body,
    framed,
)
from penstock_proto.sidecar_calls import SidecarAway, SidecarCall, SidecarCalls
from penstock_proto.telemetry_pb2 import StepReport
from penstock_routing.demand import Demand
from penstock_runtime.serving import StartError
from penstock_sidecar.bounds import Bounds
from penstock_sidecar.http.engine_socket import ApiServers, engine_connections
from penstock_sidecar.http.http_serving import http_app
from penstock_sidecar.requests.faults import Faults

from tests.sidecar.conftest import DONE, TOKEN, Engine, Rig
from tests.sidecar.test_sidecar_http import pool_of
from tests.sidecar.test_sidecar_tickets import KEY, runs

BODY: dict[str, Any] = {"model": "m", "prompt": [1, 2, 3], "max_tokens": 5, "stream": True}
WHOLE = {**BODY, "stream": False}
USAGE = b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}'
PICKED = {"x-penstock-tier": "chat", "x-penstock-max-hops": "1"}


@pytest.fixture
async def rig(engine: Engine, bounds: Bounds) -> AsyncIterator[Rig]:
    made = Rig(engine, bounds, reads_fields=True, ticket_key=KEY)
    async with made.serving():
        yield made


@pytest.fixture
def pool() -> Pool:
    """A test may override this."""
    return pool_of()


Body = dict[str, Any] | bytes


class Port:
    """The engine's port: asks the sidecar about requests."""

    def __init__(self, rig: Rig, path: Path, connections: ApiServers, demand: Demand) -> None:
        self.rig, self.path, self.connections, self._demand = rig, path, connections, demand
        self.calls = SidecarCalls(path)
        self._connecting = asyncio.create_task(self.calls.run())

    def ask(self, body: Body = BODY, /, target: str = "POST /v1/completions", **headers: str) -> SidecarCall:
        method, path = target.split()
        written = body if isinstance(body, bytes) else orjson.dumps(body)
        named = {name.replace("_", "-").encode(): text.encode() for name, text in headers.items()}
        return self.calls.begin(method, path, list(named.items()), written)

    async def asked(self, body: Body = BODY, /, **headers: str) -> tuple[SidecarCall, Proceed]:
        """A request that the sidecar has accepted."""
        call = self.ask(body, "POST /v1/completions", **headers)
        decision = await call.decided
        assert isinstance(decision, Proceed), decision
        return call, decision

    async def replied(
        self, body: Body = BODY, /, target: str = "POST /v1/completions", **headers: str
    ) -> Reply:
        """The sidecar's response to a request that it does not accept."""
        reply = await self.ask(body, target, **headers).decided
        assert isinstance(reply, Reply), reply
        return reply

    async def ended(self) -> None:
        await eventually(lambda: self.rig.replica.unfinished == 0)

    def demand(self) -> dict[str, int]:
        counted = json.loads(self._demand.page(0, ()))["tiers"]["chat"]
        return {name: count for name, count in counted.items() if count}

    def metric(self, name: str, **labels: str) -> float:
        return self.rig.registry.get_sample_value(f"penstock_replica_http_{name}", labels) or 0.0

    def requests(self, ending: str) -> float:
        """Requests with this ending."""
        return sum(
            sample.value
            for metric in self.rig.registry.collect()
            for sample in metric.samples
            if sample.name == "penstock_replica_http_requests_total" and sample.labels["ending"] == ending
        )

    async def stop(self) -> None:
        self._connecting.cancel()
        with suppress(asyncio.CancelledError):
            await self._connecting


@pytest.fixture
async def port(rig: Rig, pool: Pool, tmp_path: Path) -> AsyncIterator[Port]:
    demand = Demand(pool.tiers())
    app = http_app(
        "r0",
        pool,
        rig.replica,
        rig.estimates,
        demand=demand,
        registry=rig.registry,
        faults=Faults(rig.metrics.faults),
    )
    path = tmp_path / "calls.sock"
    async with engine_connections(path, app.at_engine) as connections:
        made = Port(rig, path, connections, demand)
        await eventually(lambda: bool(connections))
        yield made
        await made.stop()


def id_of(proceed: Proceed) -> str:
    """The sidecar's id of an accepted request, from its ticket."""
    ticket = opened(json.loads(decided_body(b'{"a":0}', proceed))["vllm_xargs"][TICKET], KEY)
    assert ticket is not None
    return str(ticket.fields["penstock_id"])


def error_of(reply: Reply) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(reply.body)["error"]
    return error


async def test_an_accepted_request_gets_a_ticket_and_the_headers_of_its_answer(port: Port, rig: Rig) -> None:
    _, proceed = await port.asked(x_request_id="mine", x_envoy_attempt_count="2")
    sent = json.loads(decided_body(orjson.dumps(BODY), proceed))
    assert {name: sent[name] for name in BODY} == BODY
    ticket = opened(sent["vllm_xargs"][TICKET], KEY)
    assert ticket is not None and ticket.fields["penstock_tier"] == "chat"
    assert proceed.request_id == "mine"
    assert dict(proceed.headers) == {
        b"x-request-id": b"mine",
        b"x-penstock-tier": b"chat",
        b"x-penstock-verdict": b"admitted",
        b"x-penstock-replica": b"r0",
        b"x-penstock-hops": b"2",
    }
    assert rig.replica.unfinished == 1 and not rig.engine.exchanges


@pytest.mark.parametrize("end", [b"", b"  \n"], ids=["no space", "space"])
@pytest.mark.parametrize(
    "pool",
    [pool_of(), pool_of(applications=[{"name": "a", "tier": "chat", "keys": {"file": "keys"}}])],
    ids=["one application", "isolated applications"],
)
async def test_the_engine_s_body_is_the_client_s_with_additions_at_its_end(
    pool: Pool, end: bytes, port: Port
) -> None:
    written = orjson.dumps(BODY) + end
    _, proceed = await port.asked(written, **{name.replace("-", "_"): text for name, text in PICKED.items()})
    served = decided_body(written, proceed)
    assert served.startswith(orjson.dumps(BODY)[:-1])
    added = set(json.loads(served)) - set(BODY)
    assert added == ({"vllm_xargs", "cache_salt"} if pool.spec.applications else {"vllm_xargs"})


async def test_a_stream_that_the_engine_has_written_is_counted_as_answered_and_judged(
    port: Port, rig: Rig
) -> None:
    call, _ = await port.asked()
    call.wrote(TOKEN)
    await eventually(lambda: port.demand().get("admitted") == 1)
    call.wrote(TOKEN)
    call.wrote(b"data: " + USAGE + b"\n\n" + DONE)
    call.stream_ended()
    await port.ended()
    await eventually(lambda: port.requests("answered") == 1)
    assert port.demand() == {
        "arrived": 1, "admitted": 1, "hops": 1, "judged": 1, "met": 1, "all_judged": 1, "all_met": 1
    }  # fmt: skip
    assert port.metric("ttft_seconds_count", tier="chat") == 1
    assert port.metric("tpot_seconds_count", tier="chat") == 1
    assert rig.metric("direct_answers_total", outcome="whole") == 1


async def test_times_of_tokens_are_the_engine_s_and_count_from_when_it_had_read_the_request(
    port: Port,
) -> None:
    """TTFT 0.5 s, then 0.2 s a token: the tier's TPOT is 0.1 s."""
    port.calls._clock = iter([now_s := monotonic(), now_s + 0.5, now_s + 0.7, now_s + 0.9]).__next__
    call, _ = await port.asked()
    for _ in range(3):
        call.wrote(TOKEN)
    call.wrote(DONE)
    call.stream_ended()
    await port.ended()
    await eventually(lambda: port.requests("answered") == 1)
    assert port.metric("ttft_seconds_sum", tier="chat") == pytest.approx(0.5, abs=1e-6)
    assert port.metric("tpot_seconds_sum", tier="chat") == pytest.approx(0.2, abs=1e-6)
    assert port.metric("slo_missed_total", tier="chat", why="tpot") == 1
    assert port.metric("slo_missed_total", tier="chat", why="ttft") == 0


async def test_an_answer_in_one_piece_has_the_token_times_of_step_reports(port: Port, rig: Rig) -> None:
    call, proceed = await port.asked(WHOLE)
    rig.reports.receive([runs(id_of(proceed), 2, 1)])
    call.answered(USAGE)
    await port.ended()
    await eventually(lambda: port.requests("answered") == 1)
    assert port.metric("ttft_seconds_count", tier="chat") == 1
    assert port.metric("untimed_answers_total", tier="chat") == 0


async def test_a_rejection_is_a_response_after_which_the_gateway_hops(port: Port, rig: Rig) -> None:
    rig.policy.answers = lambda _: Rejected(Reason.DECODE_BUDGET, 2.5)
    reply = await port.replied(x_penstock_max_hops="1", x_penstock_tier="chat")
    headers = dict(reply.headers)
    assert (reply.status, headers[b"x-penstock-rejected"]) == (429, b"1")
    assert headers[b"x-penstock-reason"] == b"decode_budget" and int(headers[b"retry-after"]) >= 3
    assert int(headers[b"content-length"]) == len(reply.body)
    assert not {b"date", b"connection", b"transfer-encoding"} & set(headers)
    assert error_of(reply)["code"] == "slo_unattainable"
    await eventually(lambda: port.metric("passed_on_total", tier="chat") == 1)


async def test_a_best_effort_verdict_is_in_headers_and_ticket(port: Port, rig: Rig) -> None:
    rig.policy.answers = lambda _: BestEffort()
    _, proceed = await port.asked()
    assert dict(proceed.headers)[b"x-penstock-verdict"] == b"best-effort"


@pytest.mark.parametrize(
    ("target", "body", "status"),
    [
        ("POST /v1/completions", b"no json", 400),
        ("GET /v1/completions", b"", 405),
        ("POST /v1/load_lora_adapter", b"{}", 404),
        ("POST /v1/responses", b"{}", 404),
        ("POST /tokenize", b"{}", 404),
        ("GET /v1/models", b"", 200),
    ],
)
async def test_only_generating_requests_reach_the_engine(
    target: str, body: bytes, status: int, port: Port
) -> None:
    reply = await port.replied(body, target)
    assert reply.status == status
    if status >= 400:
        assert error_of(reply)["message"]


async def test_a_client_that_leaves_at_once_and_one_that_leaves_a_stream(port: Port, rig: Rig) -> None:
    port.ask().client_gone()
    call, _ = await port.asked()
    assert rig.replica.unfinished == 1
    call.wrote(TOKEN)
    call.client_gone()
    await port.ended()
    await eventually(lambda: port.requests("client_gone") == 1)


async def test_an_engine_s_error_is_the_response_and_a_full_engine_hops(port: Port) -> None:
    call, _ = await port.asked(x_request_id="mine")
    reply = await call.refused(400, b'{"error":{"message":"bad"}}')
    assert reply is not None and (reply.status, error_of(reply)) == (400, {"message": "bad"})
    assert dict(reply.headers)[b"x-request-id"] == b"mine"
    call, _ = await port.asked(x_penstock_max_hops="1", x_penstock_tier="chat")
    reply = await call.refused(503, b"")
    assert reply is not None and (b"x-penstock-rejected", b"1") in reply.headers
    await port.ended()


async def test_an_answer_that_the_engine_cuts_off_has_failed(port: Port, rig: Rig) -> None:
    call, _ = await port.asked()
    call.wrote(TOKEN)
    call.stream_ended()  # without [DONE]
    await port.ended()
    await eventually(lambda: port.requests("failed") == 1)
    assert port.metric("slo_missed_total", tier="chat", why="failed") == 1


async def test_a_drain_returns_requests_that_have_not_begun_and_waits_for_others(
    port: Port, rig: Rig
) -> None:
    begun, proceed = await port.asked()
    rig.reports.receive([runs(id_of(proceed), 1, 1)])
    begun.wrote(TOKEN)
    waiting, _ = await port.asked()
    draining = asyncio.create_task(rig.replica.drain(None))
    await eventually(lambda: waiting.reply is not None)
    assert waiting.reply is not None and waiting.reply.status == 503
    assert (b"x-penstock-rejected", b"1") in waiting.reply.headers
    assert begun.reply is None and not draining.done()
    begun.wrote(DONE)
    begun.stream_ended()
    assert await draining == 0


async def test_a_request_that_is_lost_in_the_engine_ends_with_an_error(port: Port, rig: Rig) -> None:
    call, _ = await port.asked()
    call.wrote(TOKEN)
    await eventually(lambda: port.demand().get("admitted") == 1)
    rig.replica.engine_down(all_lost=True)
    await eventually(lambda: call.reply is not None)
    assert call.reply is not None and error_of(call.reply)["code"] == "engine_lost"
    await eventually(lambda: port.requests("failed") == 1)


async def test_the_loss_of_an_api_server_ends_its_requests_and_no_others(port: Port, rig: Rig) -> None:
    other = Port(rig, port.path, port.connections, port._demand)
    await eventually(lambda: len(port.connections.open) == 2)
    await port.asked()
    call, _ = await other.asked()
    await port.stop()
    await eventually(lambda: port.requests("failed") == 1)
    assert rig.replica.unfinished == 1
    call.wrote(DONE)
    call.stream_ended()
    await port.ended()
    assert port.requests("answered") == 1
    await other.stop()


async def test_a_sidecar_that_is_lost_fails_undecided_requests_only(port: Port, rig: Rig) -> None:
    accepted, _ = await port.asked()
    rig.policy.answers = lambda _: (_ for _ in ()).throw(AssertionError)
    undecided = port.ask()
    for connection in list(port.connections.open):
        connection.close()
    with pytest.raises(SidecarAway):
        await undecided.decided
    accepted.wrote(TOKEN)
    accepted.wrote(DONE)
    accepted.stream_ended()
    assert await accepted.refused(400, b"") is None
    await eventually(lambda: bool(port.connections))  # it has connected again
    rig.policy.answers = lambda _: BestEffort()
    await eventually(lambda: port.calls.connected)
    await port.asked()


async def test_without_a_sidecar_no_request_begins(tmp_path: Path) -> None:
    calls = SidecarCalls(tmp_path / "nobody.sock")
    with pytest.raises(SidecarAway):
        calls.begin("POST", "/v1/completions", [], b"{}")


@pytest.mark.parametrize(
    "bytes_sent",
    [
        b"\xff\xff\xff\xff",
        (LONGEST_BYTES + 1).to_bytes(4, "big"),
        b"\x00\x00\x00\x03abc",
        framed(Reply(1, 200, [], b"")),
    ],
    ids=["a huge message", "one over the bound", "no message", "a message of the other side"],
)
async def test_bytes_that_are_no_message_end_their_connection_only(bytes_sent: bytes, port: Port) -> None:
    reader, writer = await asyncio.open_unix_connection(str(port.path))
    writer.write(framed(Call(1, "GET", "/health", [], b"", 0.0)))
    assert await reader.readexactly(4)
    writer.write(bytes_sent)
    with suppress(ConnectionError):
        await reader.read()
    assert reader.at_eof() or reader.exception() is not None
    writer.close()
    await port.asked()  # the other connection


async def test_reports_about_unknown_and_ended_requests_are_ignored(port: Port, rig: Rig) -> None:
    call, _ = await port.asked()
    for id in (0, 77):
        port.calls._send(Report(id, Progress.WHOLE))
    call.wrote(DONE)
    call.stream_ended()
    await port.ended()
    await port.asked()
    assert rig.metric("faults_total", where="direct") == 0


async def test_an_engine_that_does_not_read_loses_its_connection(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock_sidecar.http.engine_socket.UNREAD_BYTES", 1 << 16)
    reader, writer = await asyncio.open_unix_connection(str(port.path), limit=1)  # pauses at two bytes
    await eventually(lambda: len(port.connections.open) == 2)
    for id in range(20_000):
        writer.write(framed(Call(id, "GET", "/v1/models", [], b"", 0.0)))
        if id % 500 == 0:
            await asyncio.sleep(0)
    await eventually(lambda: len(port.connections.open) == 1)
    writer.close()
    assert not reader.at_eof()
    await port.asked()


async def test_a_socket_s_path_that_cannot_be_bound_ends_the_start(tmp_path: Path) -> None:
    async def nothing(_: Any) -> None: ...

    with pytest.raises(StartError, match="cannot listen for the engine"):
        async with engine_connections(tmp_path / "missing" / "calls.sock", nothing):
            pass
    path = tmp_path / "calls.sock"
    for _ in range(2):  # the second replaces the socket of a process that was killed
        async with engine_connections(path, nothing):
            assert path.stat().st_mode & 0o777 == 0o600
            if not _:
                kept = path.rename(tmp_path / "kept")
        if not _:
            kept.rename(path)


async def test_requests_of_the_engine_s_port_are_planned_while_reports_are_missing(
    port: Port, rig: Rig
) -> None:
    """The engine that asks checks tickets; its reports say so a little later."""
    assert not rig.mirror.checks_tickets
    _, proceed = await port.asked()
    assert b"penstock_ticket" in proceed.body_end
    rig.reports.receive([StepReport(sequence=1, kv_blocks_total=500, kv_blocks_free=500, block_tokens=16)])
    await port.asked()


async def test_describe_names_the_engine_s_port_while_it_asks(rig: Rig) -> None:
    port = 0
    rig.service._identity = rig.service._identity.__class__("r0", "m", "p", http_port=lambda: port)
    async with rig.router() as router:
        for port in (7002, 8000):
            assert (await router.stub.Describe(wire.DescribeRequest())).http_port == port
