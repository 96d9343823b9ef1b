"""TLS between a listener's transport and MQTT, with modern defaults and certificates that can be reloaded."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from errno import EINVAL, EISDIR
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unicodedata import category

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509 import load_pem_x509_certificates
from cryptography.x509.oid import NameOID
from OpenSSL import SSL
from twisted.internet.interfaces import IOpenSSLServerConnectionCreator
from twisted.protocols.tls import TLSMemoryBIOFactory
from zope.interface import implementer

from kinmqtt.net.validity import Validities, lines, of_authorities, of_chain
from kinmqtt_spi.errors import AssemblyError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

    from kinmqtt.settings import TlsSettings

VERSIONS: Final = {"1.2": SSL.TLS1_2_VERSION, "1.3": SSL.TLS1_3_VERSION}

CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20:!aNULL:!kRSA:!PSK:!SRP"
"""For TLS 1.2: forward secrecy and authenticated encryption only (RFC 9325 section 4.2). TLS 1.3 has no others."""

_OPTIONS: Final = SSL.OP_NO_COMPRESSION | SSL.OP_CIPHER_SERVER_PREFERENCE | SSL.OP_NO_RENEGOTIATION

_LONGEST_STRING: Final = 65_535
"""Maximum size of an MQTT string in bytes (section 1.5.4)."""

_VERIFY: Final = {
    "none": SSL.VERIFY_NONE,
    "optional": SSL.VERIFY_PEER,
    "required": SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT,
}


@implementer(IOpenSSLServerConnectionCreator)
class TlsContext:
    """A listener's TLS. :meth:`reload` reads its files again; existing connections keep their old certificates."""

    def __init__(self, settings: TlsSettings, place: str, protocol: str) -> None:
        """``place`` is the place of the settings, for errors; ``protocol`` is selected if a client offers it by ALPN.

        Raises :class:`AssemblyError` for unusable files.
        """
        self._settings = settings
        self._place = place
        self._protocol = protocol.encode()
        self._validities: list[tuple[str, Validities]] = []
        self._context = self._load()

    def problems(self, now: float) -> list[str]:
        """Return a line for each certificate in use that is invalid at ``now``, or soon will be.

        These are the broker's certificate, its intermediates and the clients' authorities; ``now`` is in seconds
        since the epoch.
        """
        return lines(self._validities, now)

    def reload(self) -> None:
        """Read the files again. Raises :class:`AssemblyError`, and keeps the old ones, if they are unusable."""
        self._context = self._load()

    def serverConnectionForTLS(self, tlsProtocol: Any) -> SSL.Connection:
        """Return a connection for Twisted; see :class:`IOpenSSLServerConnectionCreator`."""
        return SSL.Connection(self._context, None)

    def wrap(self, factory: Any) -> TLSMemoryBIOFactory:
        """Return a factory whose protocols use TLS."""
        wrapping = TLSMemoryBIOFactory(self, False, factory)
        wrapping.noisy = False
        return wrapping

    def _load(self) -> SSL.Context:
        settings = self._settings
        context = SSL.Context(SSL.TLS_SERVER_METHOD)
        context.set_options(_OPTIONS)
        context.set_min_proto_version(VERSIONS[settings.minimum_version])
        context.set_session_id(b"kinmqtt")
        self._attempt("ciphers", settings.ciphers or CIPHERS, lambda suites: context.set_cipher_list(suites.encode()))
        self._attempt("certificate", settings.certificate, _named(context.use_certificate_chain_file))
        self._attempt("private_key", settings.private_key, lambda path: context.use_privatekey(_key(path)))
        self._attempt("private_key", settings.private_key, lambda _: context.check_privatekey())
        if settings.client_ca is not None:
            self._attempt("client_ca", settings.client_ca, _named(context.load_verify_locations))
            self._attempt("client_ca", settings.client_ca, lambda path: _announce(context, path))
        context.set_verify(_VERIFY[settings.client_certificates])
        context.set_alpn_select_callback(self._choose_protocol)
        validities = [(f"{self._place}.certificate", of_chain(settings.certificate))]
        if settings.client_ca is not None:
            validities.append((f"{self._place}.client_ca", of_authorities(settings.client_ca)))
        self._validities = validities
        return context

    def _attempt(self, key: str, value: Any, use: Any) -> None:
        try:
            if isinstance(value, Path):
                _check_file(value)  # OpenSSL's error for a missing file does not say so.
            use(value)
        except OSError as error:
            # Not relative to the settings file, as many expect.
            relative = not Path(value).is_absolute()
            where = f"; a relative path starts where the broker is started, {Path.cwd()}" if relative else ""
            raise AssemblyError(f"{self._place}.{key}: {value}: {error.strerror}{where}") from error
        except (SSL.Error, ValueError, UnsupportedAlgorithm) as error:
            raise AssemblyError(f"{self._place}.{key}: {str(value)!r} can't be used: {_words(error)}") from error

    def _choose_protocol(self, connection: SSL.Connection, offered: Sequence[bytes]) -> Any:
        return self._protocol if self._protocol in offered else SSL.NO_OVERLAPPING_PROTOCOLS


