"""Certificates between routers and replicas: which are trusted, and when they are renewed."""

import hashlib
from base64 import b64encode
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509 import verification
from cryptography.x509.oid import ExtendedKeyUsageOID
from penstock_operator.manifests.manifest import Manifest
from penstock_operator.tls.certificates import CLOCK_SKEW, CertificateAndKey, MakeKey, is_valid_pair
from penstock_operator.tls.credentials import (
    AUTHORITY_LIFE,
    AUTHORITY_RENEW_BEFORE,
    CERTIFICATE_LIFE,
    CERTIFICATE_RENEW_BEFORE,
    TRUSTED_AFTER,
    Credentials,
    StoredCredentials,
    read_credentials,
    renew_credentials,
)

NAME = "llama-replicas.apps.svc"
START = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.fixture
def make_key() -> MakeKey:
    return numbered_keys()


def numbered_keys() -> MakeKey:
    """Return a source of keys that are the same in every run."""
    numbers: Iterator[int] = iter(range(1, 10_000))

    def key() -> ec.EllipticCurvePrivateKey:
        seed = hashlib.sha256(str(next(numbers)).encode()).digest()
        return ec.derive_private_key(int.from_bytes(seed) >> 1, ec.SECP256R1())

    return key


def trusts(
    authorities: tuple[CertificateAndKey, ...], shown: CertificateAndKey, now: datetime, *, name: str | None
) -> bool:
    """Return whether a peer with these authorities accepts a certificate. name: None for a client's."""
    roots = [x509.load_pem_x509_certificate(pair.certificate) for pair in authorities]
    builder = verification.PolicyBuilder().store(verification.Store(roots)).time(now)
    certificate = x509.load_pem_x509_certificate(shown.certificate)
    try:
        if name is None:
            builder.build_client_verifier().verify(certificate, [])
        else:
            builder.build_server_verifier(x509.DNSName(name)).verify(certificate, [])
    except verification.VerificationError:
        return False
    return True


def accept_each_other(one: Credentials, other: Credentials, now: datetime) -> bool:
    """Return whether a router with the one and a replica with the other accept each other."""
    server = trusts(one.authorities, other.server, now, name=NAME)
    return server and trusts(other.authorities, one.client, now, name=None)


def test_routers_and_replicas_trust_each_other(make_key: MakeKey) -> None:
    held = renew_credentials(StoredCredentials(), NAME, START, make_key)
    assert accept_each_other(held, held, START)
    assert trusts(held.authorities, held.picker, START, name=f"picker.{NAME}")
    assert trusts(held.authorities, held.engine, START, name=f"engine.{NAME}")
    assert accept_each_other(held, held, START + CERTIFICATE_LIFE - DAY)
    assert not accept_each_other(held, held, START + CERTIFICATE_LIFE + DAY)


def test_no_other_certificate_is_trusted(make_key: MakeKey) -> None:
    ours, others = (renew_credentials(StoredCredentials(), NAME, START, make_key) for _ in range(2))
    assert not trusts(ours.authorities, others.server, START, name=NAME)
    assert not trusts(ours.authorities, others.client, START, name=None)
    assert not trusts(ours.authorities, ours.server, START, name="llama-replicas.other.svc")


def test_a_replicas_certificate_is_server_only_and_a_routers_client_only(make_key: MakeKey) -> None:
    held = renew_credentials(StoredCredentials(), NAME, START, make_key)
    assert not trusts(held.authorities, held.server, START, name=None)
    assert not trusts(held.authorities, held.picker, START, name=None)
    assert not trusts(held.authorities, held.picker, START, name=NAME)
    assert not trusts(held.authorities, held.engine, START, name=None)
    assert not trusts(held.authorities, held.engine, START, name=NAME)
    assert not trusts(held.authorities, held.client, START, name=f"router.{NAME}")


def parsed(pair: CertificateAndKey) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pair.certificate)


def extensions(certificate: x509.Certificate) -> dict[str, tuple[bool, Any]]:
    """Return the extensions by name: whether each is critical, and its value."""
    return {type(each.value).__name__: (each.critical, each.value) for each in certificate.extensions}


def test_an_authority_may_sign_only_its_pools_names(make_key: MakeKey) -> None:
    (pair,) = renew_credentials(StoredCredentials(), NAME, START, make_key).authorities
    certificate = parsed(pair)
    found = extensions(certificate)
    assert found.pop("SubjectKeyIdentifier")[0] is False
    assert found == {
        "BasicConstraints": (True, x509.BasicConstraints(ca=True, path_length=0)),
        "KeyUsage": (
            True,
            x509.KeyUsage(
                digital_signature=True,
                key_cert_sign=True,
                crl_sign=True,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                encipher_only=False,
                decipher_only=False,
            ),
        ),
        "NameConstraints": (True, x509.NameConstraints([x509.DNSName(NAME)], None)),
    }
    assert certificate.subject == certificate.issuer
    assert certificate.subject.rfc4514_string() == f"CN=penstock {certificate.serial_number:x}"
    assert certificate.not_valid_before_utc == START - CLOCK_SKEW
    assert certificate.not_valid_after_utc == START + AUTHORITY_LIFE


