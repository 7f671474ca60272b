"""Limits and usage of applications, as their clients see them."""

import asyncio
from typing import Any

import httpx2
import pytest
from openai import RateLimitError
from penstock_proto import replica_pb2 as wire
from penstock_router.observability.metrics import Metrics
from penstock_routing.applications.token_usage import Usage
from scripted.replica import DONE, Part, ScriptedReplica, answers, chat_chunk, is_busy
from scripted.router import MODEL, RunningRouter, pool_with, running_router

KEY = {"authorization": "Bearer ide-key"}


def limited(**limits: int) -> dict[str, Any]:
    """A pool with an application of these limits and one without any."""
    applications = [
        {"name": "ide", "tier": "chat", "keys": {"file": "x"}, "limits": limits},
        {"name": "web", "tier": "chat", "keys": {"file": "y"}},
    ]
    pool = pool_with(applications=applications)
    ide, web = pool.spec.applications
    return {"pool": pool, "keys": {"ide-key": ide, "ide-key-too": ide, "web-key": web}}


def rate_headers(reply: httpx2.Response) -> dict[str, str]:
    return {k.removeprefix("x-ratelimit-"): v for k, v in reply.headers.items() if "ratelimit" in k}


async def test_requests_over_the_minutes_limit_are_refused_as_openai_does() -> None:
    replica = ScriptedReplica("r0")
    async with running_router(replica, **limited(requestsPerMinute=3)) as router:
        replies = [await router.chat(KEY) for _ in range(5)]
        other = await router.chat({"authorization": "Bearer web-key"})
        assert [reply.status_code for reply in replies] == [200, 200, 200, 429, 429]
        assert [rate_headers(reply)["remaining-requests"] for reply in replies] == ["2", "1", "0", "0", "0"]
        assert rate_headers(replies[0])["limit-requests"] == "3"
        error = replies[3].json()["error"]
        assert (error["type"], error["code"], error["param"]) == ("requests", "rate_limit_exceeded", None)
        assert 1 <= int(replies[3].headers["retry-after"]) <= 61
        assert (other.status_code, rate_headers(other)) == (200, {})
        line = 'penstock_router_limited_total{application="ide",limit="requests_per_minute"}'
        assert await router.metric(line) == 2
    assert len(replica.parts) == 4


async def test_all_keys_of_an_application_share_its_limits() -> None:
    async with running_router(ScriptedReplica("r0"), **limited(requestsPerMinute=1)) as router:
        assert (await router.chat(KEY)).status_code == 200
        assert (await router.chat({"authorization": "Bearer ide-key-too"})).status_code == 429


async def test_openais_client_raises_its_own_error() -> None:
    async with running_router(ScriptedReplica("r0"), **limited(requestsPerMinute=1)) as router:
        client = router.openai.with_options(api_key="ide-key")
        await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}])
        with pytest.raises(RateLimitError, match=r"requests per min\. Limit: 1"):
            await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}])


async def test_of_many_concurrent_requests_exactly_the_limit_is_served() -> None:
    reported = asyncio.Event()

    async def waits(part: Part) -> None:
        await reported.wait()
        await answers(part)

    replica = ScriptedReplica("r0", waits)
    async with running_router(replica, **limited(concurrentRequests=7)) as router:
        asking = [asyncio.create_task(router.chat(KEY)) for _ in range(30)]
        line = 'penstock_router_limited_total{application="ide",limit="concurrent_requests"}'
        await router.counted(line, 23)
        reported.set()
        statuses = [(await each).status_code for each in asking]
        assert (statuses.count(200), statuses.count(429)) == (7, 23)
        assert (await router.chat(KEY)).status_code == 200


async def test_a_client_that_disconnects_frees_its_place() -> None:
    async def begins(part: Part) -> None:
        part.admit()
        part.output(chat_chunk("one"))

    replica = ScriptedReplica("r0", begins)
    async with running_router(replica, **limited(concurrentRequests=1)) as router:
        body = {"model": MODEL, "messages": [], "stream": True}
        async with router.http.stream("POST", "/v1/chat/completions", json=body, headers=KEY) as reply:
            lines = reply.aiter_lines()  # held: collecting it would end the stream
            await anext(lines)
            assert (await router.chat(KEY)).status_code == 429
        await router.counted("penstock_router_open_requests", 0)
        replica.script = answers
        assert (await router.chat(KEY)).status_code == 200


async def tokens(router: RunningRouter, application: str) -> dict[str, float]:
    line = "penstock_router_application_tokens_total"
    return {
        kind: await router.metric(f'{line}{{application="{application}",kind="{kind}"}}')
        for kind in ("prompt", "cached", "completion")
    }


