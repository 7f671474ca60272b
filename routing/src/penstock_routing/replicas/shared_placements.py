"""Placements that routers share through Redis: the requests that they have just sent.

    submit ──▶ batched for some milliseconds ──▶ PUBLISH
                                                    │
    loads of links ◀── counted for some milliseconds ◀── SUBSCRIBE

This is not on the request path: a submit adds two numbers, and a separate task sends them. Redis stores
nothing, so nothing has to expire. A lost message makes one routing decision slightly worse. While Redis is
unavailable, routers use the replicas' snapshots and their own placements, as without Redis, and reconnect.

Every router receives its own messages too. A router that does not receive even its own heartbeat has a broken
connection and reconnects.
"""

import asyncio
from collections.abc import Awaitable, Callable
from secrets import token_hex
from typing import Any

import orjson
import structlog

from penstock_routing.connections.backoff import Backoff
from penstock_routing.connections.cancellation import raise_if_cancelled
from penstock_routing.connections.redis_client import redis_client
from penstock_routing.replicas.peer_placements import PeerLoad

BATCH_S = 0.003
"""How long placements are collected for one message: about as long as a verdict takes."""

HEARTBEAT_S = 2.0
"""Seconds between messages of a router without requests."""
SILENCE_S = 3 * HEARTBEAT_S
"""Silence after which a connection counts as broken."""

ANSWER_S = 2.0
"""Longest wait for Redis to connect, and to take a message."""

MESSAGE_BYTES = 2**20
"""Longest message that is read. Routers send shorter ones."""

MOST_COUNTED = 2**40
"""Largest valid number of requests or tokens in a message. Loads are computed with floats."""

OnPlacement = Callable[[str, PeerLoad], None]
log = structlog.get_logger()


class SharedPlacements:
    """Sends this router's placements to the others through Redis, and receives theirs.

    url: returns the URL of Redis; called for each connection, as passwords are renewed. Raises OSError.
    channel: Redis channel of the pool's routers.
    connected: whether messages are sent and received.
    """

    def __init__(self, url: Callable[[], str], channel: str, backoff: Backoff) -> None:
        self.connected = False
        self._url, self._channel, self._backoff = url, channel, backoff
        self._router_id = token_hex(8)
        self._batch: dict[str, list[int]] = {}  # requests and prompt tokens
        self._due = asyncio.Event()
        self._unavailable = False

    def placed(self, replica: str, prompt_tokens: int) -> None:
        """Add a request that was sent to a replica."""
        if not self.connected:
            return
        counts = self._batch.setdefault(replica, [0, 0])
        counts[0] += 1
        counts[1] += prompt_tokens
        self._due.set()

    async def run(self, on_placement: OnPlacement, malformed: Callable[[], None]) -> None:
        """Send and receive placements until cancelled.

        on_placement: called with each replica and the requests that another router has sent to it.
        malformed: called for each invalid message.
        """
        while True:
            try:
                await self._connection(on_placement, malformed)
                why = "the connection ended"
            except* Exception as errors:  # no error of sharing may stop a router
                why = _messages(errors)
            finally:
                self.connected = False
                self._batch.clear()
            raise_if_cancelled()
            if not self._unavailable:  # log once for each outage, not for each attempt
                log.warning("redis unavailable", why=why, meanwhile="each router uses its own placements")
                self._unavailable = True
            await asyncio.sleep(self._backoff.wait_s())

    async def _connection(self, on_placement: OnPlacement, malformed: Callable[[], None]) -> None:
        redis = redis_client(
            self._url(),
            socket_connect_timeout=ANSWER_S,
            socket_timeout=ANSWER_S,
            socket_keepalive=True,
            max_connections=2,
        )
        async with redis, asyncio.TaskGroup() as group:
            pubsub = redis.pubsub()
            async with pubsub:
                await pubsub.subscribe(self._channel)
                writing = group.create_task(self._write(redis.publish))
                try:
                    await self._read(pubsub.get_message, on_placement, malformed)
                finally:
                    writing.cancel()

    async def _read(
        self,
        get_message: Callable[..., Awaitable[dict[str, Any] | None]],
        on_placement: OnPlacement,
        malformed: Callable[[], None],
    ) -> None:
        while True:
            message = await get_message(timeout=SILENCE_S)
            raise_if_cancelled()
            if message is None:
                raise TimeoutError(f"no message for {SILENCE_S:g} s")
            if message["type"] != "message":  # the answer to the subscription
                continue
            if not self.connected:
                log.info("redis connected", channel=self._channel)
                self.connected, self._unavailable = True, False
                self._backoff.reset()
            self._receive(message["data"], on_placement, malformed)

    async def _write(self, publish: Callable[[str, bytes], Awaitable[int]]) -> None:
        while True:
            await publish(self._channel, self._message())
            raise_if_cancelled()
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    await self._due.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(BATCH_S)

    def _message(self) -> bytes:
        counts, self._batch = self._batch, {}
        self._due.clear()
        return orjson.dumps({"router": self._router_id, "placed": counts})

    def _receive(self, data: bytes, on_placement: OnPlacement, malformed: Callable[[], None]) -> None:
        """Apply a message. Invalid ones and this router's own are ignored."""
        try:
            router, placements = read_placements(data)
        except (ValueError, TypeError, LookupError, AttributeError):
            malformed()
            return
        if router == self._router_id:
            return
        for replica, placed in placements:
            on_placement(replica, placed)


def read_placements(data: bytes) -> tuple[str, list[tuple[str, PeerLoad]]]:
    """Return the router that sent a message, and its placements by replica.

    Fields of a later version are ignored. Raises ValueError, TypeError, LookupError or AttributeError if the
    message is invalid.
    """
    if len(data) > MESSAGE_BYTES:
        raise ValueError(f"longer than {MESSAGE_BYTES} bytes")
    message = orjson.loads(data)
    placed = [
        (name, PeerLoad(_count(counts[0]), _count(counts[1]))) for name, counts in message["placed"].items()
    ]
    return str(message["router"]), placed


def _count(value: object) -> int:
    """Return a valid count. Raises ValueError."""
    if not isinstance(value, int) or not 0 <= value <= MOST_COUNTED:
        raise ValueError(f"not an integer from 0 to {MOST_COUNTED}")
    return value


def _messages(errors: BaseExceptionGroup[BaseException]) -> str:
    """Return the first error as text. It may contain an address, never a password."""
    first: BaseException = errors
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return f"{type(first).__name__}: {first}"
