"""forward.py PORT NETWORK ADDRESS:PORT: from 127.0.0.1:PORT here to an address in another network namespace.

The listening socket stays in the network where it was made; connections are made in the other, whose file is
NETWORK. There is no link between the two, so no route along which anything else could pass.
"""

import asyncio
import ctypes
import os
import socket
import sys
from collections.abc import Awaitable, Callable


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.transport.abort()


def to(host: str, port: str) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """What serves one connection: another one, to there, and both directions until both have ended."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection(host, port)
        except OSError:
            writer.transport.abort()
            return
        await asyncio.gather(pump(reader, there[1]), pump(there[0], writer))
        writer.close()
        there[1].close()

    return serve


async def main(port: str, network: str, target: str) -> None:
    listener = socket.create_server(("127.0.0.1", int(port)), backlog=512)
    enter(network)
    server = await asyncio.start_server(to(*target.rsplit(":", 1)), sock=listener)
    await server.serve_forever()


def enter(network: str) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(os.open(network, os.O_RDONLY), 0):
        raise OSError(ctypes.get_errno(), f"setns {network}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
