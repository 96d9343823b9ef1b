"""Certificates of brokers for tests, made anew each time: an authority, and what it signs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kinmqtt_akka_like_cluster.settings import TlsSettings


class Authority:
    """A certificate authority with its folder of files."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        self.file = folder / f"{name}.pem"
        own = self._sign(_name(name), self._key.public_key(), (), days=30, authority=True)
        self.file.write_bytes(own.public_bytes(Encoding.PEM))

    def issue(self, name: str, names: Sequence[str] | None = None, *, days: int = 30) -> tuple[Path, Path]:
        """Return a certificate and its key, as files. ``names`` are its SANs, by default the name alone."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate, private = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        signed = self._sign(_name(name), key.public_key(), (name,) if names is None else names, days=days)
        certificate.write_bytes(signed.public_bytes(Encoding.PEM))
        private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return certificate, private

    def settings(
        self, name: str, names: Sequence[str] | None = None, *, peers: Sequence[str], ca: Path | None = None
    ) -> TlsSettings:
        """Return the settings of a broker with a new certificate."""
        certificate, key = self.issue(name, names)
        return TlsSettings(certificate=certificate, private_key=key, ca=ca or self.file, peers=tuple(peers))

    def _sign(
        self,
        subject: x509.Name,
        public_key: ec.EllipticCurvePublicKey,
        names: Sequence[str],
        *,
        days: int,
        authority: bool = False,
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=40))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        )
        if names:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_general(name) for name in names]), critical=False
            )
        if not authority:
            purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
            builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        return builder.sign(self._key, hashes.SHA256())


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)
