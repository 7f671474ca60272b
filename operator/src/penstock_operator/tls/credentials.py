"""Keys and certificates by which routers and replicas trust one another.

Each pool has its own authority. It signs one certificate for replicas (a server's, made out to the headless
Service) and one for routers (a client's), and a pod holds only its own key. Nobody outside the pool's
namespace is trusted, and nobody has to install cert-manager.

Certificates live a year and are renewed when a third of it is left; authorities live ten and get a successor
when two are left. Nothing breaks meanwhile, because trust is handed out before it is used: a new authority is
published beside the old one at once, and signs only after `TRUSTED_AFTER`, when every pod has long read it.
An authority that has expired is dropped, and with it went all that it signed.

Nothing here is random but `make_key`, and no clock is read: `now` comes in.
"""

from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography.x509.oid import ExtendedKeyUsageOID

from penstock_operator.manifests.manifest import Manifest
from penstock_operator.tls.certificates import (
    CertificateAndKey,
    MakeKey,
    Subject,
    authority,
    begins,
    is_for,
    is_whole,
    issue,
    left,
    signed_by,
)

CERTIFICATE_LIFE = timedelta(days=365)
CERTIFICATE_RENEWED = CERTIFICATE_LIFE / 3
"""Remaining life of a certificate at which it is renewed."""

AUTHORITY_LIFE = timedelta(days=3650)
AUTHORITY_RENEWED = timedelta(days=730)
"""Left of an authority's life when it gets a successor; longer than anything it signs lives."""

TRUSTED_AFTER = timedelta(days=7)
"""Time for which a new authority is published before it signs."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """All of a pool's keys. authorities: oldest first; more than one while they change over."""

    authorities: tuple[CertificateAndKey, ...]
    server: CertificateAndKey
    client: CertificateAndKey


@dataclass(frozen=True, slots=True)
class StoredCredentials:
    """The stored keys of a pool, without those that are missing or invalid."""

    authorities: tuple[CertificateAndKey, ...] = ()
    server: CertificateAndKey | None = None
    client: CertificateAndKey | None = None


def read_credentials(signing: Manifest | None, published: Manifest | None) -> StoredCredentials:
    """What two Secrets hold, `names.authority_name` and `names.tls_name`, as far as it is of use."""
    own, shown = _entries(signing), _entries(published)
    pairs = zip(_pems(own.get("ca.crt", b"")), _pems(own.get("ca.key", b"")), strict=False)
    return StoredCredentials(
        tuple(pair for pair in (CertificateAndKey(*each) for each in pairs) if is_whole(pair)),
        _whole(shown, "tls"),
        _whole(shown, "client"),
    )


def renewed(
    held: StoredCredentials | Credentials, server_name: str, now: datetime, make_key: MakeKey
) -> Credentials:
    """Credentials good for a while yet: those held where nothing is due, else with what was due made anew.

    now: aware.
    """
    authorities = _authorities(held.authorities, server_name, now, make_key)
    signer = _signer(authorities, now)

    def good_or_new(pair: CertificateAndKey | None, subject: Subject) -> CertificateAndKey:
        if pair is not None and _is_good(pair, subject, authorities, now):
            return pair
        return issue(subject, signer, now, CERTIFICATE_LIFE, make_key)

    server = Subject(server_name, ExtendedKeyUsageOID.SERVER_AUTH)
    client = Subject(f"router.{server_name}", ExtendedKeyUsageOID.CLIENT_AUTH)
    return Credentials(
        authorities,
        good_or_new(held.server, server),
        good_or_new(held.client, client),
    )


def _authorities(
    held: Sequence[CertificateAndKey], server_name: str, now: datetime, make_key: MakeKey
) -> tuple[CertificateAndKey, ...]:
    """Those that have not expired, and a new one where none will last."""
    alive = tuple(pair for pair in held if left(pair, now) > timedelta(0))
    if alive and left(alive[-1], now) > AUTHORITY_RENEWED:
        return alive
    return (*alive, authority(server_name, now, AUTHORITY_LIFE, make_key))


def _signer(authorities: Sequence[CertificateAndKey], now: datetime) -> CertificateAndKey:
    """The newest that everybody trusts by now; where there is only a new one, nobody has trusted another."""
    trusted = [pair for pair in authorities if begins(pair) + TRUSTED_AFTER <= now]
    return trusted[-1] if trusted else authorities[0]


def _is_good(
    pair: CertificateAndKey, subject: Subject, authorities: Sequence[CertificateAndKey], now: datetime
) -> bool:
    """Whether it is this subject's, will last, and is trusted."""
    trusted = any(signed_by(pair, signer) for signer in authorities)
    return trusted and is_for(pair, subject) and left(pair, now) > CERTIFICATE_RENEWED


def _whole(entries: dict[str, bytes], name: str) -> CertificateAndKey | None:
    pair = CertificateAndKey(entries.get(f"{name}.crt", b""), entries.get(f"{name}.key", b""))
    return pair if is_whole(pair) else None


def _entries(secret: Manifest | None) -> dict[str, bytes]:
    held = (secret or {}).get("data") or {}
    return {entry: b64decode(value) for entry, value in held.items()}


def _pems(text: bytes) -> list[bytes]:
    """Return the PEM blocks of a text."""
    end = b"-----END "
    blocks, block = [], b""
    for line in text.splitlines(keepends=True):
        block += line
        if line.startswith(end):
            blocks.append(block)
            block = b""
    return blocks
