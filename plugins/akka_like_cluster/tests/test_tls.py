"""TLS between brokers: files that can't be used, and names that are accepted."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from akka_harness.certificates import Authority
from kinmqtt_akka_like_cluster.net.tls import PeerNames, load_tls, names_in, tls_failure
from kinmqtt_akka_like_cluster.settings import TlsSettings
from kinmqtt_spi.errors import SettingsError


@pytest.fixture
def good(tmp_path: Path) -> TlsSettings:
    """The settings of a broker whose files are as they should be."""
    return Authority(tmp_path).settings("a.example", peers=["*.example.org"])


def refused(settings: TlsSettings) -> str:
    """Why files can't be used."""
    with pytest.raises(SettingsError) as error:
        load_tls(settings)
    return str(error.value)


def changed(settings: TlsSettings, key: str, path: Path) -> TlsSettings:
    """The settings with another file."""
    values: dict[str, Any] = {key: path}
    return evolve(settings, **values)


def test_both_sides_demand_a_certificate_and_tls_1_3(good: TlsSettings) -> None:
    """No name is compared with an address: `peers` has the names."""
    tls = load_tls(good)

    for context in (tls.server, tls.client):
        assert context.minimum_version is ssl.TLSVersion.TLSv1_3
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert not context.check_hostname
    assert tls.server.num_tickets == 0
    assert tls.certificate == ssl.PEM_cert_to_DER_cert(good.certificate.read_text())


def test_the_own_certificate_is_the_first_one_in_its_file(tmp_path: Path) -> None:
    """Intermediates follow it, and text may stand before it."""
    authority = Authority(tmp_path)
    settings = authority.settings("a.example", peers=["a.example"])
    own = settings.certificate.read_text()
    settings.certificate.write_text(f"subject=a\n{own}{authority.file.read_text()}")

    assert load_tls(settings).certificate == ssl.PEM_cert_to_DER_cert(own)


def test_certificate_and_key_may_be_one_file(good: TlsSettings) -> None:
    """As many tools write them."""
    good.certificate.write_text(good.private_key.read_text() + good.certificate.read_text())

    assert load_tls(evolve(good, private_key=good.certificate)).certificate


@pytest.mark.parametrize("key", ["certificate", "private_key", "ca"])
def test_files_that_can_not_be_read_are_named(good: TlsSettings, tmp_path: Path, key: str) -> None:
    """With their keys; a FIFO does not block, and what is no PEM is not used."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "noise").write_bytes(b"\xff\x00 no PEM")
    place = f"plugins.akka_like_cluster.tls.{key}: {tmp_path}/"

    assert refused(changed(good, key, tmp_path / "none")) == f"{place}none: there is no such file"
    assert refused(changed(good, key, tmp_path / "fifo")).startswith(f"{place}fifo: can't be read: it is a FIFO")
    noun = "private key" if key == "private_key" else "certificate"
    assert refused(changed(good, key, tmp_path / "noise")) == f"{place}noise: has no {noun} in PEM"


def test_all_files_are_reported_at_once(tmp_path: Path) -> None:
    """Three problems, three lines."""
    none = tmp_path / "none"

    assert len(refused(TlsSettings(certificate=none, private_key=none, ca=none, peers=("a.b",))).splitlines()) == 3


@pytest.mark.parametrize("key", ["certificate", "ca"])
def test_a_broken_certificate_is_named(good: TlsSettings, key: str) -> None:
    """Its frame is there, its content is not."""
    path: Path = getattr(good, key)
    path.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")

    assert refused(good) == f"plugins.akka_like_cluster.tls.{key}: {path}: its first certificate can't be read"


def test_the_key_of_another_certificate_is_named(tmp_path: Path) -> None:
    """Two files that don't belong together."""
    authority = Authority(tmp_path)
    settings = authority.settings("a.example", peers=["a.example"])
    _, other = authority.issue("b.example")

    assert refused(evolve(settings, private_key=other)) == (
        f"plugins.akka_like_cluster.tls.private_key: {other}: "
        f"is not the key of the certificate {settings.certificate}"
    )


