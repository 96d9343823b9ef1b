"""TLS: what is spoken, whose certificates are good, what is wrong with files, and a broker that uses it."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from core_harness.brokers import BrokerProcess, running_broker
from core_harness.certificates import Authority
from core_harness.transports import CONNACK, CONNECT
from kinmqtt.net.tls import TlsContext
from kinmqtt.settings import TlsSettings
from kinmqtt_spi.errors import AssemblyError


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Who signs."""
    return Authority(tmp_path)


def _settings(authority: Authority, **more: Any) -> TlsSettings:
    certificate, private_key = authority.issue("localhost")
    return TlsSettings(certificate=certificate, private_key=private_key, **more)


# Files


def test_a_mistake_in_a_file_is_named(authority: Authority, tmp_path: Path) -> None:
    """Place, key and file, and what is wrong with it."""
    certificate, private_key = authority.issue("localhost")
    _, other_key = authority.issue("other")
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("this is no PEM")
    missing = tmp_path / "missing.pem"
    cases = [
        (missing, private_key, "k.toml:1: listeners.a.tls.certificate: ", "No such file"),
        (nonsense, private_key, "k.toml:1: listeners.a.tls.certificate: ", "can't be used"),
        (certificate, nonsense, "k.toml:1: listeners.a.tls.private_key: ", "can't be used"),
        (certificate, other_key, "k.toml:1: listeners.a.tls.private_key: ", "mismatch"),
        (tmp_path, private_key, "k.toml:1: listeners.a.tls.certificate: ", "directory"),
    ]
    for certificate_file, key_file, place, why in cases:
        with pytest.raises(AssemblyError) as caught:
            TlsContext(
                TlsSettings(certificate=certificate_file, private_key=key_file), "k.toml:1: listeners.a.tls", "mqtt"
            )
        assert str(caught.value).startswith(place)
        assert why in str(caught.value)


def test_a_relative_path_says_where_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the broker is started, and not where the settings file is."""
    monkeypatch.chdir(tmp_path)

    with pytest.raises(AssemblyError) as caught:
        TlsContext(TlsSettings(certificate=Path("a.pem"), private_key=Path("a.key")), "tls", "mqtt")

    assert str(caught.value).endswith(
        f"a.pem: No such file or directory; a relative path starts where the broker is started, {tmp_path}"
    )


def test_ciphers_that_do_not_exist(authority: Authority) -> None:
    """They are refused by name."""
    with pytest.raises(AssemblyError, match=r"tls\.ciphers: 'NONSENSE' can't be used"):
        TlsContext(_settings(authority, ciphers="NONSENSE"), "tls", "mqtt")


def test_a_reload_that_fails_changes_nothing(authority: Authority) -> None:
    """The old certificate stays in use."""
    settings = _settings(authority)
    context = TlsContext(settings, "tls", "mqtt")
    before = context._context
    settings.certificate.write_text("broken")

    with pytest.raises(AssemblyError):
        context.reload()

    assert context._context is before


@pytest.mark.parametrize("key", ["certificate", "private_key", "client_ca"])
def test_a_fifo_is_no_certificate(authority: Authority, tmp_path: Path, key: str) -> None:
    """Nobody waits for somebody who writes to it, as a reload would for ever."""
    os.mkfifo(tmp_path / "fifo")
    changes: dict[str, Any] = {key: tmp_path / "fifo"}
    if key == "client_ca":
        changes["client_certificates"] = "required"
    settings = attrs.evolve(_settings(authority), **changes)

    with pytest.raises(AssemblyError, match=rf"^tls\.{key}: {tmp_path}/fifo: it is not a regular file$"):
        TlsContext(settings, "tls", "mqtt")


def test_an_encrypted_key_is_refused(authority: Authority) -> None:
    """Nobody is there to be asked for its passphrase."""
    settings = _settings(authority)
    key = load_pem_private_key(settings.private_key.read_bytes(), None)
    encrypted = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    settings.private_key.write_bytes(encrypted)

    with pytest.raises(AssemblyError, match="it is encrypted; store it without a passphrase"):
        TlsContext(settings, "tls", "mqtt")


# A broker that uses it


CONFIGURATION = """\
[broker]
allow_anonymous = true
event_loop = "{event_loop}"

