"""Calls between routers and replicas, whose messages are observed, and may be of another version.

A peer of a later version adds fields to its messages, and one of an earlier version leaves out those that
were added since (`as_of`).
"""

from collections.abc import Callable
from typing import Any

from penstock_runtime.grpc.bounds import GrpcBounds
from penstock_runtime.grpc.call import GrpcCall
from penstock_runtime.grpc.client import Channel
from penstock_runtime.grpc.server import Handler, Handlers

UNKNOWN_FIELD = b"\xfa\x7f\x03new"
"""Field 2047, a string, which a later version sends."""

ADDED = {
    "Finished": ("thinking_tokens", "token_gaps_us", "cached_tokens"),
    "DescribeReply": ("metrics_url", "http_port"),
}
"""Fields that an earlier version does not have, by message."""

Watch = Callable[[str], Callable[[Any], None]]
"""Called for each call with its method; returns what is called with each message that the client receives."""


def as_of(skew: int, message: Any) -> Any:
    """Return a message as an earlier version (-1) or a later one (1) would send it."""
    if skew > 0:
        return type(message).FromString(message.SerializeToString() + UNKNOWN_FIELD)
    return _without_added(message) if skew < 0 else message


def _without_added(message: Any) -> Any:
    earlier = type(message)()
    earlier.CopyFrom(message)
    for field in ADDED.get(type(message).__name__, ()):
        earlier.ClearField(field)
    for event in getattr(earlier, "events", ()):
        if event.HasField("finished"):
            for field in ADDED["Finished"]:
                event.finished.ClearField(field)
    return earlier


class ObservedCall:
    """A call at one end. skew: version of its messages. seen: called with each message that is received."""

    def __init__(self, call: GrpcCall, skew: int, seen: Callable[[Any], None] = lambda _: None) -> None:
        self._call, self._skew, self._seen = call, skew, seen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)

    async def write(self, message: Any) -> None:
        """Send a message."""
        await self._call.write(as_of(self._skew, message))

    async def receive(self, kind: Any, deliver: Callable[[Any], None]) -> None:
        """Deliver each message."""

        def observe(message: Any) -> None:
            self._seen(message)
            deliver(message)

        await self._call.receive(kind, observe)


class ObservedChannel(Channel):
    """A client's connection. skew: version of its messages."""

    def __init__(self, address: str, bounds: GrpcBounds, watch: Watch, skew: int) -> None:
        super().__init__(address, bounds=bounds)
        self._watch, self._skew = watch, skew

    def open(self, method: str) -> Any:
        """Begin a call."""
        return ObservedCall(super().open(method), self._skew, self._watch(method.rpartition("/")[2]))


def skewed(handlers: Handlers, skew: int) -> Handlers:
    """Return handlers whose messages are of another version."""

    def handler_of(handler: Handler) -> Handler:
        async def handle(call: GrpcCall) -> None:
            await handler(ObservedCall(call, skew))  # type: ignore[arg-type]

        return handle

    return {method: handler_of(handler) for method, handler in handlers.items()}
