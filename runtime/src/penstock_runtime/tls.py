"""TLS of a server, with a certificate that is reloaded when its files are renewed.

Python asks at every handshake which context to use. Open connections keep their certificate; a new connection
gets the one in the files.
"""

import ssl
from pathlib import Path

from penstock_runtime.certificate_chains import not_strict
from penstock_runtime.certificate_files import load_certificate
from penstock_runtime.renewed_files import RenewedFiles


def server_context(
    cert: Path, key: Path, client_ca: Path | None = None, protocol: str = "http/1.1"
) -> ssl.SSLContext:
    """Return a context for TLS 1.2 or later that reloads its files when they are renewed.

    client_ca: authority of the clients that may connect; None: all may connect.
    protocol: what the server speaks, for ALPN.
    Raises OSError if certificate and key are not a valid pair.
    """
    parts = (cert, key, *([client_ca] if client_ca else []))
    files = RenewedFiles(parts, lambda: _context(cert, key, client_ca, protocol))

    def at_handshake(connection: ssl.SSLObject, server_name: str | None, initial: ssl.SSLContext) -> None:
        files.reload()
        connection.context = files.value

    first = _context(cert, key, client_ca, protocol)
    first.sni_callback = at_handshake
    return first


def _context(cert: Path, key: Path, client_ca: Path | None, protocol: str) -> ssl.SSLContext:
    context = not_strict(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH))
    context.set_alpn_protocols([protocol])
    load_certificate(context, cert, key)
    if client_ca is not None:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
