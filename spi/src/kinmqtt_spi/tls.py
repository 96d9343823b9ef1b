"""TLS of plugins that are clients of a server: settings, and what the module ssl makes of them."""

from __future__ import annotations

import ssl
from pathlib import Path

from attrs import frozen

from kinmqtt_spi.settings import problem_with_file, setting


@frozen(slots=True)
class ClientTls:
    """How a connection is encrypted, and who the broker is there."""

    ca_file: Path | None = setting(None, help="trusted CA certificates; by default the system's")
    certificate_file: Path | None = setting(None, help="the client certificate")
    key_file: Path | None = setting(None, help="its private key, without a password")
    verify_hostname: bool = setting(True, help="require that the certificate names the server")

    def __attrs_post_init__(self) -> None:
        for name in ("ca_file", "certificate_file", "key_file"):
            path = getattr(self, name)
            problem = None if path is None else problem_with_file(path)
            if problem is not None:
                raise ValueError(f"{name}: {problem}")
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificate_file and key_file need each other")


def client_context(
    ca_file: Path | None = None,
    certificate_file: Path | None = None,
    key_file: Path | None = None,
    *,
    verify_hostname: bool = True,
    alpn: str = "",
) -> ssl.SSLContext:
    """Return what a client encrypts with: TLS 1.2 or newer, and a server that a CA vouches for.

    ``alpn`` is the protocol to ask for (RFC 7301). Raises ``ValueError`` with the setting and its file, also for a
    private key with a password: OpenSSL would ask for it on the terminal.
    """
    try:
        context = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    except (OSError, ValueError) as error:
        raise ValueError(f"ca_file: {ca_file} has no certificates: {error}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = verify_hostname
    if certificate_file is not None:
        try:
            context.load_cert_chain(certificate_file, key_file, password=_no_password)
        except (OSError, ValueError) as error:
            raise ValueError(f"certificate_file, key_file: {certificate_file}, {key_file}: {error}") from None
    if alpn:
        context.set_alpn_protocols([alpn])
    return context


def _no_password() -> str:
    raise ValueError("the private key has a password, which can't be given")