def test_an_encrypted_key_is_named(good: TlsSettings) -> None:
    """Nobody is there to type its passphrase."""
    good.private_key.write_text(good.private_key.read_text().replace("PRIVATE", "ENCRYPTED PRIVATE"))

    assert "private_key" in refused(good) and "is encrypted; store it without a passphrase" in refused(good)


def test_a_broken_key_is_named(good: TlsSettings) -> None:
    """Its frame is there, its content is not."""
    good.private_key.write_text("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")

    text = refused(good)

    assert text.startswith(f"plugins.akka_like_cluster.tls.private_key: {good.private_key}: can't be used with")


@pytest.mark.parametrize(
    ("pattern", "name", "accepted"),
    [
        ("b1.example.org", "b1.example.org", True),
        ("B1.example.org", "b1.EXAMPLE.org.", True),
        ("b1.example.org", "b2.example.org", False),
        ("*.example.org", "b1.example.org", True),
        ("*.example.org", "example.org", False),
        ("*.example.org", ".example.org", False),
        ("*.example.org", "a.b1.example.org", False),
        ("*.example.org", "b1.example.org.evil", False),
        ("*.example.org", "b1xexample.org", False),
        ("*.example.org", "*.example.org", True),
        ("b1.example.org", "*.example.org", False),
        ("*.a.example.org", "*.example.org", False),
        ("10.0.0.1", "10.0.0.1", True),
        ("2001:db8::1", "2001:DB8:0:0:0:0:0:1", True),
        ("10.0.0.1", "10.0.0.2", False),
    ],
)
def test_a_name_is_accepted_or_not(pattern: str, name: str, accepted: bool) -> None:
    """A star stands for one label; a certificate's own star is no pattern."""
    assert PeerNames([pattern]).accept([name]) is accepted
    assert PeerNames(["other.example", pattern]).accept(["x.y", name]) is accepted


@given(st.lists(st.text("ab.*", max_size=12), max_size=3), st.lists(st.text("ab.", max_size=12), max_size=3))
def test_only_listed_names_are_accepted(patterns: list[str], names: list[str]) -> None:
    """Compared with the definition, label by label."""

    def matches(pattern: str, name: str) -> bool:
        wanted, given = pattern.rstrip(".").split("."), name.rstrip(".").split(".")
        star = wanted[0] == "*" and len(wanted) > 1 and given[0] != ""
        return wanted == given or (star and wanted[1:] == given[1:])

    expected = any(matches(pattern, name) for pattern in patterns for name in names)

    assert PeerNames(patterns).accept(names) is expected


def test_the_names_are_those_of_hosts(good: TlsSettings) -> None:
    """Other sorts of names, and the common name, are none."""
    certificate = {
        "subject": ((("commonName", "a"),),),
        "subjectAltName": (("DNS", "b"), ("IP Address", "10.0.0.1"), ("email", "c@d"), ("URI", "e:f")),
    }

    assert names_in(certificate) == ["b", "10.0.0.1"]
    assert names_in({}) == names_in(None) == []


def test_a_failure_is_described() -> None:
    """With OpenSSL's own reason, known or not."""
    known, newer, unknown = ssl.SSLError(1, "x"), ssl.SSLError(1, "x"), ssl.SSLError(1, "no luck")
    known.reason, newer.reason = "WRONG_VERSION_NUMBER", "SSL/TLS_ALERT_BAD_CERTIFICATE"

    assert tls_failure(known).startswith("it does not speak TLS")
    assert tls_failure(known).endswith("(wrong version number)")
    assert tls_failure(newer) == "it does not accept this broker's certificate (ssl/tls alert bad certificate)"
    assert "no luck" in tls_failure(unknown)
