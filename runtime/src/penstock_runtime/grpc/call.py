"""One call, at the client's or the server's end.

A call has one receiver: a function that gets each message as it arrives (`receive`), or a coroutine that asks
for one after the other (`next`). Messages that are not taken yet wait, and their bytes are acknowledged when
they are, so a peer can send no more than a window ahead. Writes wait while the peer's window, or the socket,
has no room, so the unsent bytes of a call are those of one message.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol, Self, TypeVar

from google.protobuf.message import DecodeError

from penstock_runtime.grpc.messages import MESSAGE_BYTES, MessageReader, with_prefix
from penstock_runtime.grpc.status import RpcError, Status


class Message(Protocol):
    """A protobuf message."""

    def SerializeToString(self) -> bytes:
        """Return its bytes."""

    @classmethod
    def FromString(cls, data: bytes, /) -> Self:
        """Return the message of these bytes. Raises DecodeError."""


M = TypeVar("M", bound=Message)


class CallConnection(Protocol):
    """What a call needs of its connection."""

    def send(self, call: "GrpcCall") -> None:
        """Send as much of the call's unsent bytes as windows and socket take."""

    def acknowledge(self, call: "GrpcCall", size: int) -> None:
        """Let the peer send this many more bytes."""

    def finish_sending(self, call: "GrpcCall") -> None:
        """Close this end's direction."""

    def reset(self, call: "GrpcCall") -> None:
        """End the call at the peer."""