_FAILURES: Final = {
    "wrong version number": "the data is not TLS, perhaps plain MQTT on a port for TLS",
    "packet length too long": "the data is not TLS, perhaps plain MQTT on a port for TLS",
    "record layer failure": "the data is not TLS, perhaps plain MQTT on a port for TLS",
    "unexpected message": "the data is not TLS, perhaps plain MQTT on a port for TLS",
    "http request": "the data is HTTP without TLS; use wss:// for WebSocket to this port",
    "unsupported protocol": "the client supports no TLS version that this listener accepts (minimum_version)",
    "no shared cipher": "client and listener have no cipher suite in common (ciphers)",
    "peer did not return a certificate": "the client sent no certificate, but this listener requires one",
    "certificate verify failed": "the client's certificate is not from client_ca, or is not valid now",
    "tlsv1 alert unknown ca": "the client does not trust the authority of this listener's certificate",
    "tlsv1 alert decrypt error": "the client could not verify this listener's certificate",
    "ssl/tls alert bad certificate": "the client does not accept this listener's certificate",
    "ssl/tls alert certificate expired": "the client says that this listener's certificate has expired",
    "ssl/tls alert certificate unknown": "the client does not accept this listener's certificate",
    "sslv3 alert bad certificate": "the client does not accept this listener's certificate",
    "sslv3 alert certificate expired": "the client says that this listener's certificate has expired",
    "sslv3 alert certificate unknown": "the client does not accept this listener's certificate",
}
"""Descriptions of OpenSSL's reasons for a failed handshake, for versions 1.1.1 and 3."""


def handshake_failure(error: BaseException | None) -> str:
    """Describe why a TLS handshake failed, with OpenSSL's reasons; for other errors return their message."""
    details = error.args[0] if isinstance(error, SSL.Error) and error.args else None
    if not isinstance(details, list) or not details:
        return str(error) or type(error).__name__
    reasons = [str(detail[-1]) for detail in details]
    words = next((_FAILURES[reason] for reason in reasons if reason in _FAILURES), "TLS failed")
    return f"{words} ({', '.join(reasons)})"


def client_certificate(transport: Any) -> Certificate | None:
    """Return the client's certificate, which TLS has verified, or ``None``.

    Raises ``ValueError`` for a certificate that OpenSSL accepts but that can't be parsed here.
    """
    certificate = transport.getPeerCertificate()
    try:
        return None if certificate is None else certificate.to_cryptography()
    except ValueError:
        raise ValueError("can't be read") from None


def subject(certificate: Certificate) -> str:
    """Return a certificate's subject in the notation of RFC 4514; raise ``ValueError`` if it is not text."""
    try:
        return certificate.subject.rfc4514_string()
    except ValueError:
        raise ValueError("has a subject that is not text") from None


def user_name(certificate: Certificate, source: str) -> str:
    """Return the user name in a certificate; ``source`` is the setting ``username_from``.

    Raises ``ValueError``, whose text continues "the client's certificate", if there is none, more than one, or an
    invalid one. CONNECT's user name is never used instead.
    """
    whole = subject(certificate)
    name = whole if source == "subject" else _common_name(certificate)
    what = source.replace("_", " ")
    if not name.strip():
        raise ValueError(f"has an empty {what}, which username_from needs")
    if any(_is_no_sign_of_a_name(sign) for sign in name):
        raise ValueError(f"has control characters in its {what}, which a user name must not contain")
    if len(name.encode()) > _LONGEST_STRING:
        raise ValueError(f"has a {what} that is longer than a user name may be")
    return name


def _common_name(certificate: Certificate) -> str:
    """Return the subject's only common name."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if not names:
        raise ValueError("has no common name, which username_from needs")
    if len(names) > 1:
        # Programs differ in which of several they use, so one certificate could stand for two names.
        raise ValueError('has several common names; username_from = "subject" takes the whole subject')
    value = names[0].value
    if not isinstance(value, str):
        raise ValueError("has a common name that is not text")
    return value


def _is_no_sign_of_a_name(sign: str) -> bool:
    """Tell whether MQTT strings should not contain it (section 1.5.4): control, surrogate, non-character."""
    number = ord(sign)
    return category(sign) in ("Cc", "Cs") or 0xFDD0 <= number <= 0xFDEF or number & 0xFFFE == 0xFFFE


def _named(use: Any) -> Any:
    return lambda path: use(str(path))


def _check_file(path: Path) -> None:
    """Raise ``OSError`` for a file that is not readable or would block, such as a FIFO."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        mode = os.fstat(descriptor).st_mode
    finally:
        os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(EISDIR, os.strerror(EISDIR))
    if not stat.S_ISREG(mode):
        raise OSError(EINVAL, "it is not a regular file")


def _announce(context: SSL.Context, path: Path) -> None:
    """Tell clients the accepted authorities, so that they can select a certificate."""
    for authority in load_pem_x509_certificates(path.read_bytes()):
        context.add_client_ca(authority)


def _key(path: Path) -> Any:
    """Load a private key. OpenSSL itself would prompt for the passphrase of an encrypted one."""
    try:
        return load_pem_private_key(path.read_bytes(), password=None)
    except TypeError:
        raise ValueError("it is encrypted; store it without a passphrase, readable only by the broker") from None


def _words(error: Exception) -> str:
    """Return OpenSSL's description of an error without the location in its source."""
    if isinstance(error, SSL.Error) and error.args and error.args[0]:
        return "; ".join(str(reason[-1]) for reason in error.args[0])
    return str(error) or type(error).__name__
