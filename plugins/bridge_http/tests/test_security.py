"""Connections are encrypted, both ends are verified, and bodies are signed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bridge_http_harness.making import item, run, send
from bridge_http_harness.server import Server
from kinmqtt_bridge_http.settings import SinkSettings
from kinmqtt_bridge_http.signing import signature
from kinmqtt_bridge_http.sink import HttpSink
from kinmqtt_spi.errors import ServiceUnavailable, SinkRefused
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.tls import ClientTls
from spi_harness.certificates import Pair

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
PLACE = "plugins.bridge_http.sinks.out: "


@contextmanager
def serving(**more: Any) -> Iterator[Server]:
    """A server, from its start to its end."""
    server = Server(**more)
    try:
        yield server
    finally:
        server.stop()


def test_a_server_with_a_trusted_certificate_gets_messages(right: Pair) -> None:
    """Over TLS."""
    with serving(certificate=right) as server:
        assert send(server.url, [item()], tls=ClientTls(ca_file=right[0])) == [None]
        assert len(server.got) == 1


def test_a_server_that_nobody_trusts_gets_nothing(right: Pair) -> None:
    """Nor does the message become poison: certificates are renewed."""
    with serving(certificate=right) as server:
        with pytest.raises(SinkRefused, match=r"certificate is not trusted: .*verify failed.*see tls"):
            send(server.url, [item()])
        assert server.got == []


def test_a_server_with_another_name_gets_nothing(wrong: Pair) -> None:
    """Its certificate is trusted, and names another host."""
    with serving(certificate=wrong) as server:
        with pytest.raises(SinkRefused, match=r"IP address mismatch.*127\.0\.0\.1"):
            send(server.url, [item()], tls=ClientTls(ca_file=wrong[0]))
        assert server.got == []


def test_the_name_in_a_certificate_need_not_be_looked_at(wrong: Pair) -> None:
    """Where the settings say so."""
    with serving(certificate=wrong) as server:
        tls = ClientTls(ca_file=wrong[0], verify_hostname=False)
        assert send(server.url, [item()], tls=tls) == [None]


def test_a_server_without_tls_is_away(right: Pair) -> None:
    """It answers in plain text."""
    with serving() as server, pytest.raises(ServiceUnavailable):
        send(server.url.replace("http:", "https:"), [item()], tls=ClientTls(ca_file=right[0]), timeout_s=1)


def test_a_server_knows_the_broker_by_its_certificate(right: Pair, wrong: Pair) -> None:
    """With another one, or none, nothing is sent."""
    client: dict[str, Any] = {"certificate_file": wrong[0], "key_file": wrong[1]}
    with serving(certificate=right, client_authority=wrong[0]) as server:
        assert send(server.url, [item()], tls=ClientTls(ca_file=right[0], **client)) == [None]
        with pytest.raises(ServiceUnavailable):
            send(server.url, [item()], tls=ClientTls(ca_file=right[0]))
        assert len(server.got) == 1


def test_files_without_certificates_are_refused(tmp_path: Path, right: Pair, wrong: Pair) -> None:
    """With the place in the settings."""
    nothing = tmp_path / "nothing.pem"
    nothing.write_text("no certificate")
    url = "https://127.0.0.1:1/"

    with pytest.raises(SinkRefused, match=re.escape(f"{PLACE}tls.ca_file: {nothing} has no certificates")):
        send(url, [item()], tls=ClientTls(ca_file=nothing))
    with pytest.raises(
        SinkRefused, match=re.escape(f"{PLACE}tls.certificate_file, key_file: {right[0]}, {wrong[1]}")
    ):
        send(url, [item()], tls=ClientTls(certificate_file=right[0], key_file=wrong[1]))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "there is no such file"),
        (b"\n", "is empty"),
        (b"a\nX-Admin: 1", "has other characters than printable ASCII"),
        (b"x" * 20_000, "it has more than"),
    ],
)
def test_a_file_without_a_secret_is_refused(tmp_path: Path, content: bytes | None, problem: str) -> None:
    """It was there when the settings were read."""
    token = tmp_path / "token"
    token.write_bytes(b"abc")
    settings = SinkSettings(url="http://127.0.0.1:1/", secret_headers={"Authorization": token})
    sink = HttpSink("out", settings, TurnableClock())
    if content is None:
        token.unlink()
    else:
        token.write_bytes(content)

    with pytest.raises(SinkRefused, match=problem) as refused:
        run(sink.open())
    assert str(refused.value).startswith(f"{PLACE}secret_headers.Authorization: {token}")


def test_a_body_is_signed(tmp_path: Path) -> None:
    """The receiver of the README takes it, and takes neither another body, nor another time, nor an old one."""
    (tmp_path / "secret").write_text("s3cret\n")
    [snippet] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names: dict[str, Any] = {}
    exec(snippet, names)
    is_genuine = names["is_genuine"]
    clock = TurnableClock()
    with serving() as server:
        assert send(
            server.url, [item(), item()], clock, format="ndjson", signature_secret_file=tmp_path / "secret"
        ) == [None, None]
    [got] = server.got
    header = got.headers["x-kinmqtt-signature"]
    now = clock.now()

    assert is_genuine(b"s3cret", header, got.body, now)
    assert not is_genuine(b"s3cret", header, got.body + b" ", now)
    assert not is_genuine(b"other", header, got.body, now)
    assert not is_genuine(b"s3cret", header, got.body, now + 301)
    assert not is_genuine(b"s3cret", header.replace("t=", "t=1"), got.body, now)
    for malformed in ("", "t=,v1=", "v1=ab", "t=x,v1=ab", "t=1", "t=1,v1=ä", "t=1,v1=ab,t=2"):
        assert not is_genuine(b"s3cret", malformed, got.body, now)


def test_a_signature_is_the_hmac_of_time_and_body() -> None:
    """As `printf '1700000000.{}' | openssl dgst -sha256 -hmac s3cret` says."""
    assert signature(b"s3cret", 1_700_000_000, b"{}") == (
        "t=1700000000,v1=97926816e98fbb41ccb1673225ff29a2f35369099990e1b1561651e7bd097ebf"
    )
