"""One request over HTTP: sent, streamed, timed, judged.

The clock starts when the request is handed to the connection, which is as near to the router's own start
as a client can stand. What the client itself was late by is counted apart. Times are the system's, since
the event loop's own clock moves in whole milliseconds.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import monotonic

import aiohttp
import orjson
from penstock_core.domain.judgement import judge

from penstock_cli.replay.answer import Answer, StreamError
from penstock_cli.replay.outcome import Ending, Outcome
from penstock_cli.replay.promises import Promises
from penstock_cli.replay.wording import Wording
from penstock_cli.traces import TraceRequest


@dataclass(frozen=True, slots=True)
class Client:
    """What every request of a replay is sent with.

    timeout_s: for one whole request; then it has failed.
    """

    session: aiohttp.ClientSession
    url: str
    wording: Wording
    promises: Promises
    timeout_s: float

    async def call(self, request: TraceRequest, number: int) -> Outcome:
        """Send the request and follow its answer to the end. Failures are outcomes, not exceptions."""
        blank = Outcome(
            id=str(number),
            tier=request.tier or self.promises.default_tier,
            arrival_s=request.arrival_s,
            prompt_tokens=request.prompt_tokens,
            output_tokens=0,
            ending=Ending.FAILED,
        )
        body = self.wording.body(request, number)
        headers = {"X-Penstock-Tier": request.tier} if request.tier else {}
        sent_s = monotonic()
        try:
            async with (
                asyncio.timeout(self.timeout_s),
                self.session.post(self.url, data=body, headers=headers) as reply,
            ):
                return await self._follow(reply, blank, request.thinking_tokens, sent_s)
        except TimeoutError:
            return replace(blank, reason=f"no whole answer within {self.timeout_s:g} s")
        except StreamError as error:
            return replace(blank, reason=f"error in the stream: {error}")
        except aiohttp.ClientError as error:
            return replace(blank, reason=f"connection: {type(error).__name__}")

    async def _follow(
        self, reply: aiohttp.ClientResponse, blank: Outcome, thinking_tokens: int, sent_s: float
    ) -> Outcome:
        outcome = _with_headers(blank, reply.headers)
        if reply.status != 200:
            return _refused(outcome, reply.status, await reply.read())
        answer = Answer()
        async for piece in reply.content.iter_any():
            answer.feed(piece, monotonic())
        if not answer.done:
            return replace(outcome, ending=Ending.FAILED, reason="the stream broke off")
        return self._judged(outcome, answer, thinking_tokens, sent_s)

    def _judged(self, outcome: Outcome, answer: Answer, thinking_tokens: int, sent_s: float) -> Outcome:
        times_s = answer.token_times_s()
        if not times_s:
            return replace(outcome, ending=Ending.FAILED, reason="an answer without a token")
        targets = self.promises.targets(outcome.tier, outcome.prompt_tokens)
        judged = judge(targets, sent_s, times_s, thinking_tokens)
        return replace(
            outcome,
            output_tokens=answer.tokens,
            ttft_s=judged.ttft_s,
            tpot_s=judged.tpot_s,
            e2e_s=judged.e2e_s,
            met=judged.met,
        )


def _with_headers(outcome: Outcome, headers: Mapping[str, str]) -> Outcome:
    """What the router tells of a request it has taken. Another server tells nothing: taken is admitted."""
    hops = headers.get("x-penstock-hops", "")
    return replace(
        outcome,
        tier=headers.get("x-penstock-tier", outcome.tier),
        ending=Ending(headers.get("x-penstock-verdict", Ending.ADMITTED)),
        replica=headers.get("x-penstock-replica", ""),
        hops=int(hops) if hops.isdigit() else 0,
    )


def _refused(outcome: Outcome, status: int, body: bytes) -> Outcome:
    try:
        code = orjson.loads(body)["error"]["code"]
    except (ValueError, KeyError, TypeError):
        code = None
    ending = Ending.REJECTED if status == 429 else Ending.FAILED
    return replace(outcome, ending=ending, reason=f"{status} {code or ''}".strip())