class GrpcCall:
    """One call.

    id: its HTTP/2 stream. peer: the host of the other end. unsent: bytes of the message that is being sent.
    response: headers and trailers of the server's response, at the client's end.
    when_over: called when the call is over. message_bytes: largest message of the peer.
    count_incomplete: called with the bytes so far of a message that is arriving. If it raises, nothing more
        is received, and `next` or `receive` raises that error.
    """

    def __init__(
        self, connection: CallConnection, id: int, peer: str, message_bytes: int = MESSAGE_BYTES
    ) -> None:
        self.id, self.peer = id, peer
        self.unsent = memoryview(b"")
        self.response: dict[bytes, bytes] = {}
        self.when_over: Callable[[], object] = lambda: None
        self.count_incomplete: Callable[[int], None] | None = None
        self._connection = connection
        self._reader = MessageReader(message_bytes)
        self._early: deque[bytes] = deque()
        self._early_bytes = 0  # acknowledged when they are taken
        self._arrived: asyncio.Future[None] | None = None  # done when `next` need not wait any longer
        self._receiver: Callable[[bytes], None] | None = None
        self._failed = False  # its user wants nothing more of the peer
        self._error: Exception | None = None
        self._received = asyncio.Event()  # nothing more will be received
        self._over = False  # nothing can be sent any more
        self._sent: asyncio.Future[None] | None = None  # done when `unsent` is

    # For its user

    async def write(self, message: Message) -> None:
        """Send a message once there is room. Raises RpcError if the call has ended."""
        data = with_prefix(message.SerializeToString())
        self._check()
        await self.all_sent()
        self.unsent = memoryview(data)
        self._connection.send(self)
        await self.all_sent()

    async def receive(self, kind: type[M], deliver: Callable[[M], None]) -> None:
        """Deliver each message as it arrives, until the peer has sent its last one or `cancel` is called.

        Raises RpcError if the call fails, and what `deliver` raises, after which nothing more is delivered.
        """
        self._receiver = lambda data: deliver(_parse(kind, data))
        while self._early:
            self._deliver(self._early.popleft())
        self._acknowledge_early()
        await self._received.wait()
        if self._error is not None:
            raise self._error

    async def next(self, kind: type[M]) -> M | None:
        """Return the next message once it has arrived; None after the last.

        Raises RpcError if the call fails.
        """
        while not self._early:
            if self._received.is_set():
                if self._error is not None:
                    raise self._error
                return None
            self._acknowledge_early()
            self._arrived = asyncio.get_running_loop().create_future()
            await self._arrived
        return _parse(kind, self._early.popleft())

    async def receive_one(self, kind: type[M]) -> M:
        """Return the only message of the peer. Raises RpcError if there is none, or more."""
        messages: list[M] = []
        await self.receive(kind, messages.append)
        if len(messages) != 1:
            raise RpcError(Status.INTERNAL, f"{len(messages)} messages in place of one")
        return messages[0]

    def finish_sending(self) -> None:
        """Send no more messages."""
        self._connection.finish_sending(self)

    def cancel(self) -> None:
        """End the call. A receiver returns."""
        if not self._over:
            self._connection.reset(self)
            self.end(None)

    async def all_sent(self) -> None:
        """Wait until no byte of a message is unsent. Raises RpcError if the call ends first."""
        while self.unsent:
            self._check()
            if self._sent is None:
                self._sent = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._sent)

    # For its connection

    @property
    def received(self) -> bool:
        """Whether the peer has sent its last message."""
        return self._received.is_set()

    def take(self, data: bytes, size: int) -> None:
        """Take bytes from the peer. size: what they count in the window."""
        if self._failed:
            self._connection.acknowledge(self, size)
            return
        try:
            messages = self._reader.feed(data)
        except RpcError as error:
            self._early_bytes += size
            self._connection.reset(self)
            self.end(error)
            return
        if self.count_incomplete is not None:
            try:
                self.count_incomplete(self._reader.incomplete_bytes)
            except Exception as error:  # its reader gets it; the connection's other calls continue
                self._fail(error)
                self._connection.acknowledge(self, size)
                return
        if self._receiver is None:
            self._early += messages
            self._early_bytes += size
            if messages:
                self._wake_reader()
            elif self._arrived is not None:  # `next` waits for the rest of this message
                self._acknowledge_early()
            return
        for message in messages:
            self._deliver(message)
        self._connection.acknowledge(self, size)

    def sent(self, size: int) -> None:
        """Note that this many of the unsent bytes are sent."""
        self.unsent = self.unsent[size:]
        if not self.unsent:
            self._wake_writer()

    def end_receiving(self, error: Exception | None = None) -> None:
        """Note that the peer has sent its last message."""
        if not self._received.is_set():
            if error is None and self._reader.incomplete_bytes:
                error = RpcError(Status.INTERNAL, "the last message is incomplete")
            self._error = self._error or error
            self._received.set()
            self._wake_reader()

    def end(self, error: Exception | None) -> None:
        """Note that the call is over. error: why it failed; None if it has not.

        Bytes that were not taken are acknowledged: the connection's window is shared by all calls.
        """
        self._acknowledge_early()
        self.end_receiving(error)
        if not self._over:
            self._over = True
            self._wake_writer()
            self.when_over()

    def _deliver(self, data: bytes) -> None:
        assert self._receiver is not None
        if self._failed:
            return
        try:
            self._receiver(data)
        except Exception as error:  # its receiver gets it; the connection's other calls continue
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Receive nothing more, because of an error of this call's user."""
        self._failed, self._error = True, error
        self._reader = MessageReader(0)  # drops the bytes of an incomplete message
        self._received.set()
        self._wake_reader()

    def _acknowledge_early(self) -> None:
        size, self._early_bytes = self._early_bytes, 0
        self._connection.acknowledge(self, size)

    def _wake_reader(self) -> None:
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)
        self._arrived = None

    def _check(self) -> None:
        if self._over:
            raise self._error or RpcError(Status.CANCELLED, "the call is over")

    def _wake_writer(self) -> None:
        if self._sent is not None:
            self._sent.set_result(None)
            self._sent = None


def _parse(kind: type[M], data: bytes) -> M:
    try:
        return kind.FromString(data)
    except DecodeError:
        raise RpcError(Status.INTERNAL, f"a message that is not a {kind.__name__}") from None
