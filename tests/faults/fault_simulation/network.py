"""A network in memory: connections, datagrams, and their faults.

A `Pipe` is one direction of a connection: what is put in comes out in order, after a delay, and not while
the way between its hosts is cut off. `StreamEnd` is a transport over two pipes.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from fault_simulation.hosts import HOST, Host
from penstock_core.domain.shared_prefixes import SharedPrefixes
from penstock_runtime.grpc.bounds import GrpcBounds

Accept = Callable[[], asyncio.Protocol]
"""Returns the protocol of a new connection."""

HIGH_BYTES = 64 << 10
"""Bytes that a transport buffers beyond that before writing pauses, by default."""

SILENT_S = 15.0
"""When the peer of a host that is silently gone finds out at the latest."""


@dataclass(slots=True)
class Weather:
    """How the network is in one run.

    delay_s: of most packets, up to. slow_share: of packets that take up to `slow_s`.
    cut_share: of writes that arrive in two pieces.
    lost, doubled, late, torn: shares of datagrams.
    kernel_bytes: what a connection takes while its other end does not read: the buffers of both kernels.
    window_bytes: what one call of gRPC takes meanwhile.
    """

    delay_s: float = 0.0005
    slow_share: float = 0.0
    slow_s: float = 0.2
    cut_share: float = 0.0
    lost: float = 0.0
    doubled: float = 0.0
    late: float = 0.0
    torn: float = 0.0
    kernel_bytes: int = 64 << 10
    window_bytes: int = 64 << 10

    @property
    def grpc_bounds(self) -> GrpcBounds:
        """The bounds of connections between routers and replicas."""
        return GrpcBounds(window_bytes=self.window_bytes)


class Network:
    """All connections between simulated hosts.

    faults: injected, by kind. ticket_keys: what sidecars have left on their replica's disk for the engine.
    shared_prefixes: what the requests of an engine shared when it made a report, by the report.
    """

    def __init__(self, random: Random, weather: Weather) -> None:
        self.random, self.weather = random, weather
        self.faults: Counter[str] = Counter()
        self.ticket_keys: dict[str, bytes] = {}
        self.shared_prefixes: dict[bytes, SharedPrefixes | None] = {}
        self._loop = asyncio.get_running_loop()
        self._listeners: dict[str, tuple[Host, Any]] = {}
        self._receivers: dict[str, tuple[Host, Callable[[bytes], None]]] = {}
        self._cut_off: dict[frozenset[str], int] = {}  # how many faults cut each pair off
        self._pipes: dict[Pipe, None] = {}
        self._healed = asyncio.Event()

    # Addresses

    def listen(self, host: Host, address: str, accept: Any) -> None:
        """Take connections at an address for as long as the host is alive."""
        self._listeners[address] = (host, accept)

    def close(self, address: str) -> None:
        """Take no more connections at an address."""
        self._listeners.pop(address, None)

    def listener(self, address: str) -> tuple[Host, Any]:
        """Return the listener at an address. Raises ConnectionRefusedError."""
        found = self._listeners.get(address)
        if found is None or not found[0].alive:
            raise ConnectionRefusedError(111, f"no process listens at {address}")
        return found

    # What may go wrong

    def delay_s(self) -> float:
        """Return how long the next packet takes."""
        weather, random = self.weather, self.random
        if weather.slow_share and random.random() < weather.slow_share:
            self.faults["delay"] += 1
            return random.random() * weather.slow_s
        return random.random() * weather.delay_s

    def cut_off(self, one: str, other: str) -> None:
        """Block packets between two hosts until `heal`."""
        pair = frozenset((one, other))
        self._cut_off[pair] = self._cut_off.get(pair, 0) + 1

    def is_cut_off(self, one: Host, other: Host) -> bool:
        """Return whether packets between two hosts are blocked."""
        return bool(self._cut_off) and frozenset((one.name, other.name)) in self._cut_off

    def heal(self, one: str, other: str) -> None:
        """Let packets through again. Packets sent meanwhile arrive now."""
        pair = frozenset((one, other))
        self._cut_off[pair] -= 1
        if self._cut_off[pair]:
            return
        del self._cut_off[pair]
        for pipe in list(self._pipes):
            pipe.go_on()
        self._healed.set()
        self._healed = asyncio.Event()

    async def way(self, one: Host, other: Host) -> None:
        """Wait for a packet's way between two hosts."""
        await asyncio.sleep(self.delay_s())
        while self.is_cut_off(one, other):
            await self._healed.wait()

    # Byte streams

    async def connect(
        self, factory: Callable[[], asyncio.Protocol], address: str
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Open a connection from the current host. Raises OSError."""
        source = HOST.get()
        assert source is not None
        peer = self._listeners.get(address)
        if peer is not None:
            await self.way(source, peer[0])
        host, accept = self.listener(address)
        near, far = StreamEnd(self, source), StreamEnd(self, host)
        near.join(far, factory(), address)
        far.join(near, host.context.run(accept), f"{source.name}:1")
        host.context.run(far.protocol.connection_made, far)
        near.protocol.connection_made(near)
        return near, near.protocol

    # Datagrams

    def receive_datagrams(self, host: Host, address: str, receive: Callable[[bytes], None]) -> None:
        """Pass datagrams for an address to a function of a host."""
        self._receivers[address] = (host, receive)

    def send_datagram(self, address: str, data: bytes) -> bool:
        """Send one: it may be lost, doubled, late or torn. Return False where it was not taken."""
        host, _ = self._receivers.get(address, (None, None))
        if host is None or not host.alive:
            return False
        weather, random = self.weather, self.random
        if self._transition(weather.lost, "datagram lost"):
            return random.random() < 0.5
        if self._transition(weather.torn, "datagram torn"):
            data = data[: random.randrange(len(data))]
        self._deliver_later(address, data)
        if self._transition(weather.doubled, "datagram doubled"):
            self._deliver_later(address, data)
        return True

    def _transition(self, share: float, fault: str) -> bool:
        happens = share > 0 and self.random.random() < share
        self.faults[fault] += happens
        return happens

    def _deliver_later(self, address: str, data: bytes) -> None:
        late = self._transition(self.weather.late, "datagram late")
        delay_s = self.random.random() * (self.weather.slow_s if late else self.weather.delay_s)
        host, receive = self._receivers[address]

        def deliver() -> None:
            if host.alive:
                receive(data)

        self._loop.call_later(delay_s, deliver, context=host.context)


@dataclass(slots=True, eq=False)
class Pipe:
    """One direction of a connection between two hosts.

    deliver: called in the sink's context with each item.
    drained: called in the source's when items have arrived.
    held: size of what has not arrived. paused: the sink does not read.
    """

    network: Network
    source: Host
    sink: Host
    deliver: Callable[[Any], None]
    drained: Callable[[], None]
    held: int = 0
    paused: bool = False
    _items: deque[tuple[float, Any, int]] = field(default_factory=deque)
    _last_due_s: float = 0.0
    _timer: asyncio.TimerHandle | None = None

    def put(self, item: Any, size: int) -> None:
        """Send an item."""
        loop = asyncio.get_running_loop()
        self._last_due_s = max(self._last_due_s, loop.time() + self.network.delay_s())
        self._items.append((self._last_due_s, item, size))
        self.held += size
        self.network._pipes[self] = None
        self.go_on()

    def pause(self, paused: bool) -> None:
        """Let the sink read, or not."""
        self.paused = paused
        self.go_on()

    def clear(self) -> None:
        """Drop items that have not arrived."""
        self._items.clear()
        self.held = 0
        self.network._pipes.pop(self, None)

    def go_on(self) -> None:
        """Deliver the next item when it is due, unless it cannot get through."""
        if self._timer is None and self._items and not self._stopped():
            loop = asyncio.get_running_loop()
            at_s = max(self._items[0][0], loop.time())
            self._timer = loop.call_at(at_s, self._flush, context=self.sink.context)

    def _stopped(self) -> bool:
        return self.paused or self.network.is_cut_off(self.source, self.sink)

    def _flush(self) -> None:
        self._timer = None
        now_s = asyncio.get_running_loop().time() + 1e-9
        while self._items and self._items[0][0] <= now_s and not self._stopped():
            _, item, size = self._items.popleft()
            self.held -= size
            self.deliver(item)
        if not self._items:
            self.network._pipes.pop(self, None)
        asyncio.get_running_loop().call_soon(self.drained, context=self.source.context)
        self.go_on()


EOF, RESET = object(), object()
"""Signals in a pipe of bytes."""


class StreamEnd(asyncio.Transport):
    """One end of a connection of bytes: an asyncio transport."""

    protocol: asyncio.Protocol
    peer: "StreamEnd"
    _out: Pipe

    def __init__(self, network: Network, host: Host) -> None:
        super().__init__()
        self.network, self.host = network, host
        self._high, self._low = HIGH_BYTES, HIGH_BYTES // 4
        self._closing = self._lost = self._eof_sent = self._writing_paused = self._severed = False
        host.connections[self] = None

    def join(self, peer: "StreamEnd", protocol: asyncio.Protocol, peer_name: str) -> None:
        """Connect it with its other end."""
        self.peer, self.protocol, self._peer_name = peer, protocol, peer_name
        self._out = Pipe(self.network, self.host, peer.host, peer.receive, self._drained)

    # What protocols call

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the peer's address."""
        return (*self._peer_name.split(":"),) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set when writing pauses and resumes."""
        self._high = HIGH_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        """Return the bytes that the peer has not taken, beyond what the kernels hold."""
        return max(self._out.held - self.network.weather.kernel_bytes, 0)

    def write(self, data: Any) -> None:
        """Send bytes."""
        if self._closing or self._lost or self._severed or self._eof_sent or not data:
            return
        data, random = bytes(data), self.network.random
        if len(data) > 1 and self.network._transition(self.network.weather.cut_share, "cut"):
            at = random.randrange(1, len(data))
            self._out.put(data[:at], at)
            data = data[at:]
        self._out.put(data, len(data))
        if not self._writing_paused and self.get_write_buffer_size() > self._high:
            self._writing_paused = True
            self.protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        """Send bytes."""
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        """Return whether one direction can be closed."""
        return True

    def write_eof(self) -> None:
        """Close this direction once everything is sent."""
        if not self._eof_sent and not self._lost:
            self._eof_sent = True
            self._out.put(EOF, 0)

    def pause_reading(self) -> None:
        """Take no more from the peer for now."""
        self.peer._out.pause(True)

    def resume_reading(self) -> None:
        """Take from the peer again."""
        self.peer._out.pause(False)

    def is_reading(self) -> bool:
        """Return whether it takes from the peer."""
        return not self.peer._out.paused

    def is_closing(self) -> bool:
        """Return whether it is closed, or will be."""
        return self._closing or self._lost

    def close(self) -> None:
        """Close it once everything is sent."""
        if not self._closing and not self._lost:
            self.write_eof()
            self._closing = True
            if not self._out.held:
                self._lose_soon(None)

    def abort(self) -> None:
        """Close it immediately; the peer is reset."""
        if not self._lost:
            self._closing = True
            self._out.clear()
            self._out.put(RESET, 0)
            self._lose_soon(None)

    # What the network calls

    def sever(self, *, silent: bool = False) -> None:
        """Break it for both ends. silent: the peer finds out late."""
        for end in (self, self.peer):
            end._out.clear()
            end._severed = True
        self._lose_soon(ConnectionResetError(104, "reset"))
        self.peer._lose_soon(ConnectionResetError(104, "reset"), SILENT_S if silent else 0.0)

    def receive(self, item: Any) -> None:
        """Receive an item that the peer has sent."""
        if self._lost:
            return
        if item is RESET:
            self._out.clear()
            self._lose(ConnectionResetError(104, "reset"))
        elif self._closing:
            return
        elif item is EOF:
            if not self.protocol.eof_received():
                self.close()
        else:
            self.protocol.data_received(item)

    def _drained(self) -> None:
        if self._lost:
            return
        if self._writing_paused and self.get_write_buffer_size() <= self._low:
            self._writing_paused = False
            self.protocol.resume_writing()
        if self._closing and not self._out.held:
            self._lose(None)

    def _lose_soon(self, error: Exception | None, after_s: float = 0.0) -> None:
        asyncio.get_running_loop().call_later(after_s, self._lose, error, context=self.host.context)

    def _lose(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = self._closing = True
            self.host.connections.pop(self, None)
            self.protocol.connection_lost(error)
