"""The server's certificate, taken up again when its files have been renewed in place.

gRPC asks at every handshake. Connections that stand go on with what they began with; a new one is shown what
is in the files by then. A renewal that is only half there, or a file that cannot be read, changes nothing:
the last whole set goes on, and the next handshake looks again.
"""

import threading

import grpc
import structlog

from penstock_sidecar.options import Tls

Stamp = tuple[tuple[int, int, int], ...]
log = structlog.get_logger()


def server_credentials(tls: Tls) -> grpc.ServerCredentials:
    """Credentials that follow the files. Raises OSError where they cannot be read now."""
    return grpc.dynamic_ssl_server_credentials(
        _read(tls),
        _Renewal(tls).look,  # type: ignore[arg-type]  # gRPC takes None for no news; its stubs do not know
        require_client_authentication=tls.client_ca is not None,
    )


class _Renewal:
    """Asked from gRPC's own threads, several at once."""

    def __init__(self, tls: Tls) -> None:
        self._tls, self._lock = tls, threading.Lock()
        self._seen = _stamp(tls)

    def look(self) -> grpc.ServerCertificateConfiguration | None:
        """The certificate where it is another one than last time, else None."""
        with self._lock:
            try:
                stamp = _stamp(self._tls)
                if stamp == self._seen:
                    return None
                renewed = _read(self._tls)
                if _stamp(self._tls) != stamp:  # renewed while it was read
                    return None
            except OSError as error:
                log.warning("certificate not read", file=error.filename, why=error.strerror)
                return None
            self._seen = stamp
            log.info("certificate renewed", file=str(self._tls.cert))
            return renewed


def _stamp(tls: Tls) -> Stamp:
    """Changes whenever a file does. A mounted Secret is renewed by turning a link to another folder."""
    files = (tls.cert, tls.key, *([tls.client_ca] if tls.client_ca else []))
    found = [file.stat() for file in files]
    return tuple((stat.st_dev, stat.st_ino, stat.st_mtime_ns) for stat in found)


def _read(tls: Tls) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(tls.key.read_bytes(), tls.cert.read_bytes())],
        root_certificates=tls.client_ca.read_bytes() if tls.client_ca else None,
    )
