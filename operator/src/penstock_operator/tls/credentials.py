"""Keys and certificates for mutual TLS between a pool's routers and replicas, and for TLS of engines.

Each pool has its own authority. It signs one server certificate for replicas (for the name of their headless
Service), one for engines and one for pickers (`engine.` and `picker.` before that name) and one client
certificate for routers; a container has only its own key. Nothing outside the pool's namespace is trusted,
and cert-manager is not needed.

Certificates are valid for a year and renewed when a third of it is left; authorities for ten years, with a
successor when two are left. Rotation causes no failures, because trust comes before use: a new authority is
published beside the old one immediately, and signs only after `TRUSTED_AFTER`, when every pod has read it.
An expired authority is dropped; all its certificates have expired earlier.

Only `make_key` is random, and no clock is read: `now` is an argument.
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
    is_issued_for,
    is_valid_pair,
    issue,
    remaining_life,
    signed_by,
    valid_from,
)

CERTIFICATE_LIFE = timedelta(days=365)
"""Validity of a certificate."""
CERTIFICATE_RENEW_BEFORE = CERTIFICATE_LIFE / 3
"""Remaining life of a certificate at which it is renewed."""

AUTHORITY_LIFE = timedelta(days=3650)
"""Validity of an authority."""
AUTHORITY_RENEW_BEFORE = timedelta(days=730)
"""Remaining life of an authority at which it gets a successor; longer than the life of its certificates."""

TRUSTED_AFTER = timedelta(days=7)
"""Time for which a new authority is published before it signs."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """All keys of a pool. authorities: oldest first; more than one during a rotation."""

    authorities: tuple[CertificateAndKey, ...]
    server: CertificateAndKey
    client: CertificateAndKey
    picker: CertificateAndKey
    engine: CertificateAndKey


@dataclass(frozen=True, slots=True)
class StoredCredentials:
    """The stored keys of a pool, without those that are missing or invalid."""

    authorities: tuple[CertificateAndKey, ...] = ()
    server: CertificateAndKey | None = None
    client: CertificateAndKey | None = None
    picker: CertificateAndKey | None = None
    engine: CertificateAndKey | None = None


def read_credentials(signing: Manifest | None, published: Manifest | None) -> StoredCredentials:
    """Return the valid part of two Secrets, `names.authority_name` and `names.tls_name`."""
    authority_entries, tls_entries = _entries(signing), _entries(published)
    pairs = zip(
        _pem_blocks(authority_entries.get("ca.crt", b"")),
        _pem_blocks(authority_entries.get("ca.key", b"")),
        strict=False,
    )
    return StoredCredentials(
        tuple(pair for pair in (CertificateAndKey(*each) for each in pairs) if is_valid_pair(pair)),
        _valid_pair(tls_entries, "tls"),
        _valid_pair(tls_entries, "client"),
        _valid_pair(tls_entries, "picker"),
        _valid_pair(tls_entries, "engine"),
    )


def renew_credentials(
    stored: StoredCredentials | Credentials, server_name: str, now: datetime, make_key: MakeKey
) -> Credentials:
    """Return credentials that remain valid for a while: the stored ones, with those due for renewal replaced.

    now: a time with a time zone.
    """
    authorities = _authorities(stored.authorities, server_name, now, make_key)
    signer = _signer(authorities, now)

    def keep_or_issue(pair: CertificateAndKey | None, subject: Subject) -> CertificateAndKey:
        if pair is not None and _is_current(pair, subject, authorities, now):
            return pair
        return issue(subject, signer, now, CERTIFICATE_LIFE, make_key)

    server = Subject(server_name, ExtendedKeyUsageOID.SERVER_AUTH)
    client = Subject(f"router.{server_name}", ExtendedKeyUsageOID.CLIENT_AUTH)
    picker = Subject(f"picker.{server_name}", ExtendedKeyUsageOID.SERVER_AUTH)
    engine = Subject(f"engine.{server_name}", ExtendedKeyUsageOID.SERVER_AUTH)
    return Credentials(
        authorities,
        keep_or_issue(stored.server, server),
        keep_or_issue(stored.client, client),
        keep_or_issue(stored.picker, picker),
        keep_or_issue(stored.engine, engine),
    )


def _authorities(
    stored: Sequence[CertificateAndKey], server_name: str, now: datetime, make_key: MakeKey
) -> tuple[CertificateAndKey, ...]:
    """Return the authorities that have not expired, and a new one if the newest is due for a successor."""
    unexpired = tuple(pair for pair in stored if remaining_life(pair, now) > timedelta(0))
    if unexpired and remaining_life(unexpired[-1], now) > AUTHORITY_RENEW_BEFORE:
        return unexpired
    return (*unexpired, authority(server_name, now, AUTHORITY_LIFE, make_key))


def _signer(authorities: Sequence[CertificateAndKey], now: datetime) -> CertificateAndKey:
    """Return the newest authority that all pods trust by now; the oldest if all are new."""
    trusted = [pair for pair in authorities if valid_from(pair) + TRUSTED_AFTER <= now]
    return trusted[-1] if trusted else authorities[0]


def _is_current(
    pair: CertificateAndKey, subject: Subject, authorities: Sequence[CertificateAndKey], now: datetime
) -> bool:
    """Return whether a certificate is for this subject, is not due for renewal, and is trusted."""
    trusted = any(signed_by(pair, signer) for signer in authorities)
    return trusted and is_issued_for(pair, subject) and remaining_life(pair, now) > CERTIFICATE_RENEW_BEFORE


def _valid_pair(entries: dict[str, bytes], name: str) -> CertificateAndKey | None:
    pair = CertificateAndKey(entries.get(f"{name}.crt", b""), entries.get(f"{name}.key", b""))
    return pair if is_valid_pair(pair) else None


def _entries(secret: Manifest | None) -> dict[str, bytes]:
    stored = (secret or {}).get("data") or {}
    return {entry: b64decode(value) for entry, value in stored.items()}


def _pem_blocks(text: bytes) -> list[bytes]:
    """Return the PEM blocks of a text."""
    end = b"-----END "
    blocks, block = [], b""
    for line in text.splitlines(keepends=True):
        block += line
        if line.startswith(end):
            blocks.append(block)
            block = b""
    return blocks