def test_a_certificate_is_for_one_name_and_one_use(make_key: MakeKey) -> None:
    held = renew_credentials(StoredCredentials(), NAME, START, make_key)
    authority = parsed(held.authorities[0])
    for pair, name, use in (
        (held.server, NAME, ExtendedKeyUsageOID.SERVER_AUTH),
        (held.client, f"router.{NAME}", ExtendedKeyUsageOID.CLIENT_AUTH),
        (held.picker, f"picker.{NAME}", ExtendedKeyUsageOID.SERVER_AUTH),
        (held.engine, f"engine.{NAME}", ExtendedKeyUsageOID.SERVER_AUTH),
    ):
        certificate = parsed(pair)
        found = extensions(certificate)
        critical, identifier = found.pop("AuthorityKeyIdentifier")
        assert identifier.key_identifier == extensions(authority)["SubjectKeyIdentifier"][1].digest
        assert not (critical or found.pop("SubjectKeyIdentifier")[0])
        assert found == {
            "BasicConstraints": (True, x509.BasicConstraints(ca=False, path_length=None)),
            "SubjectAlternativeName": (False, x509.SubjectAlternativeName([x509.DNSName(name)])),
            "ExtendedKeyUsage": (False, x509.ExtendedKeyUsage([use])),
        }
        assert certificate.issuer == authority.subject
        assert certificate.not_valid_before_utc == START - CLOCK_SKEW
        assert certificate.not_valid_after_utc == START + CERTIFICATE_LIFE
    pairs = (*held.authorities, held.server, held.client, held.picker, held.engine)
    assert len({parsed(pair).serial_number for pair in pairs}) == 5


def test_the_same_keys_make_the_same_certificates() -> None:
    made = [renew_credentials(StoredCredentials(), NAME, START, numbered_keys()) for _ in range(2)]
    assert made[0] == made[1]


def test_a_key_of_another_kind_is_not_accepted(make_key: MakeKey) -> None:
    held = renew_credentials(StoredCredentials(), NAME, START, make_key)
    other = ed25519.Ed25519PrivateKey.generate()
    key = other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    assert is_valid_pair(held.server)
    assert not is_valid_pair(CertificateAndKey(held.server.certificate, key))


def test_renewals_are_due_exactly_at_their_time(make_key: MakeKey) -> None:
    second = timedelta(seconds=1)
    held = renew_credentials(StoredCredentials(), NAME, START, make_key)
    due = START + CERTIFICATE_LIFE - CERTIFICATE_RENEW_BEFORE
    assert renew_credentials(held, NAME, due - second, make_key).server == held.server
    assert renew_credentials(held, NAME, due, make_key).server != held.server
    successor = START + AUTHORITY_LIFE - AUTHORITY_RENEW_BEFORE
    assert len(renew_credentials(held, NAME, successor - second, make_key).authorities) == 1
    both = renew_credentials(held, NAME, successor, make_key)
    assert len(both.authorities) == 2
    old, new = (extensions(parsed(each))["SubjectKeyIdentifier"][1].digest for each in both.authorities)

    def signer(now: datetime) -> bytes:
        made = renew_credentials(StoredCredentials(both.authorities), NAME, now, make_key).server
        digest: bytes = extensions(parsed(made))["AuthorityKeyIdentifier"][1].key_identifier
        return digest

    assert signer(successor + TRUSTED_AFTER - second) == old
    assert signer(successor + TRUSTED_AFTER) == new
    expired = START + AUTHORITY_LIFE
    assert renew_credentials(both, NAME, expired - second, make_key).authorities == both.authorities
    assert renew_credentials(both, NAME, expired, make_key).authorities == both.authorities[1:]


def test_valid_credentials_are_kept_unchanged(make_key: MakeKey) -> None:
    held = renew_credentials(StoredCredentials(), NAME, START, make_key)
    due = CERTIFICATE_LIFE - CERTIFICATE_RENEW_BEFORE
    assert renew_credentials(held, NAME, START + due - DAY, make_key) == held


def test_certificates_are_renewed_in_time_and_by_the_same_authority(make_key: MakeKey) -> None:
    held = renew_credentials(StoredCredentials(), NAME, START, make_key)
    later = START + CERTIFICATE_LIFE - CERTIFICATE_RENEW_BEFORE + DAY
    new = renew_credentials(held, NAME, later, make_key)
    assert new.authorities == held.authorities
    assert new.server != held.server
    assert new.client != held.client
    assert accept_each_other(new, held, later)
    assert accept_each_other(held, new, later)


def test_over_decades_old_and_new_pods_always_trust_each_other(make_key: MakeKey) -> None:
    """Credentials are renewed weekly, and pods read them up to a week later."""
    now, before = START, renew_credentials(StoredCredentials(), NAME, START, make_key)
    authorities = set(before.authorities)
    while now < START + 2 * AUTHORITY_LIFE:
        now += 7 * DAY
        held = renew_credentials(before, NAME, now, make_key)
        if held != before:
            assert accept_each_other(held, before, now), now
            assert accept_each_other(before, held, now), now
        authorities |= set(held.authorities)
        assert len(held.authorities) <= 2
        before = held
    assert len(authorities) == 3


