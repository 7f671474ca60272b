"""A TLS server that leaves renewals to vLLM's own class, by vLLM's own Python: `renewed_server.py CERT KEY`.

It prints its port. By its first answer the class is watching.
"""

import asyncio
import ssl
import sys

from vllm.entrypoints.launchers.utils.ssl import SSLCertRefresher


async def main(cert: str, key: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    refresher = SSLCertRefresher(context, key_path=key, cert_path=cert)
    print(server.sockets[0].getsockname()[1], flush=True)
    try:
        await server.serve_forever()
    finally:
        refresher.stop()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
