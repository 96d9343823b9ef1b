"""User names from certificates in a whole broker, beside access control lists and the other authenticators."""

from __future__ import annotations

import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography import x509

from core_harness.brokers import BrokerProcess, running_broker
from core_harness.certificates import Authority
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import V5, V311, Connect


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Who signs."""
    return Authority(tmp_path)


CONFIGURATION = """\
[broker]
data = "memory"

[listeners.secure]
endpoint = "tcp:{port}:interface=127.0.0.1"
authenticators = {authenticators}

[listeners.secure.tls]
certificate = "localhost.pem"
private_key = "localhost.key"
client_certificates = "{asks}"
client_ca = "authority.pem"
username_from = "{source}"

[plugins.auth_file]
password_file = "passwords"
acl_file = "acl"
"""

ACL = """\
topic read public/#
user admin
topic readwrite #
user sensor-1
topic readwrite sensors/1
"""


@contextmanager
def _broker(
    folder: Path, authenticators: str, asks: str = "required", source: str = "common_name"
) -> Iterator[BrokerProcess]:
    """A broker with one listener that takes user names from certificates."""
    (folder / "passwords").write_text("", encoding="utf-8")
    (folder / "acl").write_text(ACL, encoding="utf-8")

    def command(port: int, *arguments: str) -> list[str]:
        text = CONFIGURATION.format(port=port, authenticators=authenticators, asks=asks, source=source)
        (folder / "kinmqtt.toml").write_text(text, encoding="utf-8")
        return [sys.executable, "-m", "kinmqtt", "run", "-c", "kinmqtt.toml"]

    with running_broker(command=command, cwd=folder) as broker:
        yield broker


def _connect(authority: Authority, port: int, chain: tuple[Path, Path] | None, version: int) -> tuple[bytes, bytes]:
    """CONNECT as admin, and a PUBLISH of QoS 1 to `anything`: both answers, empty where there is none."""
    context = ssl.create_default_context(cafile=str(authority.file))
    if chain is not None:
        context.load_cert_chain(*chain)
    connect = Connect(
        version=version, client_id="c", clean_start=True, keep_alive=0, will=None, username="admin", password=None
    )
    publish = b"\x32\x0e\0\x08anything\0\x01\0x" if version == V5 else b"\x32\x0d\0\x08anything\0\x01x"
    with socket.create_connection(("127.0.0.1", port), 20) as plain:
        with context.wrap_socket(plain, server_hostname="localhost") as secure:
            secure.sendall(encode(connect, version))
            answer = _packet(secure)
            if not answer or answer[3]:
                return answer, b""
            secure.sendall(publish)
            return answer, _packet(secure)


def _packet(peer: ssl.SSLSocket) -> bytes:
    """One short packet; empty at the end."""
    head = b""
    while len(head) < 2:
        part = peer.recv(2 - len(head))
        if not part:
            return head
        head += part
    body = b""
    while len(body) < head[1]:
        body += peer.recv(head[1] - len(body))
    return head + body


@pytest.mark.parametrize("source", ["common_name", "subject"])
@pytest.mark.parametrize(("version", "code"), [(V311, 5), (V5, 0x87)])
def test_a_certificate_without_a_name_is_no_way_in(
    authority: Authority, tmp_path: Path, source: str, version: int, code: int
) -> None:
    """A CONNECT as admin beside it does not make it admin's: not authorized (MQTT-3.1.4-2), and the log says why."""
    authority.issue("localhost")
    nameless = authority.issue("nameless", subject=x509.Name([]))

    with _broker(tmp_path, '["certificate", "anonymous"]', source=source) as broker:
        connack, _ = _connect(authority, broker.port, nameless, version)
        line = broker.wait_for_line("has no common name" if source == "common_name" else "has an empty subject")

    assert connack[3] == code
    assert "refused: the client's certificate has" in line[0]


def test_a_certificate_may_be_optional(authority: Authority, tmp_path: Path) -> None:
    """Who shows none is let in by `anonymous`, and has no user's rights whatever CONNECT says."""
    authority.issue("localhost")

    with _broker(tmp_path, '["certificate", "anonymous"]', "optional") as broker:
        connack, puback = _connect(authority, broker.port, None, V5)

    assert connack[3] == 0
    assert puback[4] == 0x87


def test_a_certificate_may_be_optional_beside_passwords(authority: Authority, tmp_path: Path) -> None:
    """Who shows none needs another authenticator; a user name alone opens nothing."""
    authority.issue("localhost")

    with _broker(tmp_path, '["certificate", "auth_file"]', "optional") as broker:
        connack, _ = _connect(authority, broker.port, None, V5)

    assert connack[3] == 0x86


def test_a_name_of_connect_gives_no_rights_beside_a_certificate(authority: Authority, tmp_path: Path) -> None:
    """The certificate's name is the user's, and not what the client says."""
    authority.issue("localhost")

    with _broker(tmp_path, '["certificate"]') as broker:
        connack, puback = _connect(authority, broker.port, authority.issue("sensor-1"), V5)

    assert connack[3] == 0
    assert puback[4] == 0x87
