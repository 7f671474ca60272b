"""The TLS certificate of the router of `penstock up`."""

from pathlib import Path
from typing import NamedTuple

from penstock_runtime.tls import server_context

from penstock_cli.failure import Failure


class CertificateFiles(NamedTuple):
    """Files of a certificate and its key."""

    cert: Path
    key: Path


def certificate_files(cert: Path | None, key: Path | None) -> CertificateFiles | None:
    """Return both files, or None if neither is given. Raises Failure if they cannot be used."""
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise Failure("--tls-cert and --tls-key belong together", bad_input=True)
    try:
        server_context(cert, key)
    except OSError as error:
        raise Failure(f"--tls-cert, --tls-key: {error.filename}: {error.strerror}", bad_input=True) from None
    return CertificateFiles(cert, key)
