"""A replay against a small server on a real socket: requests, counts and errors."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from penstock_cli.failure import Failure
from penstock_cli.replay.outcome import RequestEnding
from penstock_cli.replay.report import Report, prefix_lines
from penstock_cli.replay.run import ReplaySettings, replay
from penstock_cli.replay.tier_slos import TierSlos
from penstock_core.domain.slo import Slo
from rich.console import Console

QUIET = Console(quiet=True)
DONE = b"data: [DONE]\n\n"
POOL = {
    "model": "m",
    "policy": "slos-serve",
    "default_tier": "chat",
    "replicas": [{"name": "r0"}, {"name": "r1"}],
    "tiers": {"chat": {"ttft_s": 30.0, "tpot_s": 30.0}, "coder": {"ttft_s": 1e-9}},
    "time_model": None,
}


@dataclass
class Server:
    """An OpenAI-compatible server with scripted behaviour, which is its own admin port too.

    received: bodies, in order of arrival. names_admin_port: whether its model says where the admin port is.
    asked: the headers of those who asked for the pool.
    """

    answer: Callable[["Server", web.Request, dict[str, Any]], Any]
    pool: dict[str, Any] | None = None
    engine: str = "vllm"
    received: list[tuple[dict[str, Any], dict[str, str]]] = field(default_factory=list)
    names_admin_port: bool = True
    asked: list[dict[str, str]] = field(default_factory=list)
    waiting: int = 0
    release: asyncio.Event = field(default_factory=asyncio.Event)

    def app(self) -> web.Application:
        app = web.Application(client_max_size=2**24)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/penstock/v1/pool", self._pool)
        app.router.add_post("/v1/completions", self._completions)
        return app

    async def _models(self, request: web.Request) -> web.Response:
        reported = {"admin_url": str(request.url.origin())} if self.names_admin_port else {}
        return web.json_response(
            {"data": [{"id": "m", "engine": self.engine, "max_model_len": 8192, **reported}]}
        )

    async def _pool(self, request: web.Request) -> web.Response:
        self.asked.append(dict(request.headers))
        return web.json_response(self.pool) if self.pool else web.Response(status=404)

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.received.append((body, dict(request.headers)))
        response: web.StreamResponse = await self.answer(self, request, body)
        return response


async def stream(
    request: web.Request, tokens: int, headers: dict[str, str] | None = None, ending: bytes = DONE
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream", **(headers or {})})
    await response.prepare(request)
    for _ in range(tokens):
        await response.write(b'data: {"choices":[{"text":"a"}]}\n\n')
    await response.write(b'data: {"choices":[],"usage":{"completion_tokens":%d}}\n\n' % tokens + ending)
    return response


async def answered(server: Server, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    tier = request.headers.get("X-Penstock-Tier", "chat")
    output = {"x-penstock-tier": tier, "x-penstock-verdict": "admitted", "x-penstock-replica": "r1"}
    return await stream(request, body["max_tokens"], output | {"x-penstock-hops": "2"})


@pytest.fixture
async def serve() -> AsyncIterator[Callable[[Server], Any]]:
    running: list[TestServer] = []

    async def start(server: Server) -> str:
        running.append(TestServer(server.app()))
        await running[-1].start_server()
        return str(running[-1].make_url("")).rstrip("/")

    yield start
    for one in running:
        await one.close()


def trace_of(tmp_path: Path, *rows: str) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens,tier\n" + "".join(f"{row}\n" for row in rows))
    return path


async def replayed(settings: ReplaySettings) -> Report:
    return await replay(settings, QUIET)


async def test_every_request_is_sent_once_with_the_traces_counts(serve: Any, tmp_path: Path) -> None:
    server = Server(answered, pool=POOL)
    trace = trace_of(tmp_path, *(f"{index / 100},{index + 1},{index + 2},chat" for index in range(20)))
    report = await replayed(ReplaySettings(trace, await serve(server)))
    sizes = sorted((len(body["prompt"]), body["max_tokens"]) for body, _ in server.received)
    assert sizes == [(index + 1, index + 2) for index in range(20)]
    assert all(body["ignore_eos"] and body["stream"] for body, _ in server.received)
    assert report.tally.all.requests == report.tally.all.met == 20
    assert (report.policy, report.replicas) == ("slos-serve", 2)


async def test_a_tiers_targets_decide_attainment(serve: Any, tmp_path: Path) -> None:
    server = Server(answered, pool=POOL)
    rows = tmp_path / "rows.csv"
    report = await replayed(
        ReplaySettings(
            trace_of(tmp_path, "0,5,4,chat", "0,5,4,coder", "0,5,1,"), await serve(server), rows=rows
        )
    )
    tiers = {name: (tier.requests, tier.met) for name, tier in report.tally.tiers.items()}
    assert tiers == {"chat": (2, 2), "coder": (1, 0)}  # nothing answers within a nanosecond
    assert report.tally.all.mean_hops == 2.0
    head, *lines = rows.read_text().splitlines()
    assert head == (
        "id,tier,arrival_s,prompt_tokens,output_tokens,verdict,replica,hops,ttft_s,tpot_s,e2e_s,met"
    )
    by_id = {line.split(",")[0]: line.split(",") for line in lines}
    assert by_id["0"][1:8] == ["chat", "0.000000", "5", "4", "admitted", "r1", "2"]
    assert (by_id["0"][11], by_id["1"][11], by_id["2"][9]) == ("true", "false", "")


def all_at_once(count: int) -> Callable[[Server, web.Request, dict[str, Any]], Any]:
    """No request is answered before this many have arrived."""

    async def answer(server: Server, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        server.waiting += 1
        if server.waiting == count:
            server.release.set()
        await server.release.wait()
        return await stream(request, body["max_tokens"])

    return answer


async def test_arrivals_never_wait_for_answers(serve: Any, tmp_path: Path) -> None:
    server = Server(all_at_once(50))
    trace = trace_of(tmp_path, *(f"{index / 1000},3,2,chat" for index in range(50)))
    report = await replayed(ReplaySettings(trace, await serve(server)))
    assert report.tally.all.met == 50


async def test_a_simulated_engines_length_is_hidden_from_the_planner(serve: Any, tmp_path: Path) -> None:
    async def simulated(server: Server, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await stream(request, body["vllm_xargs"]["simulated_output_tokens"])

    server = Server(simulated, engine="simulated")
    report = await replayed(ReplaySettings(trace_of(tmp_path, "0,100,7,"), await serve(server)))
    (body, headers) = server.received[0]
    assert body["max_tokens"] == 4096
    assert "X-Penstock-Tier" not in headers
    assert report.tally.all.met == 1


@pytest.mark.parametrize(
    ("status", "code", "ending", "reason"),
    [
        (429, "slo_unattainable", RequestEnding.REJECTED, None),
        (503, "no_replicas", RequestEnding.FAILED, "503 no_replicas"),
        (500, None, RequestEnding.FAILED, "500"),
        (502, "", RequestEnding.FAILED, "502"),
    ],
)
async def test_a_request_that_is_not_served_misses_its_slo(
    serve: Any, tmp_path: Path, *, status: int, code: str | None, ending: RequestEnding, reason: str | None
) -> None:
    async def refused(server: Server, request: web.Request, body: dict[str, Any]) -> web.Response:
        return web.json_response({"error": {"code": code}}, status=status)

    url = await serve(Server(refused, pool=POOL))
    report = await replayed(ReplaySettings(trace_of(tmp_path, "0,1,1,chat"), url))
    tier = report.tally.tiers["chat"]
    assert (tier.requests, tier.met, tier.endings[ending]) == (1, 0, 1)
    assert list(report.tally.reasons) == ([] if reason is None else [reason])


async def cut_off(server: Server, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    response = await stream(request, 1, ending=b"")
    assert request.transport is not None
    request.transport.abort()
    return response


async def ended_early(server: Server, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return await stream(request, 1, ending=b"")


async def error_event(server: Server, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return await stream(request, 1, ending=b'data: {"error":{"code":"engine_lost"}}\n\n')


async def silent(server: Server, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    await server.release.wait()
    return await stream(request, 1)


@pytest.mark.parametrize(
    ("answer", "timeout_s", "reason"),
    [
        (cut_off, 60.0, "connection: "),
        (ended_early, 60.0, "the stream ended early"),
        (error_event, 60.0, "error in the stream: engine_lost"),
        (silent, 0.2, "no complete answer within 0.2 s"),
    ],
)
async def test_a_broken_answer_is_a_failure_with_its_reason(
    serve: Any, tmp_path: Path, answer: Any, timeout_s: float, reason: str
) -> None:
    server = Server(answer)
    report = await replayed(
        ReplaySettings(trace_of(tmp_path, "0,1,9,"), await serve(server), timeout_s=timeout_s)
    )
    server.release.set()
    ((seen, times),) = report.tally.reasons.items()
    assert seen.startswith(reason)
    assert times == 1


async def test_requests_over_the_bound_are_not_sent_and_count_as_missed(serve: Any, tmp_path: Path) -> None:
    server = Server(all_at_once(2))
    trace = trace_of(tmp_path, *("0,1,1," for _ in range(5)))
    report = await replayed(ReplaySettings(trace, await serve(server), max_in_flight=2))
    assert (len(server.received), report.tally.all.met) == (2, 2)
    assert report.tally.reasons["not sent: 2 requests are in flight (--max-inflight)"] == 3


async def test_the_rate_and_the_duration_select_the_requests(serve: Any, tmp_path: Path) -> None:
    server = Server(answered)
    trace = trace_of(tmp_path, *(f"{index},1,1," for index in range(11)))  # 1.1 a second for 10 s
    settings = ReplaySettings(trace, await serve(server), rate_rps=110.0, duration_s=0.045)
    report = await replayed(settings)
    assert report.tally.all.requests == 5  # at 0, 10, 20, 30, 40 ms
    assert report.rate_rps == pytest.approx(5 / 0.04)


async def test_tiers_are_renamed_and_missing_ones_filled_in(serve: Any, tmp_path: Path) -> None:
    server = Server(answered)
    settings = ReplaySettings(
        trace_of(tmp_path, "0,1,1,code", "0,1,1,"),
        await serve(server),
        tier="chat",
        renamed={"code": "coder"},
        api_key="sk-1",
        tier_slos=TierSlos({"coder": Slo(ttft_s=30.0)}, "chat"),
    )
    await replayed(settings)
    assert sorted(headers["X-Penstock-Tier"] for _, headers in server.received) == ["chat", "coder"]
    assert {headers["Authorization"] for _, headers in server.received} == {"Bearer sk-1"}


async def test_the_pool_is_read_at_the_admin_url_without_the_key(serve: Any, tmp_path: Path) -> None:
    server, admin = Server(answered, names_admin_port=False), Server(answered, pool=POOL)
    trace, url = trace_of(tmp_path, "0,5,4,chat"), await serve(server)
    report = await replayed(ReplaySettings(trace, url, admin_url=await serve(admin), api_key="sk-1"))
    assert report.policy == "slos-serve"
    assert [headers.get("Authorization") for headers in admin.asked] == [None]
    assert server.asked == []


async def test_an_invalid_admin_url_ends_the_replay(serve: Any, tmp_path: Path) -> None:
    server = Server(answered)
    trace, url = trace_of(tmp_path, "0,5,4,chat"), await serve(server)
    with pytest.raises(Failure, match="not the admin port of a router"):
        await replayed(ReplaySettings(trace, url, admin_url=url))
    assert server.received == []


@pytest.mark.parametrize(
    "server",
    [
        Server(answered, pool=POOL, names_admin_port=False),
        Server(answered, pool=POOL | {"model": "other"}),
        Server(answered),
    ],
    ids=["it is not given", "it is another pool's", "nothing is there"],
)
async def test_without_its_admin_port_a_pool_is_replayed_as_any_server(
    server: Server, serve: Any, tmp_path: Path
) -> None:
    report = await replayed(ReplaySettings(trace_of(tmp_path, "0,5,4,"), await serve(server)))
    assert (report.policy, report.replicas) == (None, None)
    assert len(server.received) == 1


async def test_the_planners_times_are_those_of_the_sidecars(serve: Any, tmp_path: Path) -> None:
    pages = iter(
        [
            "".join(f'{HIST}_bucket{{le="{le}"}} {count}\n' for le, count in reading)
            + f"# TYPE {LONGEST} gauge\n{LONGEST} {longest}\n"
            for reading, longest in (
                ((("0.001", 0), ("0.002", 10), ("+Inf", 10)), 0.0015),
                ((("0.001", 98), ("0.002", 110), ("+Inf", 110)), 0.0018),
            )
        ]
    )

    async def metrics(request: web.Request) -> web.Response:
        return web.Response(text=f"# TYPE {HIST} histogram\n" + next(pages))

    server = Server(answered)
    app = server.app()
    app.router.add_get("/metrics", metrics)
    running = TestServer(app)
    await running.start_server()
    url = str(running.make_url("")).rstrip("/")
    server.pool = POOL | {"replicas": [{"name": "r0", "metrics_url": f"{url}/metrics"}]}
    report = await replayed(ReplaySettings(trace_of(tmp_path, "0,1,1,"), url))
    await running.close()
    # 98 of the 100 calls in between took at most 1 ms, the rest at most 2 ms, and none above 1.8.
    assert report.as_json()["planner_ms"] == {"p50": 1.0, "p99": 1.8, "max": 1.8}


HIST, LONGEST = "penstock_replica_planner_seconds", "penstock_replica_planner_seconds_max"


async def test_a_missing_or_invalid_server_is_one_line(serve: Any, tmp_path: Path) -> None:
    trace = trace_of(tmp_path, "0,1,1,")
    with pytest.raises(Failure, match="no server answers there"):
        await replayed(ReplaySettings(trace, "http://127.0.0.1:9"))
    url = await serve(Server(answered))
    with pytest.raises(Failure, match='does not serve model "other"; it serves m'):
        await replayed(ReplaySettings(trace, url, model="other"))
    with pytest.raises(Failure, match="no /v1/models"):
        await replayed(ReplaySettings(trace, f"{url}/elsewhere"))


async def test_the_json_has_exactly_the_documented_keys(serve: Any, tmp_path: Path) -> None:
    url = await serve(Server(answered, pool=POOL))
    report = await replayed(ReplaySettings(trace_of(tmp_path, "0,5,4,chat"), url))
    found = json.loads(json.dumps(report.as_json()))
    assert list(found) == [
        "policy",
        "replicas",
        "rate",
        "requests",
        "attainment",
        "admitted_attainment",
        "goodput_rps",
        "tiers",
        "planner_ms",
        "requests_with_targets",
        "attained_admitted",
        "attained_promoted",
    ]
    assert list(found["tiers"]["chat"]) == [
        "requests",
        "attainment",
        "ttft_p50_s",
        "ttft_p99_s",
        "tpot_p50_s",
        "tpot_p99_s",
        "best_effort",
        "rejected",
        "attained_admitted",
        "attained_promoted",
    ]


@pytest.mark.parametrize("body", ["Bad Gateway", "[]", '{"error": "no"}', "{}"])
async def test_an_unknown_error_is_named_by_its_status(serve: Any, tmp_path: Path, body: str) -> None:
    async def refused(server: Server, request: web.Request, _: dict[str, Any]) -> web.Response:
        return web.Response(text=body, status=502)

    report = await replayed(ReplaySettings(trace_of(tmp_path, "0,1,1,chat"), await serve(Server(refused))))
    assert report.tally.reasons == {"502": 1}


async def test_a_server_without_penstocks_headers_admits_and_has_no_hops(serve: Any, tmp_path: Path) -> None:
    async def plain(server: Server, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await stream(request, body["max_tokens"])

    rows = tmp_path / "rows.csv"
    url = await serve(Server(plain))
    report = await replayed(ReplaySettings(trace_of(tmp_path, "0,5,4,chat"), url, rows=rows))
    assert report.tally.all.endings == {RequestEnding.ADMITTED: 1}
    assert report.tally.all.mean_hops == 0.0
    assert rows.read_text().splitlines()[1].split(",")[5:8] == ["admitted", "", "0"]


async def test_an_answer_may_be_compressed(serve: Any, tmp_path: Path) -> None:
    async def compressed(server: Server, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.Response(
            body=b'data: {"choices":[{"text":"a"}]}\n\n' + DONE, content_type="text/event-stream"
        )
        response.enable_compression()
        return response

    report = await replayed(ReplaySettings(trace_of(tmp_path, "0,5,1,chat"), await serve(Server(compressed))))
    assert (report.tally.all.met, report.tally.reasons) == (1, {})


async def test_without_readable_metrics_planning_times_are_unknown(serve: Any, tmp_path: Path) -> None:
    pool = POOL | {"replicas": [{"name": "r0", "metrics_url": "http://127.0.0.1:9/metrics"}]}
    report = await replayed(
        ReplaySettings(trace_of(tmp_path, "0,5,4,chat"), await serve(Server(answered, pool=pool)))
    )
    assert report.as_json()["planner_ms"] == {"p50": None, "p99": None, "max": None}
    assert report.tally.all.met == 1


def sessions_of(tmp_path: Path, *lines: dict[str, Any]) -> Path:
    path = tmp_path / "sessions.jsonl"
    usual = {"timestamp": 0, "output_length": 2}
    path.write_text("".join(json.dumps({**usual, **line}) + "\n" for line in lines))
    return path


async def test_a_closed_session_waits_for_its_answers_and_delays_no_other(serve: Any, tmp_path: Path) -> None:
    """The first turn is answered once the other request has come, and the second turn comes after that."""

    async def answer(server: Server, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if request.headers.get("X-Session-Id") is None:
            server.release.set()
        await server.release.wait()
        return await stream(request, body["max_tokens"])

    server = Server(answer)
    trace = sessions_of(
        tmp_path,
        {"session_id": "a", "input_length": 1},
        {"session_id": "a", "input_length": 2, "delay": 1},
        {"input_length": 3},
    )
    report = await replayed(ReplaySettings(trace, await serve(server)))
    assert [len(body["prompt"]) for body, _ in server.received] == [1, 3, 2]
    assert [headers.get("X-Session-Id") for _, headers in server.received] == ["a", None, "a"]
    assert (report.tally.first_turns.met, report.tally.later_turns.met) == (2, 1)


async def test_every_session_name_can_be_sent(serve: Any, tmp_path: Path) -> None:
    server = Server(answered)
    trace = sessions_of(tmp_path, {"session_id": "é\r\nX: y" + 400 * "a", "input_length": 1})
    report = await replayed(ReplaySettings(trace, await serve(server)))
    name = server.received[0][1]["X-Session-Id"]
    assert (name[:20], len(name), report.tally.all.met) == ("%C3%A9%0D%0AX%3A%20y", 256, 1)


async def test_an_engine_s_cached_tokens_are_reported_by_turn(serve: Any, tmp_path: Path) -> None:
    async def cached(server: Server, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        tokens = len(body["prompt"])
        found = {"cached_tokens": 32 if tokens == 40 else 0}
        usage = {"completion_tokens": 2, "prompt_tokens": tokens, "prompt_tokens_details": found}
        event = b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"
        return await stream(request, 2, ending=event + DONE)

    time_model = {"name": "t", "terms": [{"token_s": 0.001, "fixed_s": 0.0}]}
    server = Server(cached, pool={**POOL, "time_model": time_model})
    trace = sessions_of(
        tmp_path,
        {"session_id": "a", "input_length": 24, "hash_ids": [1]},
        {"session_id": "a", "input_length": 40, "hash_ids": [1, 2], "delay": 0},
    )
    report = await replayed(ReplaySettings(trace, await serve(server), block_tokens=16))
    first, second = (body["prompt"] for body, _ in server.received)
    assert first[:16] == second[:16] and first[16:19] != second[16:19]
    found = report.as_json()
    assert found["cached_share"] == 0.5
    assert found["saved_prefill_s"] == pytest.approx(0.032)
    turns = found["turns"]
    assert [turns[name]["cached_share"] for name in ("first", "later")] == [0.0, 0.8]
    assert [turns[name]["requests"] for name in ("first", "later")] == [1, 1]
    assert all(turns[name]["ttft_p50_s"] > 0 for name in ("first", "later"))
    saved, by_turn = prefix_lines(report.tally)
    assert saved == "50.0 % of prompt tokens were found in prefix caches, which saved 0.0 s of prefill"
    assert by_turn.startswith("First turns of sessions: 1, TTFT p50 ")
    assert by_turn.endswith(" s, 80.0 % cached.")


async def test_without_sessions_and_caches_the_report_omits_them(serve: Any, tmp_path: Path) -> None:
    report = await replayed(ReplaySettings(trace_of(tmp_path, "0,5,4,chat"), await serve(Server(answered))))
    assert not {"cached_share", "saved_prefill_s", "turns"} & report.as_json().keys()
    assert prefix_lines(report.tally) == []


async def test_hash_ids_of_smaller_blocks_are_rejected_before_the_first_request(
    serve: Any, tmp_path: Path
) -> None:
    server = Server(answered)
    trace = sessions_of(tmp_path, {"input_length": 40, "hash_ids": [1, 2]})
    with pytest.raises(Failure, match="give --block-tokens N"):
        await replayed(ReplaySettings(trace, await serve(server)))
    assert server.received == []
