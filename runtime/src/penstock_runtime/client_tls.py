"""TLS of connections to servers of one authority, whose files are read again when they are renewed.

contexts = client_contexts(ca, cert, key, server_name)
connect(..., ssl=contexts())    # for each new connection; open ones keep theirs
"""

import ssl
from collections.abc import Callable
from errno import EINVAL
from pathlib import Path

from penstock_runtime.renewed_files import RenewedFiles

Contexts = Callable[[], ssl.SSLContext]
"""Returns the context for a new connection."""


def client_contexts(
    ca: Path, cert: Path | None = None, key: Path | None = None, server_name: str | None = None
) -> Contexts:
    """Return a function that gives contexts for TLS 1.2 or later.

    ca: signs servers. cert, key: shown to servers that request a certificate.
    server_name: the name in servers' certificates; None for the host that is connected to.
    Raises OSError if a file cannot be used.
    """
    parts = [file for file in (ca, cert, key) if file is not None]
    files = RenewedFiles(parts, lambda: _context(ca, cert, key, server_name))

    def contexts() -> ssl.SSLContext:
        files.look()
        return files.value

    return contexts


class _NamedContext(ssl.SSLContext):
    """Verifies one name, whatever host is connected to.

    server_name: None for the host.
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


def _context(ca: Path, cert: Path | None, key: Path | None, server_name: str | None) -> ssl.SSLContext:
    context = _NamedContext(ssl.PROTOCOL_TLS_CLIENT)
    context.server_name = server_name
    try:
        context.load_verify_locations(cadata=ca.read_text(encoding="ascii"))
    except (ssl.SSLError, ValueError):  # ValueError: no text, or an empty file
        raise OSError(EINVAL, "no certificate of an authority", str(ca)) from None
    if cert is not None and key is not None:
        for file in (cert, key):
            file.open().close()  # ssl's error would not name the file
        try:
            context.load_cert_chain(cert, key, password="")
        except ssl.SSLError as error:
            raise OSError(
                EINVAL, f"no certificate with its key in {key} ({error.reason})", str(cert)
            ) from None
    return context
