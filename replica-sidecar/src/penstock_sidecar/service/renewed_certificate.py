"""The server's certificate, reloaded when its files are renewed in place.

gRPC asks for it at every handshake, from threads of its own. Open connections keep theirs.
"""

import grpc
from penstock_runtime.renewed_files import RenewedFiles

from penstock_sidecar.options import SidecarTls


def server_credentials(tls: SidecarTls) -> grpc.ServerCredentials:
    """Return credentials that follow the files. Raises OSError where they cannot be read now."""
    parts = (tls.cert, tls.key, *([tls.client_ca] if tls.client_ca else []))
    files = RenewedFiles(parts, lambda: _read(tls))
    return grpc.dynamic_ssl_server_credentials(
        files.value,
        files.reload,  # type: ignore[arg-type]  # gRPC takes None for no change; its stubs do not know
        require_client_authentication=tls.client_ca is not None,
    )


def _read(tls: SidecarTls) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(tls.key.read_bytes(), tls.cert.read_bytes())],
        root_certificates=tls.client_ca.read_bytes() if tls.client_ca else None,
    )
