"""TLS between a listener's transport and MQTT: modern by default, with certificates that are renewed in place."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from errno import EINVAL, EISDIR
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

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

    from kinmqtt.broker.settings import TlsSettings

VERSIONS: Final = {"1.2": SSL.TLS1_2_VERSION, "1.3": SSL.TLS1_3_VERSION}

CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20:!aNULL:!kRSA:!PSK:!SRP"
"""For TLS 1.2: forward secrecy and authenticated encryption only (RFC 9325 section 4.2). TLS 1.3 has no others."""

_OPTIONS: Final = SSL.OP_NO_COMPRESSION | SSL.OP_CIPHER_SERVER_PREFERENCE | SSL.OP_NO_RENEGOTIATION

_VERIFY: Final = {
    "none": SSL.VERIFY_NONE,
    "optional": SSL.VERIFY_PEER,
    "required": SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT,
}


@implementer(IOpenSSLServerConnectionCreator)
class TlsContext:
    """A listener's TLS. :meth:`reload` reads its files anew; connections that stand keep what they have."""

    def __init__(self, settings: TlsSettings, place: str, protocol: str) -> None:
        """``place`` says where the settings stand; ``protocol`` is chosen where a client offers it by ALPN.

        Raises :class:`AssemblyError` for files that can't be used.
        """
        self._settings = settings
        self._place = place
        self._protocol = protocol.encode()
        self._validities: list[tuple[str, Validities]] = []
        self._context = self._load()

    def problems(self, now: float) -> list[str]:
        """A line for each certificate in use that is not valid at ``now``, or soon will not be.

        The broker's own, those between it and the root, and the authorities of clients; ``now`` is in seconds since
        the epoch.
        """
        return lines(self._validities, now)

    def reload(self) -> None:
        """Read the files again; raises :class:`AssemblyError`, and goes on with the old ones, if they are no good."""
        self._context = self._load()

    def serverConnectionForTLS(self, tlsProtocol: Any) -> SSL.Connection:
        """A connection of Twisted's; see :class:`IOpenSSLServerConnectionCreator`."""
        return SSL.Connection(self._context, None)

    def wrap(self, factory: Any) -> TLSMemoryBIOFactory:
        """A factory whose protocols speak through TLS."""
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
                _check_file(value)  # OpenSSL's own words for a file that is not there say nothing.
            use(value)
        except OSError as error:
            # Not from the settings file, as many expect.
            relative = not Path(value).is_absolute()
            where = f"; a relative path starts where the broker is started, {Path.cwd()}" if relative else ""
            raise AssemblyError(f"{self._place}.{key}: {value}: {error.strerror}{where}") from error
        except (SSL.Error, ValueError, UnsupportedAlgorithm) as error:
            raise AssemblyError(f"{self._place}.{key}: {str(value)!r} can't be used: {_words(error)}") from error

    def _choose_protocol(self, connection: SSL.Connection, offered: Sequence[bytes]) -> Any:
        return self._protocol if self._protocol in offered else SSL.NO_OVERLAPPING_PROTOCOLS


def client_certificate(transport: Any) -> Certificate | None:
    """The certificate that a client showed, if there is one; TLS has verified it by then."""
    certificate = transport.getPeerCertificate()
    return None if certificate is None else certificate.to_cryptography()


def subject(certificate: Certificate) -> str:
    """Whom it was issued to, as RFC 4514 writes it."""
    return certificate.subject.rfc4514_string()


def common_name(certificate: Certificate) -> str | None:
    """The common name of whom it was issued to."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if names else None


def _named(use: Any) -> Any:
    return lambda path: use(str(path))


def _check_file(path: Path) -> None:
    """Raise ``OSError`` for what can't be read, and for what would be waited for, as a FIFO."""
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
    """Tell clients whose certificates are good, so that they know which of theirs to show."""
    for authority in load_pem_x509_certificates(path.read_bytes()):
        context.add_client_ca(authority)


def _key(path: Path) -> Any:
    """A private key; OpenSSL itself would ask at the terminal for the passphrase of an encrypted one."""
    try:
        return load_pem_private_key(path.read_bytes(), password=None)
    except TypeError:
        raise ValueError("it is encrypted; write it without a passphrase, readable by the broker alone") from None


def _words(error: Exception) -> str:
    """What OpenSSL says of an error, without where in its source it did so."""
    if isinstance(error, SSL.Error) and error.args and error.args[0]:
        return "; ".join(str(reason[-1]) for reason in error.args[0])
    return str(error) or type(error).__name__
