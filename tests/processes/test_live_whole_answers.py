"""Answers that are not streamed are judged by their tokens, not by their end."""

import asyncio

import httpx2
import pytest
from live.open_pool import OpenPool
from live.pool import LivePool
from live.pool_file import MODEL

ANSWERS, TOKENS, TTFT_S = 20, 600, 5.0


@pytest.fixture(scope="module")
def timed(open_module_pool: OpenPool) -> LivePool:
    slo = {"ttft": f"{TTFT_S:g}s", "tpot": "500ms", "judge": "window"}
    return open_module_pool(2, tiers=[{"name": "chat", "slo": slo}])


async def answered_tokens(pool: LivePool) -> list[int]:
    """Return the tokens of each answer to concurrent requests."""
    async with pool.async_client() as client:
        requested = [
            client.completions.create(
                model=MODEL, prompt="hello", max_tokens=TOKENS, extra_body={"ignore_eos": True}
            )
            for _ in range(ANSWERS)
        ]
        answers = await asyncio.gather(*requested)
    return [answer.usage.completion_tokens for answer in answers if answer.usage]


def test_whole_answers_on_an_idle_pool_meet_their_slos(timed: LivePool) -> None:
    assert asyncio.run(answered_tokens(timed)) == [TOKENS] * ANSWERS
    value = timed.router_value
    assert value("penstock_router_e2e_seconds_sum") / ANSWERS > TTFT_S  # judged by their end they would miss
    assert (value("penstock_router_slo_judged_total"), value("penstock_router_slo_met_total")) == (20, 20)
    assert value("penstock_router_ttft_seconds_count") == ANSWERS
    assert value("penstock_router_ttft_seconds_sum") / ANSWERS < TTFT_S
    assert value("penstock_router_tpot_seconds_sum") > 0
    assert value("penstock_router_untimed_answers_total") == 0
    demand = httpx2.get(f"{timed.admin_url()}/penstock/v1/demand").json()["tiers"]["chat"]
    assert (demand["all_judged"], demand["all_met"], demand["met"]) == (20, 20, 20)
