"""A gRPC connection without sockets: the test carries the bytes between both ends."""

import asyncio

from loop_time import turns
from penstock_runtime.grpc.bounds import GrpcBounds
from penstock_runtime.grpc.call import GrpcCall
from penstock_runtime.grpc.client import headers_of
from penstock_runtime.grpc.connection import GrpcConnection
from penstock_runtime.grpc.server import GrpcServer, Handlers

METHOD = "/test.Service/Method"


class Cable(asyncio.Transport):
    """One end's transport. waiting: written, and not yet carried to the other end."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 4711)})
        self.waiting = bytearray()
        self.closing = self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closing, "uvloop raises"
        self.waiting += data

    def get_write_buffer_size(self) -> int:
        return len(self.waiting)

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = self.aborted = True


class Pair:
    """A client's connection and the server's end of it."""

    def __init__(self, handlers: Handlers, bounds: GrpcBounds | None = None) -> None:
        self.server = GrpcServer(handlers, bounds)
        self.near, self.far = GrpcConnection(bounds=bounds), self.server.connection()
        self.near_cable, self.far_cable = Cable(), Cable()
        self.near.connection_made(self.near_cable)
        self.far.connection_made(self.far_cable)

    def open(self, method: str = METHOD) -> GrpcCall:
        """Begin a call."""
        return self.near.open(headers_of(method, "test", "http"))

    def carry(self, most: int = 2**30) -> bool:
        """Carry up to this many bytes each way. Return whether there were any."""
        moved = False
        for cable, reader in ((self.near_cable, self.far), (self.far_cable, self.near)):
            data = bytes(cable.waiting[:most])
            del cable.waiting[:most]
            if data:
                moved = True
                reader.data_received(data)
        return moved

    async def settle(self, most: int = 2**30) -> None:
        """Carry all bytes, and run what they cause."""
        await turns()
        while self.carry(most):
            await turns()

    def lose(self) -> None:
        """Break the connection."""
        self.near.connection_lost(None)
        self.far.connection_lost(None)
