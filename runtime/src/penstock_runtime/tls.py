"""TLS of an HTTP server, whose certificate is reloaded when its files have been renewed.

Python asks at every handshake which context is to serve it. Connections that stand go on with what they began
with; a new one is shown what is in the files by then.
"""

import ssl
from errno import EINVAL
from pathlib import Path

from penstock_runtime.renewed_files import RenewedFiles


def server_context(cert: Path, key: Path) -> ssl.SSLContext:
    """TLS 1.2 or later, with a certificate that follows its files. Raises OSError where these are no pair."""
    files = RenewedFiles((cert, key), lambda: _context(cert, key))

    def at_handshake(connection: ssl.SSLObject, server_name: str | None, asked: ssl.SSLContext) -> None:
        files.look()
        connection.context = files.value

    first = _context(cert, key)
    first.sni_callback = at_handshake
    return first


def _context(cert: Path, key: Path) -> ssl.SSLContext:
    for file in (cert, key):
        file.open().close()  # ssl would not say which of them it cannot read
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(cert, key, password="")
    except ssl.SSLError as error:
        raise OSError(EINVAL, f"no certificate with its key in {key} ({error.reason})", str(cert)) from None
    return context
