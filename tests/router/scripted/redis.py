"""A replacement of Redis' client library, with answers scripted by the test."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from penstock_routing.applications.shared_limits import LEASE_S, SCRIPT
from penstock_routing.connections.backoff import Backoff


@dataclass(frozen=True, slots=True)
class ScriptCall:
    """One call of the limits' script. most: limits of concurrent requests, requests and tokens per minute."""

    key: str
    router: str
    open_requests: int
    most: tuple[int, ...]
    corrections: dict[int, int]
    asks: list[int]


class CountingBackoff(Backoff):
    """A backoff without waits that counts its calls."""

    waits = resets = 0

    def wait_s(self) -> float:
        self.waits += 1
        return 0.0

    def reset(self) -> None:
        self.resets += 1


class ScriptedRedis:
    """A server, and a client of it at the same time.

    room: requests that the script still admits. refusal: its code and wait for the others.
    slot: in which they are counted. down: raised by whatever is asked of it.
    answering: cleared, it takes calls and says nothing. ignores_cancellation: as client libraries did.
    """

    def __init__(self) -> None:
        self.room, self.refusal, self.slot = 1_000_000, (2, 1500), 100
        self.usage = [3, 2500, 40, 7250]
        self.down: Exception | None = None
        self.answering = asyncio.Event()
        self.answering.set()
        self.ignores_cancellation = False
        self.calls: list[ScriptCall] = []
        self.under_way = self.most_under_way = 0
        self.subscriptions: list[ScriptedSubscription] = []
        self.published: list[bytes] = []
        self.urls: list[str] = []
        self.options: dict[str, Any] = {}
        self.open_connections = 0

    def from_url(self, url: str, **options: Any) -> "ScriptedRedis":
        self.urls.append(url)
        self.options = options
        return self

    async def __aenter__(self) -> "ScriptedRedis":
        self.open_connections += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self.open_connections -= 1

    async def script_load(self, script: bytes) -> str:
        assert script == SCRIPT
        await self._answers()
        return "sha"

    async def publish(self, channel: str, data: bytes) -> int:
        await self._answers()
        self.published.append(data)
        self.deliver(channel, data)
        return len(self.subscriptions)

    def deliver(self, channel: str, data: bytes) -> None:
        """Deliver it to all subscribers of this channel."""
        for subscription in self.subscriptions:
            subscription.receive(channel, {"type": "message", "data": data})

    def pubsub(self) -> "ScriptedSubscription":
        return ScriptedSubscription(self)

    def pipeline(self, transaction: bool) -> "ScriptedPipeline":
        assert not transaction
        return ScriptedPipeline(self)

    async def execute(self, calls: list[ScriptCall]) -> list[list[int]]:
        self.calls += calls
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await self._answers()
        finally:
            self.under_way -= 1
        return [self._decide(call) for call in calls]

    async def _answers(self) -> None:
        try:
            await self.answering.wait()
        except asyncio.CancelledError:
            if not self.ignores_cancellation:
                raise
        if self.down is not None:
            raise self.down

    def _decide(self, call: ScriptCall) -> list[int]:
        reply = [self.slot, *self.usage]
        for _ in call.asks:
            reply += (0, 0) if self.room > 0 else self.refusal
            self.room -= 1
        return reply


@dataclass(slots=True)
class ScriptedPipeline:
    """Calls that travel together."""

    redis: ScriptedRedis
    calls: list[ScriptCall] = field(default_factory=list)

    def evalsha(self, script: str, keys: int, key: str, *arguments: Any) -> None:
        assert (script, keys) == ("sha", 1)
        router, open_requests, lease_ms, *most, now_ms, count = arguments[:8]
        assert (lease_ms, now_ms) == (LEASE_S * 1000, "")
        numbers = list(arguments[8:])
        pairs, asks = numbers[: 2 * count], numbers[2 * count :]
        corrections = dict(zip(pairs[::2], pairs[1::2], strict=True))
        self.calls.append(ScriptCall(key, router, open_requests, tuple(most), corrections, asks))

    async def execute(self) -> list[list[int]]:
        return await self.redis.execute(self.calls)


class ScriptedSubscription:
    """One client's, to one channel."""

    def __init__(self, redis: ScriptedRedis) -> None:
        self._redis, self._channel = redis, ""
        self._messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def __aenter__(self) -> "ScriptedSubscription":
        return self

    async def __aexit__(self, *_: object) -> None:
        self._redis.subscriptions.remove(self)

    async def subscribe(self, channel: str) -> None:
        self._redis.subscriptions.append(self)
        self._channel = channel
        self.receive(channel, {"type": "subscribe", "data": 1})

    def receive(self, channel: str, message: dict[str, Any]) -> None:
        if channel == self._channel:
            self._messages.put_nowait(message)

    async def get_message(self, timeout: float) -> dict[str, Any] | None:
        try:
            async with asyncio.timeout(timeout):
                return await self._messages.get()
        except TimeoutError:
            return None
