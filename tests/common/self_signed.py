"""A certificate that has signed itself, for servers on 127.0.0.1."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


class Identity:
    """A certificate for 127.0.0.1 that has signed itself, and its key."""

    def __init__(self, folder: Path) -> None:
        self.cert, self.key = folder / "tls.crt", folder / "tls.key"
        self.renew()

    def renew(self, key: bool = True) -> None:
        """Write new ones in place, or only the certificate."""
        private = ec.generate_private_key(ec.SECP256R1())
        name, now = x509.Name([]), datetime.now(UTC)
        made = x509.CertificateBuilder(name, name, private.public_key(), x509.random_serial_number())
        made = made.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        _replace(self.cert, made.sign(private, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        if key:
            _replace(
                self.key,
                private.private_bytes(
                    serialization.Encoding.PEM,
                    serialization.PrivateFormat.PKCS8,
                    serialization.NoEncryption(),
                ),
            )

    @property
    def shown(self) -> bytes:
        """The certificate as a server shows it."""
        return ssl.PEM_cert_to_DER_cert(self.cert.read_text())


def _replace(file: Path, content: bytes) -> None:
    new = file.with_suffix(".new")
    new.write_bytes(content)
    new.rename(file)
