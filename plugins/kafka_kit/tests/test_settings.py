"""Settings of servers, topics and security are checked before anything connects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kinmqtt_kafka_kit.settings import SecuritySettings, address, check_servers, check_topic


@pytest.mark.parametrize(
    ("text", "found"),
    [("kafka:9092", ("kafka", 9092)), ("[::1]:1", ("::1", 1)), ("10.0.0.1:65535", ("10.0.0.1", 65535))],
)
def test_a_server_has_a_host_and_a_port(text: str, found: tuple[str, int]) -> None:
    """An IPv6 address is in brackets, as elsewhere."""
    assert address(text) == found


@pytest.mark.parametrize("text", ["kafka", ":9092", "kafka:", "kafka:0", "kafka:65536", "kafka:x", ""])
def test_a_server_without_one_is_refused(text: str) -> None:
    """With the text in question."""
    with pytest.raises(ValueError, match=f"'{text}' is not host:port"):
        check_servers(["there:1", text])


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ä", "x" * 250])
def test_a_text_that_is_no_topic_is_refused(name: str) -> None:
    """With what a name may have."""
    with pytest.raises(ValueError, match="1 to 249 letters"):
        check_topic(name)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"protocol": "SASL_SSL"}, "needs username and password_file"),
        ({"protocol": "SASL_SSL", "username": "k"}, "needs username and password_file"),
        ({"username": "k"}, "has no user"),
        ({"ca_file": Path("pyproject.toml")}, "does not encrypt"),
        ({"protocol": "SSL", "ca_file": Path("none.pem")}, "ca_file: none.pem: there is no such file"),
        ({"protocol": "SSL", "certificate_file": Path("pyproject.toml")}, "need each other"),
    ],
)
def test_security_that_contradicts_itself_is_refused(settings: dict[str, Any], problem: str) -> None:
    """Before anything connects."""
    with pytest.raises(ValueError, match=problem):
        SecuritySettings(**settings)


@pytest.mark.parametrize(
    ("protocol", "mechanism", "bare"),
    [("SASL_PLAINTEXT", "PLAIN", True), ("SASL_PLAINTEXT", "SCRAM-SHA-512", False), ("SASL_SSL", "PLAIN", False)],
)
def test_a_password_in_the_open_is_known(tmp_path: Path, protocol: Any, mechanism: Any, bare: bool) -> None:
    """Plugins warn of it."""
    (tmp_path / "p").write_text("secret")
    security = SecuritySettings(protocol=protocol, mechanism=mechanism, username="k", password_file=tmp_path / "p")

    assert security.sends_the_password is bare
