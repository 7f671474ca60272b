"""forward.py PORT NETWORK ADDRESS:PORT: forwards 127.0.0.1:PORT to an address in another network namespace.

The listening socket stays in the network namespace in which it was created; connections are opened in the
other, whose file is NETWORK. The two have no link, so no other traffic can pass.
"""

import asyncio
import ctypes
import os
import socket
import sys
from collections.abc import Awaitable, Callable


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.transport.abort()


def connection_handler(
    host: str, port: str
) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """Return the handler of a connection, which opens another one and forwards both directions."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream = await asyncio.open_connection(host, port)
        except OSError:
            writer.transport.abort()
            return
        await asyncio.gather(copy(reader, upstream[1]), copy(upstream[0], writer))
        writer.close()
        upstream[1].close()

    return serve


async def main(port: str, network: str, target: str) -> None:
    listener = socket.create_server(("127.0.0.1", int(port)), backlog=512)
    enter_namespace(network)
    server = await asyncio.start_server(connection_handler(*target.rsplit(":", 1)), sock=listener)
    await server.serve_forever()


def enter_namespace(network: str) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(os.open(network, os.O_RDONLY), 0):
        raise OSError(ctypes.get_errno(), f"setns {network}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
