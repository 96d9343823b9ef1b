"""What a client encrypts with; bad files are named, and nobody is asked for a password."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import pytest

from kinmqtt_spi.tls import ClientTls, client_context
from spi_harness.certificates import self_signed


def test_without_settings_the_systems_authorities_are_trusted() -> None:
    """TLS 1.2 or newer, and the name is looked at."""
    context = client_context()

    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_the_name_of_a_server_may_be_left_alone(tmp_path: Path) -> None:
    """Its certificate is verified all the same."""
    certificate, key = self_signed(tmp_path, "a")
    context = client_context(certificate, certificate, key, verify_hostname=False)

    assert context.verify_mode is ssl.CERT_REQUIRED
    assert not context.check_hostname


def test_a_key_with_a_password_is_an_error(tmp_path: Path) -> None:
    """OpenSSL would ask for it on the terminal, and the broker would stand still."""
    certificate, key = self_signed(tmp_path, "a")
    locked = tmp_path / "locked.key"
    command = ["openssl", "ec", "-in", str(key), "-aes256", "-passout", "pass:x", "-out", str(locked)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)

    with pytest.raises(ValueError, match=r"key_file: .*locked\.key: the private key has a password"):
        client_context(certificate, certificate, locked)


def test_files_that_are_no_certificates_are_named(tmp_path: Path) -> None:
    """With their setting."""
    _, key = self_signed(tmp_path, "a")
    nothing = tmp_path / "nothing"
    nothing.write_text("nothing")

    with pytest.raises(ValueError, match=r"ca_file: .*nothing has no certificates"):
        client_context(nothing)
    with pytest.raises(ValueError, match=r"certificate_file, key_file: .*nothing"):
        client_context(None, nothing, key)


def test_settings_name_the_file_that_is_missing(tmp_path: Path) -> None:
    """And say that a certificate needs its key."""
    certificate, _ = self_signed(tmp_path, "a")
    with pytest.raises(ValueError, match="key_file: "):
        ClientTls(certificate_file=certificate, key_file=tmp_path / "missing")
    with pytest.raises(ValueError, match="need each other"):
        ClientTls(certificate_file=certificate)
