"""X.509 certificates: self-signed authorities and the certificates that they sign. Elliptic curves, PEM.

Name constraints limit an authority to its pool's name, so a stolen signing key impersonates only that pool,
which access to the stolen Secret permits anyway. Serial numbers are derived from keys, so the same key makes
the same certificate.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.x509.oid import NameOID

MakeKey = Callable[[], EllipticCurvePrivateKey]
"""Returns a new private key. The only source of randomness, so it is an argument."""

CLOCK_SKEW = timedelta(minutes=5)
"""Tolerated clock skew between nodes."""


@dataclass(frozen=True, slots=True)
class CertificateAndKey:
    """A certificate and its key, both PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class Subject:
    """The DNS name of a certificate, and its usage."""

    name: str
    usage: x509.ObjectIdentifier


def authority(server_name: str, now: datetime, life: timedelta, make_key: MakeKey) -> CertificateAndKey:
    """Return a new self-signed authority. Its name has a digest of its key, so it is unique."""
    key = make_key()
    name = _common_name(f"penstock {_serial(key):x}")
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        _builder(key, name, name, now, life)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.NameConstraints([x509.DNSName(server_name)], None), critical=True)
    )
    return _to_pem(builder.sign(key, hashes.SHA256(), ecdsa_deterministic=True), key)


def issue(
    subject: Subject, signer: CertificateAndKey, now: datetime, life: timedelta, make_key: MakeKey
) -> CertificateAndKey:
    """Return a certificate for the subject with a new key."""
    key, signing_key, issuer = make_key(), _load_key(signer), _load_certificate(signer)
    identifier = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    builder = (
        _builder(key, _common_name("penstock"), issuer.subject, now, life)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(subject.name)]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([subject.usage]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False
        )
    )
    return _to_pem(builder.sign(signing_key, hashes.SHA256(), ecdsa_deterministic=True), key)


def _builder(
    key: EllipticCurvePrivateKey, subject: x509.Name, issuer: x509.Name, now: datetime, life: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(_serial(key))
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _serial(key: EllipticCurvePrivateKey) -> int:
    """Return a serial number derived from the key, random like the key. X.509 allows at most 159 bits."""
    public = key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return int.from_bytes(sha256(public).digest()[:19])


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _to_pem(certificate: x509.Certificate, key: EllipticCurvePrivateKey) -> CertificateAndKey:
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return CertificateAndKey(certificate.public_bytes(serialization.Encoding.PEM), private)


def valid_from(pair: CertificateAndKey) -> datetime:
    """Return the start of the certificate's validity."""
    return _load_certificate(pair).not_valid_before_utc + CLOCK_SKEW


def remaining_life(pair: CertificateAndKey, now: datetime) -> timedelta:
    """Return the time until the certificate expires."""
    return _load_certificate(pair).not_valid_after_utc - now


def is_valid_pair(pair: CertificateAndKey) -> bool:
    """Return whether the certificate can be parsed and matches its key."""
    try:
        return _load_certificate(pair).public_key() == _load_key(pair).public_key()
    except ValueError:
        return False


def is_issued_for(pair: CertificateAndKey, subject: Subject) -> bool:
    """Return whether the certificate is for this subject."""
    names = _load_certificate(pair).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return names.get_values_for_type(x509.DNSName) == [subject.name]


def signed_by(pair: CertificateAndKey, signer: CertificateAndKey) -> bool:
    """Return whether a certificate names the signer's key. Signatures are verified by peers, not here."""
    extension = _load_certificate(pair).extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
    of = _load_certificate(signer).extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return extension.key_identifier == of.digest


def _load_certificate(pair: CertificateAndKey) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pair.certificate)


def _load_key(pair: CertificateAndKey) -> EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pair.key, None)
    if not isinstance(key, EllipticCurvePrivateKey):
        raise ValueError("the key is not on an elliptic curve")
    return key
