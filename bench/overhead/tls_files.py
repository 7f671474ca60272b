"""Keys and certificates of a pool, made by the operator's code, in files for its processes."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from penstock_operator.tls.credentials import StoredCredentials, renew_credentials

SERVICE = "bench-replicas.default.svc"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The files of one pool, in a folder."""

    folder: Path

    @property
    def engine(self) -> list[str]:
        """Return the flags of an engine."""
        return [f"--ssl-certfile={self.folder / 'engine.crt'}", f"--ssl-keyfile={self.folder / 'engine.key'}"]

    @property
    def sidecar(self) -> list[str]:
        """Return the flags of a sidecar, for its routers."""
        identity = [f"--tls-cert={self.folder / 'tls.crt'}", f"--tls-key={self.folder / 'tls.key'}"]
        return [*identity, f"--tls-client-ca={self.folder / 'ca.crt'}"]

    @property
    def to_engine(self) -> list[str]:
        """Return the flags of a sidecar whose engine serves TLS."""
        return [f"--engine-tls-ca={self.folder / 'ca.crt'}", f"--engine-tls-server-name=engine.{SERVICE}"]

    @property
    def router(self) -> list[str]:
        """Return the flags of a router."""
        identity = [f"--replica-tls-cert={self.folder / 'client.crt'}"]
        identity += [f"--replica-tls-key={self.folder / 'client.key'}"]
        names = [f"--replica-tls-server-name={SERVICE}", f"--engine-tls-server-name=engine.{SERVICE}"]
        return [*identity, f"--replica-tls-ca={self.folder / 'ca.crt'}", *names]


def write_tls_files(folder: Path) -> TlsFiles:
    """Return a new pool's files, written to a new folder."""
    folder.mkdir()
    made = renew_credentials(
        StoredCredentials(), SERVICE, datetime.now(UTC), lambda: ec.generate_private_key(ec.SECP256R1())
    )
    (folder / "ca.crt").write_bytes(b"".join(authority.certificate for authority in made.authorities))
    for name, pair in {"tls": made.server, "client": made.client, "engine": made.engine}.items():
        (folder / f"{name}.crt").write_bytes(pair.certificate)
        (folder / f"{name}.key").write_bytes(pair.key)
    return TlsFiles(folder)
