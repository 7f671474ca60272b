"""Hostile request bodies during live streams, and complete (unstreamed) answers on an idle pool."""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import httptools
from containment.report import GoalRow, row
from hostile.bodies import CHAT, COMPLETIONS, MODEL, Body, make_body
from live import raw_client
from live.concurrent_streams import ConcurrentStreams
from live.pool import LivePool
from live.raw_http import Answer, chat, post

BODIES, STREAMS, AT_ONCE, ANSWER_S = 185, 12, 4, 5.0
STREAM_TOKENS = 400
ANSWERS, ANSWER_TOKENS, TTFT_S = 20, 600, 5.0


def measured(folder: Path, seed: int) -> list[GoalRow]:
    """Measure both, and return the rows."""
    slo = {"ttft": f"{TTFT_S:g}s", "tpot": "500ms", "judge": "window"}
    pool = LivePool(folder, 2, tiers=[{"name": "chat", "slo": slo}], defaultTier="chat")
    try:
        pool.open()
        return [asyncio.run(whole_answers(pool)), *asyncio.run(hostile_bodies(pool, seed))]
    finally:
        pool.close()


async def whole_answers(pool: LivePool) -> GoalRow:
    """Request unstreamed answers that take longer than their TTFT target, and return the row."""
    requested = {"prompt": "hello", "max_tokens": ANSWER_TOKENS, "extra_body": {"ignore_eos": True}}
    async with pool.async_client() as client:
        calls = [client.completions.create(model=MODEL, **requested) for _ in range(ANSWERS)]  # type: ignore[call-overload]
        await asyncio.gather(*calls)
    kept, judged = (pool.router_value(f"penstock_router_slo_{word}_total") for word in ("met", "judged"))
    output = f"{kept:.0f} of {judged:.0f}"
    return row(
        f"unstreamed answers on an idle pool that kept their SLO, of {ANSWERS}",
        f"{ANSWERS}",
        output,
        kept == judged == ANSWERS,
    )


async def hostile_bodies(pool: LivePool, seed: int) -> list[GoalRow]:
    """Send each body once, a few at a time, while streams run, and return the rows."""
    answers: list[tuple[Body, Answer | None, float]] = []
    bodies = iter(list(_bodies(seed)))

    async def send_in_turn() -> None:
        for body in bodies:
            began_s = time.monotonic()
            answer = await _answer(pool.address("router", "main"), body)
            answers.append((body, answer, time.monotonic() - began_s))

    streams = ConcurrentStreams([pool.url()], streams_each=STREAMS, tokens=STREAM_TOKENS)
    async with streams.running(), asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(send_in_turn())
    statuses = Counter(str(answer.status) if answer else "none" for _, answer, _ in answers)
    wrong = [body for body, answer, took_s in answers if not _is_right(answer) or took_s > ANSWER_S]
    for body in wrong:
        print(repr(body)[:300], file=sys.stderr)
    slowest_s = max(took_s for _, _, took_s in answers)
    by_status = ", ".join(f"{count} × {status}" for status, count in sorted(statuses.items()))
    return [
        row(
            f"hostile bodies during {STREAMS} live streams that were not answered in {ANSWER_S:g} s by a 4xx "
            f"or an answer, of {len(answers)}",
            "0",
            f"{len(wrong)} (slowest {slowest_s:.2f} s; {by_status})",
            not wrong,
        ),
        row(
            "streams of others that changed by a byte meanwhile",
            "0",
            f"{len(streams.harmed)} of {len(streams.harmed) + streams.finished}",
            not streams.harmed,
        ),
    ]


async def _answer(address: tuple[str, int], body: Body) -> Answer | None:
    try:
        request = post(body.path, body.data, *body.headers)
        (answer,) = await raw_client.exchange(address, [request], answers=1)
    except (AssertionError, ValueError, httptools.HttpParserError):
        return None
    return answer


def _is_right(answer: Answer | None) -> bool:
    return answer is not None and (answer.status == 200 or 400 <= answer.status < 500)


def _bodies(seed: int) -> Iterator[Body]:
    """Yield bodies that once caused a failure, then others drawn from the seed."""
    yield from _known()
    for number in range(BODIES - len(list(_known()))):
        yield make_body(Random(f"{seed} {number}"), 1 << 20)


def _known() -> Iterator[Body]:
    for levels in (254, 300, 1000, 100_000):
        nested = b"[" * levels + b"]" * levels
        for field in (b"tools", b"metadata", b"unknown"):
            yield Body(CHAT, chat()[:-1] + b', "%s": %s}' % (field, nested))
        yield Body(CHAT, chat()[:-1] + b', "vllm_xargs": {"a": %s}}' % nested)
    for count in (2, 100, 1_000_000):
        yield Body(CHAT, chat(n=count))
        yield Body(COMPLETIONS, b'{"model": "%s", "prompt": "a", "best_of": %d}' % (MODEL.encode(), count))
    yield Body(COMPLETIONS, b'{"model": "%s", "prompt": [%s]}' % (MODEL.encode(), b",".join([b'"a"'] * 100)))
    for item in (b"[]", b"{}", b'"a"', b"1"):
        items = b",".join([item] * (8_000_000 // (len(item) + 1)))
        yield Body(CHAT, chat()[:-1] + b', "unknown": [%s]}' % items)
