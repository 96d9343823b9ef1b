"""TLS between brokers: version 1.3, a certificate on both sides, and the names that are accepted."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Any, Final

from attrs import field, frozen

from kinmqtt_akka_like_cluster.settings import SECTION, TlsSettings
from kinmqtt_spi.errors import SettingsError
from kinmqtt_spi.settings import read_file

MAX_FILE_BYTES: Final = 1 << 20

_CERTIFICATE: Final = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_PLACE: Final = f"{SECTION}.tls."

_FAILURES: Final = {
    "WRONG_VERSION_NUMBER": "it does not speak TLS: perhaps it has no [plugins.akka_like_cluster.tls]",
    "RECORD_LAYER_FAILURE": "it does not speak TLS: perhaps it has no [plugins.akka_like_cluster.tls]",
    "PACKET_LENGTH_TOO_LONG": "it does not speak TLS: perhaps it has no [plugins.akka_like_cluster.tls]",
    "HTTP_REQUEST": "it sends HTTP, and this is the port for other brokers",
    "UNSUPPORTED_PROTOCOL": "it does not speak TLS 1.3",
    "TLSV1_ALERT_PROTOCOL_VERSION": "it does not speak TLS 1.3",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it has shown no certificate",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it wants a certificate from this broker",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not trust the authority of this broker's certificate",
    "TLSV1_ALERT_DECRYPT_ERROR": "it could not verify this broker's certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it does not accept this broker's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it says that this broker's certificate has expired, or its clock is wrong",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it does not accept this broker's certificate",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "it does not accept this broker's certificate for this use",
}
"""Descriptions of OpenSSL's reasons for a failed handshake. Newer versions say SSL/TLS where older ones say SSLV3."""


def _normal(name: str) -> str:
    try:
        return str(ip_address(name))
    except ValueError:
        return name.lower().rstrip(".")


def _all_normal(names: Iterable[str]) -> frozenset[str]:
    return frozenset(map(_normal, names))


@frozen(slots=True)
class PeerNames:
    """The names of accepted brokers: DNS names, `*.` and a name, or IP addresses; case does not matter."""

    patterns: frozenset[str] = field(converter=_all_normal)

    def accept(self, names: Iterable[str]) -> bool:
        """Tell whether one of a certificate's names is accepted. A ``*`` stands for exactly one label."""
        for name in map(_normal, names):
            first, _, rest = name.partition(".")
            if name in self.patterns or (first and f"*.{rest}" in self.patterns):
                return True
        return False


def names_in(certificate: Any) -> list[str]:
    """Return the DNS names and IP addresses among a certificate's subject alternative names.

    ``certificate`` is what ``ssl.SSLObject.getpeercert`` returns: a table, empty or ``None``.
    """
    names = (certificate or {}).get("subjectAltName", ())
    return [name for sort, name in names if sort in ("DNS", "IP Address")]


@frozen(slots=True)
class Tls:
    """TLS as the files had it when they were read. :func:`load_tls` reads them again, for later connections."""

    server: ssl.SSLContext
    client: ssl.SSLContext
    certificate: bytes
    """This broker's certificate, DER."""
    names: PeerNames


def load_tls(settings: TlsSettings) -> Tls:
    """Read the files. It blocks, as reading files does.

    Raises ``SettingsError`` that names key and file of each that can't be used.
    """
    problems: list[str] = []
    certificates, key, authorities = (
        _read(name, getattr(settings, name), problems) for name in ("certificate", "private_key", "ca")
    )
    own = b""
    if certificates is not None:
        own = _first_certificate(certificates, f"{_PLACE}certificate: {settings.certificate}: ", problems)
    if authorities is not None:
        _first_certificate(authorities, f"{_PLACE}ca: {settings.ca}: ", problems)
    if key is not None:
        problems.extend(f"{_PLACE}private_key: {settings.private_key}: {problem}" for problem in _key_problems(key))
    if problems:
        raise SettingsError(problems)
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for context in (server, client):
        _prepare(context, settings)
    # No tickets: a resumed session would skip the check of the certificate.
    server.num_tickets = 0
    return Tls(server, client, own, PeerNames(settings.peers))


def tls_failure(error: ssl.SSLError) -> str:
    """Describe why TLS failed, with OpenSSL's reason."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {getattr(error, 'verify_message', error)}"
    reason = getattr(error, "reason", None) or ""
    words = _FAILURES.get(reason) or _FAILURES.get(reason.replace("SSL/TLS_", "SSLV3_"))
    if words is None and reason == "CERTIFICATE_VERIFY_FAILED":
        words = "its certificate is not accepted"
    return f"{words or 'TLS failed'} ({reason.replace('_', ' ').lower() or error})"


def _prepare(context: ssl.SSLContext, settings: TlsSettings) -> None:
    # An address is not what a certificate is checked for: the names of all brokers are in ``peers``.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_verify_locations(settings.ca)
    except (ssl.SSLError, OSError) as error:
        raise SettingsError([f"{_PLACE}ca: {settings.ca}: can't be used: {_reason(error)}"]) from None
    try:
        # OpenSSL itself would ask for a passphrase on the terminal.
        context.load_cert_chain(settings.certificate, settings.private_key, password="")
    except (ssl.SSLError, OSError) as error:
        key, certificate = settings.private_key, settings.certificate
        if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
            problem = f"is not the key of the certificate {certificate}"
        else:
            problem = f"can't be used with the certificate {certificate}: {_reason(error)}"
        raise SettingsError([f"{_PLACE}private_key: {key}: {problem}"]) from None


def _key_problems(text: str) -> list[str]:
    if "PRIVATE KEY-----" not in text:
        return ["has no private key in PEM"]
    if "ENCRYPTED" in text:
        return ["is encrypted; store it without a passphrase, readable by the broker only"]
    return []


def _reason(error: ssl.SSLError | OSError) -> str:
    reason = getattr(error, "reason", None)
    return str(reason).replace("_", " ").lower() if reason else error.strerror or str(error)


def _read(key: str, path: Any, problems: list[str]) -> str | None:
    try:
        return read_file(path, max_bytes=MAX_FILE_BYTES).decode(errors="replace")
    except SettingsError as error:
        problems.extend(f"{_PLACE}{key}: {problem}" for problem in error.problems)
        return None


def _first_certificate(text: str, place: str, problems: list[str]) -> bytes:
    """Return the first certificate of a file, DER."""
    match = _CERTIFICATE.search(text)
    if match is None:
        problems.append(f"{place}has no certificate in PEM")
        return b""
    try:
        certificate = ssl.PEM_cert_to_DER_cert(match.group())
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=certificate)
    except (ssl.SSLError, ValueError):
        problems.append(f"{place}its first certificate can't be read")
        return b""
    return certificate