def test_a_certificate_for_a_former_service_name_is_replaced(make_key: MakeKey) -> None:
    held = renew_credentials(StoredCredentials(), "llama-replicas.old.svc", START, make_key)
    new = renew_credentials(held, NAME, START + DAY, make_key)
    assert new.server != held.server


def test_a_certificate_of_a_missing_authority_is_replaced(make_key: MakeKey) -> None:
    one, other = (renew_credentials(StoredCredentials(), NAME, START, make_key) for _ in range(2))
    new = renew_credentials(
        Credentials(one.authorities, other.server, one.client, one.picker, one.engine), NAME, START, make_key
    )
    assert (new.client, new.authorities) == (one.client, one.authorities)
    assert accept_each_other(new, new, START)


def test_expired_credentials_are_created_again(make_key: MakeKey) -> None:
    held = renew_credentials(StoredCredentials(), NAME, START, make_key)
    later = START + AUTHORITY_LIFE + DAY
    new = renew_credentials(held, NAME, later, make_key)
    assert len(new.authorities) == 1
    assert accept_each_other(new, new, later)


Want = Callable[..., dict[str, Manifest]]


def test_published_credentials_can_be_read_back(want: Want, credentials: Credentials) -> None:
    objects = want()
    held = read_credentials(objects["Secret/llama-ca"], objects["Secret/llama-tls"])
    assert held == stored(credentials)


def stored(given: Credentials) -> StoredCredentials:
    return StoredCredentials(given.authorities, given.server, given.client, given.picker, given.engine)


def test_two_authorities_read_back_in_their_order(make_key: MakeKey) -> None:
    old, new = (renew_credentials(StoredCredentials(), NAME, START, make_key) for _ in range(2))
    both = (*old.authorities, *new.authorities)
    signing = {"ca.crt": b"".join(p.certificate for p in both), "ca.key": b"".join(p.key for p in both)}
    assert read_credentials(secret(signing), None) == StoredCredentials(both)


def secret(entries: dict[str, bytes]) -> Manifest:
    return {"data": {entry: b64encode(value).decode() for entry, value in entries.items()}}


def _without(entry: str) -> Callable[[Any], None]:
    return lambda data: data.pop(entry)


def _with_value(entry: str, value: str) -> Callable[[Any], None]:
    return lambda data: data.update({entry: value})


def _mixed(data: Any) -> None:
    data["tls.key"] = data["client.key"]


@pytest.mark.parametrize(
    ("name", "spoil", "lost"),
    [
        ("ca", _without("ca.key"), "authorities"),
        ("ca", _with_value("ca.key", ""), "authorities"),
        ("tls", _without("client.key"), "client"),
        ("tls", _without("engine.crt"), "engine"),
        ("tls", _with_value("tls.crt", b64encode(b"not a certificate").decode()), "server"),
        ("tls", _with_value("tls.key", "?"), "server"),
        ("tls", _mixed, "server"),
    ],
    ids=["no key", "no authority", "no client", "no engine", "no certificate", "no base64", "another's key"],
)
def test_only_the_damaged_entry_is_lost(
    want: Want, credentials: Credentials, name: str, spoil: Callable[[Any], None], lost: str
) -> None:
    secrets = {each: deepcopy(want()[f"Secret/llama-{each}"]) for each in ("ca", "tls")}
    spoil(secrets[name]["data"])
    held = read_credentials(secrets["ca"], secrets["tls"])
    assert held == replace(stored(credentials), **{lost: getattr(StoredCredentials(), lost)})


def test_missing_secrets_have_no_credentials() -> None:
    assert read_credentials(None, None) == StoredCredentials()


def test_lost_certificates_are_signed_again_by_the_remaining_authority(make_key: MakeKey) -> None:
    held = renew_credentials(StoredCredentials(), NAME, START, make_key)
    new = renew_credentials(StoredCredentials(held.authorities), NAME, START + DAY, make_key)
    assert accept_each_other(new, held, START + DAY)
    assert accept_each_other(held, new, START + DAY)


async def test_grpc_accepts_the_credentials_on_both_sides(make_key: MakeKey) -> None:
    """Over a real connection, by the address and not by the name, as routers connect to pods."""
    held = renew_credentials(StoredCredentials(), NAME, datetime.now(UTC), make_key)
    authorities = b"".join(pair.certificate for pair in held.authorities)
    server = grpc.aio.server()
    port = server.add_secure_port(
        "127.0.0.1:0",
        grpc.ssl_server_credentials(
            [(held.server.key, held.server.certificate)], authorities, require_client_auth=True
        ),
    )
    await server.start()
    trusted = grpc.ssl_channel_credentials(authorities, held.client.key, held.client.certificate)
    options = [("grpc.ssl_target_name_override", NAME)]
    try:
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", trusted, options=options) as channel:
            await channel.channel_ready()
    finally:
        await server.stop(None)
