"""Sends one request over HTTP, times its streamed answer, and judges it.

Time starts when the request is handed to the connection, which is the client's best estimate of the router's
own start. The client's own delay is recorded separately. Times are those of `time.monotonic`, because the
event loop's clock has a resolution of milliseconds.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import monotonic
from urllib.parse import quote

import aiohttp
import orjson
from penstock_core.domain.judgement import judge

from penstock_cli.replay.outcome import RequestEnding, RequestOutcome
from penstock_cli.replay.request_bodies import RequestBodies
from penstock_cli.replay.streamed_answer import StreamedAnswer, StreamError
from penstock_cli.replay.tier_slos import TierSlos
from penstock_cli.traces import TraceRequest

LONGEST_SESSION_LETTERS = 256
"""Longest session name that is sent. It is percent-encoded, as headers hold printable characters only."""


@dataclass(frozen=True, slots=True)
class ReplayClient:
    """Sends the requests of a replay.

    timeout_s: timeout of a whole request, after which it has failed.
    """

    session: aiohttp.ClientSession
    url: str
    bodies: RequestBodies
    tier_slos: TierSlos
    timeout_s: float

    async def call(self, request: TraceRequest) -> RequestOutcome:
        """Send a request and read its answer. Failures are outcomes, not exceptions."""
        blank = RequestOutcome(
            id=str(request.number),
            tier=request.tier or self.tier_slos.default_tier,
            arrival_s=request.arrival_s,
            prompt_tokens=request.prompt_tokens,
            output_tokens=0,
            ending=RequestEnding.FAILED,
            turn=request.stage,
        )
        body = self.bodies.body(request)
        headers = {"X-Penstock-Tier": request.tier} if request.tier else {}
        if request.session:
            headers["X-Session-Id"] = quote(request.session)[:LONGEST_SESSION_LETTERS]
        sent_s = monotonic()
        try:
            async with (
                asyncio.timeout(self.timeout_s),
                self.session.post(self.url, data=body, headers=headers) as reply,
            ):
                return await self._follow(reply, blank, request.thinking_tokens, sent_s)
        except TimeoutError:
            return replace(blank, reason=f"no complete answer within {self.timeout_s:g} s")
        except StreamError as error:
            return replace(blank, reason=f"error in the stream: {error}")
        except aiohttp.ClientError as error:
            return replace(blank, reason=f"connection: {type(error).__name__}")

    async def _follow(
        self, reply: aiohttp.ClientResponse, blank: RequestOutcome, thinking_tokens: int, sent_s: float
    ) -> RequestOutcome:
        outcome = _with_headers(blank, reply.headers)
        if reply.status != 200:
            return _refused(outcome, reply.status, await reply.read())
        answer = StreamedAnswer()
        async for piece in reply.content.iter_any():
            answer.feed(piece, monotonic())
        if not answer.done:
            return replace(outcome, ending=RequestEnding.FAILED, reason="the stream ended early")
        return self._judged(outcome, answer, thinking_tokens, sent_s)

    def _judged(
        self, outcome: RequestOutcome, answer: StreamedAnswer, thinking_tokens: int, sent_s: float
    ) -> RequestOutcome:
        times_s = answer.token_times_s()
        if not times_s:
            return replace(outcome, ending=RequestEnding.FAILED, reason="the answer has no token")
        targets = self.tier_slos.targets(outcome.tier, outcome.prompt_tokens)
        judged = judge(targets, sent_s, times_s, thinking_tokens)
        return replace(
            outcome,
            prompt_tokens=outcome.prompt_tokens if answer.prompt_tokens is None else answer.prompt_tokens,
            output_tokens=answer.tokens,
            cached_tokens=answer.cached_tokens,
            ttft_s=judged.ttft_s,
            tpot_s=judged.tpot_s,
            e2e_s=judged.e2e_s,
            met=judged.met,
        )


def _with_headers(outcome: RequestOutcome, headers: Mapping[str, str]) -> RequestOutcome:
    """Apply the router's headers. Without them, as from another server, the request counts as admitted."""
    hops = headers.get("x-penstock-hops", "")
    return replace(
        outcome,
        tier=headers.get("x-penstock-tier", outcome.tier),
        ending=RequestEnding(headers.get("x-penstock-verdict", RequestEnding.ADMITTED)),
        replica=headers.get("x-penstock-replica", ""),
        hops=int(hops) if hops.isdigit() else 0,
    )


def _refused(outcome: RequestOutcome, status: int, body: bytes) -> RequestOutcome:
    try:
        code = orjson.loads(body)["error"]["code"]
    except (ValueError, KeyError, TypeError):
        code = None
    ending = RequestEnding.REJECTED if status == 429 else RequestEnding.FAILED
    return replace(outcome, ending=ending, reason=f"{status} {code or ''}".strip())
