"""TLS of connections to servers of one certificate authority, with files that are reloaded when renewed.

contexts = client_contexts(ca, cert, key, server_name)
connect(..., ssl=contexts())    # for each new connection; open ones keep theirs
"""

import ssl
from collections.abc import Callable
from errno import EINVAL
from pathlib import Path

from penstock_runtime.certificate_files import load_certificate
from penstock_runtime.renewed_files import RenewedFiles

Contexts = Callable[[], ssl.SSLContext]
"""Returns the context for a new connection."""


def client_contexts(
    ca: Path,
    cert: Path | None = None,
    key: Path | None = None,
    server_name: str | None = None,
    protocol: str | None = None,
) -> Contexts:
    """Return a function that returns contexts for TLS 1.2 or later.

    ca: certificate of the servers' authority. cert, key: sent to servers that request a certificate.
    server_name: the name in servers' certificates; None: the host name of the connection.
    protocol: what the client speaks, for ALPN; None: not sent.
    Raises OSError if a file is invalid.
    """
    parts = [file for file in (ca, cert, key) if file is not None]
    files = RenewedFiles(parts, lambda: _context(ca, cert, key, server_name, protocol))

    def contexts() -> ssl.SSLContext:
        files.reload()
        return files.value

    return contexts


class _NamedContext(ssl.SSLContext):
    """A context that verifies one name, whatever the host of the connection.

    server_name: None: the host name of the connection.
    """

    server_name: str | None = None

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        name = self.server_name or server_hostname
        return super().wrap_bio(incoming, outgoing, server_side, name, session)


def _context(
    ca: Path, cert: Path | None, key: Path | None, server_name: str | None, protocol: str | None
) -> ssl.SSLContext:
    context = _NamedContext(ssl.PROTOCOL_TLS_CLIENT)
    context.server_name = server_name
    try:
        context.load_verify_locations(cadata=ca.read_text(encoding="ascii"))
    except (ssl.SSLError, ValueError):  # ValueError: no text, or an empty file
        raise OSError(EINVAL, "not a certificate of an authority", str(ca)) from None
    if cert is not None and key is not None:
        load_certificate(context, cert, key)
    if protocol is not None:
        context.set_alpn_protocols([protocol])
    return context