[listeners.secure]
endpoint = "tcp:{port}:interface=127.0.0.1"
{listener}

[listeners.secure.tls]
certificate = "localhost.pem"
private_key = "localhost.key"
{tls}
"""


@contextmanager
def _broker(folder: Path, tls: str = "", listener: str = "", event_loop: str = "auto") -> Iterator[BrokerProcess]:
    """A broker with one listener that speaks TLS, in the folder of the certificates."""

    def command(port: int, *arguments: str) -> list[str]:
        text = CONFIGURATION.format(port=port, tls=tls, listener=listener, event_loop=event_loop)
        (folder / "kinmqtt.toml").write_text(text, encoding="utf-8")
        return [sys.executable, "-m", "kinmqtt", "run", "-c", "kinmqtt.toml"]

    with running_broker(command=command, cwd=folder) as broker:
        yield broker


def _client(authority: Authority, **more: Any) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.file))
    context.verify_flags |= ssl.VERIFY_X509_STRICT  # As Python's own clients are from 3.13 on.
    for name, value in more.items():
        setattr(context, name, value)
    return context


def _talk(port: int, context: ssl.SSLContext) -> tuple[str | None, str | None, dict[str, Any] | None]:
    """CONNECT and CONNACK; the version, the protocol chosen by ALPN, and the broker's certificate."""
    with socket.create_connection(("127.0.0.1", port), 20) as plain:
        with context.wrap_socket(plain, server_hostname="localhost") as secure:
            secure.sendall(CONNECT)
            assert secure.recv(4) == CONNACK
            return secure.version(), secure.selected_alpn_protocol(), secure.getpeercert()


def _is_closed(peer: socket.socket) -> bool:
    """Wait for the broker to close, in whichever way."""
    try:
        return peer.recv(1) == b""
    except ConnectionResetError:
        return True


def test_modern_versions_only(authority: Authority, tmp_path: Path) -> None:
    """TLS 1.2 and 1.3 are spoken, older ones not; ALPN chooses mqtt where a client offers it."""
    authority.issue("localhost")
    with pytest.deprecated_call():  # Python's word for versions of TLS that ought not to be spoken.
        old = _client(authority, minimum_version=ssl.TLSVersion.TLSv1, maximum_version=ssl.TLSVersion.TLSv1_1)
    old.set_ciphers("ALL:@SECLEVEL=0")
    offering = _client(authority)
    offering.set_alpn_protocols(["h2", "mqtt"])

    with _broker(tmp_path) as broker:
        assert _talk(broker.port, offering)[:2] == ("TLSv1.3", "mqtt")
        assert _talk(broker.port, _client(authority, maximum_version=ssl.TLSVersion.TLSv1_2))[:2] == ("TLSv1.2", None)
        with pytest.raises(ssl.SSLError):
            _talk(broker.port, old)


def test_the_oldest_version_is_a_setting(authority: Authority, tmp_path: Path) -> None:
    """TLS 1.3 only, where that is asked for."""
    authority.issue("localhost")

    with _broker(tmp_path, 'minimum_version = "1.3"') as broker:
        assert _talk(broker.port, _client(authority))[0] == "TLSv1.3"
        with pytest.raises(ssl.SSLError):
            _talk(broker.port, _client(authority, maximum_version=ssl.TLSVersion.TLSv1_2))


def test_forward_secrecy_only(authority: Authority, tmp_path: Path) -> None:
    """A client of TLS 1.2 that can't do it is refused."""
    authority.issue("localhost")
    weak = _client(authority, maximum_version=ssl.TLSVersion.TLSv1_2)
    weak.set_ciphers("AES128-SHA:AES256-SHA:ECDHE-ECDSA-AES128-SHA")

    with _broker(tmp_path) as broker, pytest.raises(ssl.SSLError):
        _talk(broker.port, weak)


REQUIRED = 'client_certificates = "required"\nclient_ca = "authority.pem"\nusername_from = "common_name"'


