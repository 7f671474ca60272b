"""A certificate and its private key, loaded from files into a TLS context with errors that name the files."""

import ssl
from errno import EINVAL
from pathlib import Path


def load_certificate(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    """Load a certificate chain and its key. Raises OSError if a file is unreadable or they are not a pair."""
    for file in (cert, key):
        file.open().close()  # ssl's error would not name the file
    try:
        context.load_cert_chain(cert, key, password="")
    except ssl.SSLError as error:
        reason = f"not a certificate with its key in {key} ({error.reason})"
        raise OSError(EINVAL, reason, str(cert)) from None