async def test_tokens_are_reserved_by_max_tokens_and_settled_by_usage() -> None:
    async def reports_100_tokens(part: Part) -> None:
        part.admit()
        part.output(b"{}", tokens=60)
        part.finish(prompt_tokens=40, completion_tokens=60)

    async with running_router(
        ScriptedReplica("r0", reports_100_tokens), **limited(tokensPerMinute=1000)
    ) as router:
        first = await router.chat(KEY, max_tokens=900)
        assert first.status_code == 200
        assert int(rate_headers(first)["remaining-tokens"]) < 100
        await router.counted("penstock_router_open_requests", 0)
        second = await router.chat(KEY, max_completion_tokens=800)
        assert second.status_code == 200
        await router.counted("penstock_router_open_requests", 0)
        third = await router.chat(KEY, max_tokens=800)
        assert third.status_code == 429
        assert third.json()["error"]["type"] == "tokens"
        assert await tokens(router, "ide") == {"prompt": 80, "cached": 0, "completion": 120}


async def test_each_requested_answer_counts() -> None:
    async with running_router(ScriptedReplica("r0"), **limited(tokensPerMinute=1000)) as router:
        reply = await router.chat(KEY, max_tokens=400, n=3)
        assert (reply.status_code, reply.headers["x-should-retry"]) == (429, "false")
        assert (await router.chat(KEY, max_tokens=400, n=2)).status_code == 200


async def test_a_request_that_no_replica_takes_uses_no_tokens() -> None:
    async with running_router(ScriptedReplica("r0", is_busy), **limited(tokensPerMinute=1000)) as router:
        for _ in range(3):
            reply = await router.chat(KEY, max_tokens=900)
            assert reply.json()["error"]["code"] == "slo_unattainable"
        assert await tokens(router, "ide") == {"prompt": 0, "cached": 0, "completion": 0}


async def test_an_interrupted_answer_uses_its_written_tokens() -> None:
    async def breaks_off(part: Part) -> None:
        part.admit()
        part.output(chat_chunk("one"))
        part.output(chat_chunk("two"))
        await asyncio.sleep(0)
        part.fail(wire.FAILURE_INTERNAL, 500)

    async with running_router(ScriptedReplica("r0", breaks_off), **limited(tokensPerMinute=1000)) as router:
        await router.chat(KEY, stream=True, max_tokens=100)
        await router.counted("penstock_router_open_requests", 0)
        used = await tokens(router, "ide")
        assert used["completion"] == 2
        assert used["prompt"] > 0


async def test_without_max_tokens_the_expected_length_is_that_of_earlier_answers() -> None:
    async def reports_10_tokens(part: Part) -> None:
        part.admit()
        part.output(chat_chunk("x") + DONE if part.stream else b"{}", tokens=10)
        part.finish(prompt_tokens=5, completion_tokens=10)

    async with running_router(
        ScriptedReplica("r0", reports_10_tokens), **limited(tokensPerMinute=100_000)
    ) as router:
        left = []
        for _ in range(30):
            reply = await router.chat(KEY)
            await router.counted("penstock_router_open_requests", 0)
            left.append(int(rate_headers(reply)["remaining-tokens"]))
        first, last = 100_000 - left[0], left[-2] - left[-1]
        assert 256 < first < 300
        assert last < 40


async def test_tokens_from_the_prefix_cache_are_counted_separately() -> None:
    async def reports_cached_tokens(part: Part) -> None:
        part.admit()
        part.output(b"{}", tokens=1)
        finished = wire.Finished(prompt_tokens=40, completion_tokens=1, cached_tokens=32)
        part.send(wire.Event(finished=finished))

    async with running_router(ScriptedReplica("r0", reports_cached_tokens), **limited()) as router:
        await router.chat(KEY)
        await router.counted("penstock_router_open_requests", 0)
        assert await tokens(router, "ide") == {"prompt": 40, "cached": 32, "completion": 1}


@pytest.mark.parametrize("step", [(Usage, "ended"), (Metrics, "ended")], ids=["usage", "metrics"])
async def test_a_request_that_cannot_be_counted_is_removed_from_the_limits(
    step: tuple[type, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: object) -> None:
        raise ZeroDivisionError

    async with running_router(ScriptedReplica("r0"), **limited(concurrentRequests=1)) as router:
        with monkeypatch.context() as patch:
            patch.setattr(*step, breaks)
            assert (await router.chat(KEY)).status_code == 200
            await router.counted("penstock_router_faults_total", 1)
        assert (await router.chat(KEY)).status_code == 200


async def test_a_request_that_fails_before_it_is_placed_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: object) -> None:
        raise ZeroDivisionError

    async with running_router(ScriptedReplica("r0"), **limited(concurrentRequests=1)) as router:
        with monkeypatch.context() as patch:
            patch.setattr(router.app.metrics.demand, "arrived", breaks)
            assert (await router.chat(KEY)).status_code == 500
        assert (await router.chat(KEY)).status_code == 200
