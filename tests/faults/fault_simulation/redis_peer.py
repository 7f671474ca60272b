"""A Redis of a few commands: publish, subscribe, and the script of applications' limits for one of them.

The script (`shared_limits.lua`) is read as what it decides: about requests at once, which are what each
router has reported, until that expires, and what it has accepted since; and about requests and tokens of the
last minute, of which tokens are corrected once a request has ended.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from fault_simulation.hosts import Host
from fault_simulation.network import Network

REDIS = "redis:6379"
MINUTE_MS = 60_000
SLOTS = 60
"""Seconds that count, beside the present one."""


@dataclass(slots=True)
class RedisProcess:
    """A Redis.

    open: requests under way, and when that expires, by router.
    accepted_ms: when each request was accepted. tokens: accepted and corrected, by second.
    """

    host: Host
    subscribers: "dict[RedisConnection, bytes]" = field(default_factory=dict)
    open: dict[bytes, tuple[int, float]] = field(default_factory=dict)
    accepted_ms: list[float] = field(default_factory=list)
    tokens: dict[int, int] = field(default_factory=dict)

    def decide(self, arguments: list[bytes], now_ms: float) -> list[int]:
        """Return the script's result, as documented there."""
        router, (open, lease_ms, most, most_in_minute, most_tokens) = arguments[0], map(int, arguments[1:6])
        slot, numbers, asks_from = int(now_ms / 1000), list(map(int, arguments[8:])), 2 * int(arguments[7])
        for at, change in zip(numbers[0:asks_from:2], numbers[1:asks_from:2], strict=True):
            self._correct(slot, at, change)
        tokens = sum(amount for at, amount in self.tokens.items() if at >= slot - SLOTS)
        elsewhere = sum(
            count for name, (count, until_ms) in self.open.items() if name != router and until_ms > now_ms
        )
        in_minute = sum(at_ms > now_ms - MINUTE_MS for at_ms in self.accepted_ms)
        verdicts: list[int] = []
        for asked in numbers[asks_from:]:
            if asked > most_tokens >= 0:
                verdicts += [3, -1]
            elif elsewhere + open >= most >= 0:
                verdicts += [1, 1000]
            elif in_minute >= most_in_minute >= 0:
                verdicts += [2, 1000]
            elif tokens + asked > most_tokens >= 0:
                verdicts += [3, 1000]
            else:
                open, in_minute, tokens = open + 1, in_minute + 1, tokens + asked
                self.accepted_ms.append(now_ms)
                self._take(slot, asked)
                verdicts += [0, 0]
        self.open[router] = open, now_ms + lease_ms
        return [slot, in_minute, MINUTE_MS, tokens, MINUTE_MS, *verdicts]

    def _correct(self, slot: int, at: int, change: int) -> None:
        """Correct the tokens accepted in a second, unless it no longer counts."""
        if at >= slot - SLOTS and at in self.tokens:
            self._take(at, change)
        elif change > 0:
            self._take(slot, change)

    def _take(self, slot: int, amount: int) -> None:
        self.tokens[slot] = self.tokens.get(slot, 0) + amount


def start_redis(network: Network, host: Host) -> RedisProcess:
    """Start a Redis without the data of an earlier one."""
    redis = RedisProcess(host)
    network.listen(host, REDIS, lambda: RedisConnection(redis))
    return redis


class RedisConnection(asyncio.Protocol):
    """A connection of a router."""

    transport: asyncio.Transport

    def __init__(self, redis: RedisProcess) -> None:
        self._redis, self._data = redis, b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._redis.subscribers.pop(self, None)

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (command := self._command()) is not None:
            self.transport.write(b"".join(self._answer(*command)))

    def _command(self) -> list[bytes] | None:
        """Take the next command: an array of strings, each behind a line with its length."""
        head, found, rest = self._data.partition(b"\r\n")
        parts: list[bytes] = []
        for _ in range(int(head[1:]) if found else 0):
            size, found, rest = rest.partition(b"\r\n")
            length = int(size[1:]) if found else 0
            if not found or len(rest) < length + 2:
                return None
            parts.append(rest[:length])
            rest = rest[length + 2 :]
        if not parts:
            return None
        self._data = rest
        return parts

    def _answer(self, name: bytes, *arguments: bytes) -> Iterator[bytes]:
        match name.upper():
            case b"SUBSCRIBE":
                self._redis.subscribers[self] = arguments[0]
                yield _push(b"subscribe", arguments[0], 1)
            case b"PUBLISH":
                channel, message = arguments
                readers = [each for each, its in self._redis.subscribers.items() if its == channel]
                for reader in readers:
                    reader.transport.write(_push(b"message", channel, message))
                yield _value(len(readers))
            case b"SCRIPT":
                yield _value(b"0" * 40)
            case b"EVALSHA":
                now_ms = asyncio.get_running_loop().time() * 1000
                yield _array(*self._redis.decide(list(arguments[3:]), now_ms))
            case b"PING":
                yield b"+PONG\r\n"
            case b"HELLO":
                yield b"%1\r\n" + _value(b"proto") + _value(3)
            case _:
                yield b"+OK\r\n"


def _value(value: bytes | int) -> bytes:
    return b":%d\r\n" % value if isinstance(value, int) else b"$%d\r\n%b\r\n" % (len(value), value)


def _array(*values: bytes | int) -> bytes:
    return b"*%d\r\n" % len(values) + b"".join(map(_value, values))


def _push(*values: bytes | int) -> bytes:
    return b">" + _array(*values)[1:]