def test_a_client_shows_who_it_is(authority: Authority, tmp_path: Path) -> None:
    """With a certificate of the right authority it comes in; without one, or of another authority, it does not."""
    authority.issue("localhost")
    known = _client(authority)
    known.load_cert_chain(*authority.issue("sensor-1"))
    unknown = _client(authority)
    unknown.load_cert_chain(*Authority(tmp_path, "stranger").issue("sensor-2"))

    with _broker(tmp_path, REQUIRED, 'authenticators = ["certificate"]') as broker:
        _talk(broker.port, known)
        for refused in (unknown, _client(authority)):
            with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
                _talk(broker.port, refused)
        _talk(broker.port, known)


def test_a_certificate_of_a_private_authority_is_good_enough(authority: Authority, tmp_path: Path) -> None:
    """One without key identifiers lets a client in, whichever Python the broker runs on."""
    authority.issue("localhost")
    private = Authority(tmp_path, "private", identifiers=False)
    client = _client(authority)
    client.load_cert_chain(*private.issue("sensor-1"))

    with _broker(tmp_path, REQUIRED.replace("authority.pem", "private.pem")) as broker:
        _talk(broker.port, client)


def test_certificates_are_renewed_in_place(authority: Authority, tmp_path: Path) -> None:
    """SIGHUP reads them anew: who connects from then on sees the new one; a broken one is told of and not used."""
    certificate, _ = authority.issue("localhost")

    with _broker(tmp_path) as broker:
        before = _talk(broker.port, _client(authority))[2]
        authority.issue("localhost")
        broker.signal(signal.SIGHUP)
        broker.wait_for_line("as the settings say now")
        after = _talk(broker.port, _client(authority))[2]
        certificate.write_text("broken", encoding="utf-8")
        broker.signal(signal.SIGHUP)
        broker.wait_for_line("the old certificate stays in effect")
        still = _talk(broker.port, _client(authority))[2]

    assert before is not None
    assert after is not None
    assert before["serialNumber"] != after["serialNumber"]
    assert still == after


@pytest.mark.parametrize("event_loop", ["uvloop", "asyncio"])
def test_a_client_that_has_said_goodbye_gives_its_place_back(
    authority: Authority, tmp_path: Path, event_loop: str
) -> None:
    """Though its connection stands until TLS has ended, too; the DISCONNECT is answered by TLS's own end."""
    authority.issue("localhost")
    listener = "limits = { max_connections = 1 }"

    with _broker(tmp_path, listener=listener, event_loop=event_loop) as broker:
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", broker.port), 20) as plain:
                with _client(authority).wrap_socket(plain, server_hostname="localhost") as secure:
                    secure.sendall(CONNECT)
                    assert secure.recv(4) == CONNACK
                    secure.sendall(b"\xe0\x00")
                    assert secure.recv(1) == b""
                    _talk(broker.port, _client(authority))


def test_a_handshake_that_does_not_come_is_not_waited_for(authority: Authority, tmp_path: Path) -> None:
    """The time limit for CONNECT holds for the handshake too; plain MQTT gets no answer in MQTT."""
    authority.issue("localhost")

    with _broker(tmp_path, listener="limits = { connect_time_limit_s = 0.5 }") as broker:
        with socket.create_connection(("127.0.0.1", broker.port), 20) as silent:
            assert _is_closed(silent)
        with socket.create_connection(("127.0.0.1", broker.port), 20) as plain:
            plain.sendall(CONNECT)
            assert CONNACK not in plain.recv(100)
        broker.wait_for_line("client was identified: the data is not TLS, perhaps plain MQTT on a port for TLS")


def test_a_handshake_that_fails_is_told_in_words(authority: Authority, tmp_path: Path) -> None:
    """The log says what a client did wrong that speaks HTTP, or an older TLS, or trusts another authority."""
    authority.issue("localhost")

    with _broker(tmp_path, tls='minimum_version = "1.3"') as broker:
        with socket.create_connection(("127.0.0.1", broker.port), 20) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert _is_closed(plain)
        for context in (_client(authority, maximum_version=ssl.TLSVersion.TLSv1_2), ssl.create_default_context()):
            with socket.create_connection(("127.0.0.1", broker.port), 20) as plain:
                with pytest.raises(ssl.SSLError):
                    context.wrap_socket(plain, server_hostname="localhost")

        broker.wait_for_line("the data is HTTP without TLS; use wss:// for WebSocket to this port")
        broker.wait_for_line("the client supports no TLS version that this listener accepts")
        broker.wait_for_line("the client does not trust the authority of this listener's certificate")
