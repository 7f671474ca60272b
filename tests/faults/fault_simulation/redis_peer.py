"""A Redis of a few commands: publish, subscribe, and the script of applications' limits for one of them.

The script (`shared_limits.lua`) is read as what it decides about requests: those at once, which are what each
router has reported, until that expires, and what it has accepted since; and those of the last minute.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from fault_simulation.hosts import Host
from fault_simulation.network import Network

REDIS = "redis:6379"
MINUTE_MS = 60_000


@dataclass(slots=True)
class RedisProcess:
    """A Redis.

    open: requests under way, and until when that is believed, by router.
    accepted_ms: when each request was accepted.
    """

    host: Host
    subscribers: "dict[RedisConnection, bytes]" = field(default_factory=dict)
    open: dict[bytes, tuple[int, float]] = field(default_factory=dict)
    accepted_ms: list[float] = field(default_factory=list)

    def decide(self, arguments: list[bytes], now_ms: float) -> list[int]:
        """Return what the script does: see there."""
        router, (open, lease_ms, most, most_in_minute) = arguments[0], map(int, arguments[1:5])
        asked = arguments[8 + 2 * int(arguments[7]) :]
        elsewhere = sum(
            count for name, (count, until_ms) in self.open.items() if name != router and until_ms > now_ms
        )
        in_minute = sum(at_ms > now_ms - MINUTE_MS for at_ms in self.accepted_ms)
        verdicts: list[int] = []
        for _ in asked:
            if elsewhere + open >= most >= 0:
                verdicts += [1, 1000]
            elif in_minute >= most_in_minute >= 0:
                verdicts += [2, 1000]
            else:
                open, in_minute = open + 1, in_minute + 1
                self.accepted_ms.append(now_ms)
                verdicts += [0, 0]
        self.open[router] = open, now_ms + lease_ms
        return [int(now_ms / 1000), in_minute, MINUTE_MS, 0, 0, *verdicts]


def start_redis(network: Network, host: Host) -> RedisProcess:
    """Start a Redis, which has nothing of an earlier one."""
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
