"""Certificates for tests, made anew each time: an authority, and what it signs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


def _name(common_name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "kinmqtt tests"),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


VALID = (timedelta(minutes=-5), timedelta(days=90))
"""From when until when a certificate is valid, from now."""


class Authority:
    """A certificate authority with its folder of files.

    What it signs is as RFC 5280 wants it, which Python 3.13 demands of servers (``VERIFY_X509_STRICT``). Without
    ``identifiers`` it leaves out those of keys (sections 4.2.1.1 and 4.2.1.2), as many private authorities do.
    """

    def __init__(
        self,
        folder: Path,
        name: str = "authority",
        valid: tuple[timedelta, timedelta] = VALID,
        *,
        identifiers: bool = True,
    ) -> None:
        """``valid`` says from when until when its own certificate is."""
        self._folder = folder
        self._identifiers = identifiers
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        self._certificate = self._sign(name, self._key.public_key(), valid, authority=True)
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(self._certificate.public_bytes(Encoding.PEM))

    def issue(
        self,
        common_name: str,
        file: str | None = None,
        valid: tuple[timedelta, timedelta] = VALID,
        *,
        subject: x509.Name | None = None,
    ) -> tuple[Path, Path]:
        """A certificate and its key, as files; ``subject`` takes the place of the usual one with a common name."""
        key = ec.generate_private_key(ec.SECP256R1())
        stem = file or common_name
        certificate = self._folder / f"{stem}.pem"
        private = self._folder / f"{stem}.key"
        signed = self._sign(common_name, key.public_key(), valid, subject=subject)
        certificate.write_bytes(signed.public_bytes(Encoding.PEM))
        private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return certificate, private

    def _sign(
        self,
        common_name: str,
        public_key: ec.EllipticCurvePublicKey,
        valid: tuple[timedelta, timedelta],
        *,
        authority: bool = False,
        subject: x509.Name | None = None,
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(common_name) if subject is None else subject)
            .issuer_name(self._name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + valid[0])
            .not_valid_after(now + valid[1])
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(_use(signs_certificates=authority), critical=True)
        )
        if self._identifiers:
            own = x509.SubjectKeyIdentifier.from_public_key(public_key)
            signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
            builder = builder.add_extension(own, critical=False).add_extension(signer, critical=False)
        if not authority:
            names = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
            purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
            builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        return builder.sign(self._key, hashes.SHA256())


def _use(*, signs_certificates: bool) -> x509.KeyUsage:
    """What a key is for: an authority's signs certificates, another's what is said in a handshake."""
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
