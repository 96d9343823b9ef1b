"""The user name that a client's certificate gives, and clients whose certificate gives none."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from core_harness.certificates import Authority
from kinmqtt.net.tls import subject, user_name


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Who signs."""
    return Authority(tmp_path)


def _certificate(authority: Authority, *common_names: str, organization: str | None = "acme") -> x509.Certificate:
    """A certificate with these common names, each of them after the one before."""
    path, _ = authority.issue("client", subject=_subject(*common_names, organization=organization))
    return x509.load_pem_x509_certificate(path.read_bytes())


def _subject(*common_names: str, organization: str | None = "acme") -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, name, _validate=False) for name in common_names]
    if organization is not None:
        attributes.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(attributes)


def test_the_common_name_is_the_user_name(authority: Authority) -> None:
    """As it stands, letter by letter."""
    assert user_name(_certificate(authority, "Sensor 1/ü"), "common_name") == "Sensor 1/ü"


def test_the_subject_is_the_user_name(authority: Authority) -> None:
    """All of it, as RFC 4514 writes it; several common names are no question then."""
    certificate = _certificate(authority, "Users", "bob")

    assert user_name(certificate, "subject") == subject(certificate) == "CN=bob,CN=Users,O=acme"


@pytest.mark.filterwarnings("ignore:Attribute's length:UserWarning")  # X.509's bounds, which no CA has to keep.
@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ((), "has no common name"),
        (("Users", "bob"), "has several common names"),
        (("bob", "bob"), "has several common names"),
        (("",), "has an empty common name"),
        ((" ",), "has an empty common name"),
        (("admin\0.example.org",), "has control characters in its common name"),
        (("admin\n",), "has control characters in its common name"),
        (("admin\x7f",), "has control characters in its common name"),
        (("admin\u0085",), "has control characters in its common name"),
        (("admin\ufdd0",), "has control characters in its common name"),
        (("a" * 65_536,), "longer than a user name may be"),
    ],
)
def test_a_common_name_that_is_no_user_name(authority: Authority, names: tuple[str, ...], problem: str) -> None:
    """None, several, an empty one, and signs that strings of MQTT ought not to have (section 1.5.4)."""
    with pytest.raises(ValueError, match=problem):
        user_name(_certificate(authority, *names), "common_name")


def test_an_empty_subject_is_no_user_name(authority: Authority) -> None:
    """It is the name of nobody."""
    with pytest.raises(ValueError, match="has an empty subject"):
        user_name(_certificate(authority, organization=None), "subject")


@pytest.mark.parametrize("source", ["common_name", "subject"])
def test_a_name_that_is_no_utf_8_is_refused(authority: Authority, source: str) -> None:
    """OpenSSL passes it; nobody here guesses what it was to say."""
    sound = _certificate(authority, "MARKER").public_bytes(Encoding.DER)
    broken = x509.load_der_x509_certificate(sound.replace(b"MARKER", b"\xff\xfeRKER"))

    with pytest.raises(ValueError, match="has a subject that is not text"):
        user_name(broken, source)


@pytest.mark.filterwarnings("ignore:Attribute's length:UserWarning")
@given(st.text(min_size=1, max_size=30))
def test_a_name_is_taken_as_it_is_or_not_at_all(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    """Whatever a common name says, the user name is that very text, or there is none."""
    try:
        certificate = _certificate(_AUTHORITY.of(tmp_path_factory), name)
    except (ValueError, UnicodeEncodeError):
        return  # No certificate can say it.

    try:
        taken = user_name(certificate, "common_name")
    except ValueError:
        return

    assert taken == name
    assert not any(ord(sign) < 0x20 for sign in taken)


class _Shared:
    """One authority for all examples of a property."""

    authority: Authority | None = None

    def of(self, folders: pytest.TempPathFactory) -> Authority:
        if self.authority is None:
            self.authority = Authority(folders.mktemp("authority"))
        return self.authority


_AUTHORITY = _Shared()
