"""SCRAM-SHA-256 as an authentication method: the RFC's own example, and a whole broker."""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_harness.house import House, Peer
from kinmqtt.builtins.bans import BanSettings, BansSettings
from kinmqtt.builtins.saslprep import prepared
from kinmqtt.builtins.scram import METHOD, Scram, ScramSettings, Secret
from kinmqtt.mqtt.packets import V5, Auth, DisconnectPacket
from kinmqtt_spi import Properties
from kinmqtt_spi.errors import SettingsError
from kinmqtt_spi.memory.plugin import BareContext
from kinmqtt_spi.services.authentication import Authenticated, ConnectRequest, Continue, ExchangeStep
from kinmqtt_spi.settings import Document, parse

SALT = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
PENCIL = Secret.of("pencil", SALT, 4096)


def _secret(text: str) -> str:
    return str(Secret.of(text, SALT, 4096))


def test_the_example_of_rfc_7677() -> None:
    """Section 3, byte for byte; the server's part of the nonce is that of the example."""
    tail = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    plugin: Any = Scram()
    plugin.configure(BareContext("scram", ScramSettings(users={"user": str(PENCIL)})))
    plugin._nonce = lambda: tail
    first = plugin.exchange(ExchangeStep(METHOD, b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO", None, ConnectRequest("")))

    assert isinstance(first, Continue)
    assert first.data == b"r=rOprNGfwEbeRWgbNEkqO" + tail.encode() + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"

    final = f"c=biws,r=rOprNGfwEbeRWgbNEkqO{tail},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()
    done = plugin.exchange(ExchangeStep(METHOD, final, first.state, ConnectRequest("")))

    assert isinstance(done, Authenticated)
    assert done.data == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert done.identity.username == "user"


class Exchange:
    """A client's side of the exchange, written from the RFC."""

    def __init__(self, user: str, password: str) -> None:
        self._password = password
        self._bare = f"n={user},r=abcdef"
        self.first = b"n,," + self._bare.encode()
        self.verifier = b""

    def final(self, server_first: bytes) -> bytes:
        """The client-final message."""
        match = re.fullmatch(rb"(r=[^,]+),s=([^,]+),i=(\d+)", server_first)
        assert match is not None
        salted = hashlib.pbkdf2_hmac("sha256", self._password.encode(), b64decode(match[2]), int(match[3]))
        without = b"c=biws," + match[1]
        covered = self._bare.encode() + b"," + server_first + b"," + without
        client_key = hmac.digest(salted, b"Client Key", "sha256")
        signature = hmac.digest(hashlib.sha256(client_key).digest(), covered, "sha256")
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self.verifier = b"v=" + b64encode(
            hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), covered, "sha256")
        )
        return without + b",p=" + b64encode(proof)


def _house() -> House:
    users = {"user": _secret("pencil"), "other": _secret("crayon")}
    return House(plugin_settings={"scram": ScramSettings(users=users)})


def _properties(data: bytes) -> Properties:
    return Properties(authentication_method=METHOD, authentication_data=data)


def _answer(peer: Peer, exchange: Exchange, reason: int = 0x18) -> None:
    data = peer.of(Auth)[-1].properties.authentication_data
    assert data is not None
    peer.send(Auth(reason, _properties(exchange.final(data))))  # type: ignore[arg-type]


def _connect(house: House, user: str, password: str, **fields: Any) -> tuple[Peer, Exchange]:
    exchange = Exchange(user, password)
    peer = house.connect("c", V5, properties=_properties(exchange.first), **fields)
    _answer(peer, exchange)
    return peer, exchange


def test_a_client_proves_that_it_knows_the_password() -> None:
    """And the broker proves in the CONNACK that it knows it too (section 4.12)."""
    house = _house()
    peer, exchange = _connect(house, "user", "pencil")

    assert int(peer.connack.reason) == 0
    assert peer.connack.properties.authentication_method == METHOD
    assert peer.connack.properties.authentication_data == exchange.verifier
    client = house.broker.client("c")
    assert client is not None
    assert client.username == "user"


@pytest.mark.parametrize(("user", "password"), [("user", "pen"), ("nobody", "pencil")])
def test_a_wrong_password_and_an_unknown_user_are_alike(user: str, password: str) -> None:
    """Both see a salt and an iteration count first, the same each time, and are refused after the proof."""
    house = _house()
    salts = set()
    for _ in range(2):
        peer, _ = _connect(house, user, password)
        assert int(peer.connack.reason) == 0x87
        data = peer.of(Auth)[0].properties.authentication_data
        assert data is not None
        salts.add(data.split(b",s=")[1])

    assert len(salts) == 1


def test_without_the_method_nobody_comes_in() -> None:
    """Where SCRAM is configured, anonymous clients are not let in."""
    assert int(_house().connect("x", V5).connack.reason) == 0x87


def test_a_client_authenticates_again() -> None:
    """Re-authentication leaves the connection as it was (section 4.12.1)."""
    house = _house()
    peer, _ = _connect(house, "user", "pencil")
    again = Exchange("user", "pencil")

    peer.send(Auth(0x19, _properties(again.first)))  # type: ignore[arg-type]
    _answer(peer, again)

    assert int(peer.of(Auth)[-1].reason) == 0
    assert peer.of(Auth)[-1].properties.authentication_data == again.verifier
    assert not peer.closed


def test_a_client_does_not_become_another() -> None:
    """Re-authentication as another user is refused, whatever the password."""
    house = _house()
    peer, _ = _connect(house, "user", "pencil")
    other = Exchange("other", "crayon")

    peer.send(Auth(0x19, _properties(other.first)))  # type: ignore[arg-type]
    _answer(peer, other)

    assert int(peer.of(DisconnectPacket)[0].reason) == 0x87
    assert peer.closed


SPELLINGS = ["us\u00ader", "\uff55ser", "u\u200dser", "us\u2147r"]
"""Of the user name "user"."""


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_another_spelling_is_the_same_user(spelling: str) -> None:
    """The name that SASLprep makes is the client's, and not the one it wrote (RFC 5802 section 5.1)."""
    house = _house()
    peer, _ = _connect(house, spelling, "pencil")

    assert int(peer.connack.reason) == 0
    client = house.broker.client("c")
    assert client is not None
    assert client.username == "user"


@pytest.mark.parametrize("spelling", ["user", *SPELLINGS])
def test_another_spelling_evades_no_ban(spelling: str) -> None:
    """A banned user is banned in every spelling that its password opens."""
    bans = BansSettings(entries=(BanSettings(username="user"),))
    house = House(plugin_settings={"scram": ScramSettings(users={"user": _secret("pencil")}), "bans": bans})

    peer, _ = _connect(house, spelling, "pencil")

    assert int(peer.connack.reason) == 0x8A


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_client_authenticates_again_in_another_spelling(spelling: str) -> None:
    """It is the same user, and stays it."""
    house = _house()
    peer, _ = _connect(house, "user", "pencil")
    again = Exchange(spelling, "pencil")

    peer.send(Auth(0x19, _properties(again.first)))  # type: ignore[arg-type]
    _answer(peer, again)

    assert int(peer.of(Auth)[-1].reason) == 0
    assert not peer.closed


@pytest.mark.parametrize("name", ["user\u0007", "us\u202eer", "\u0627a", "user\ue000", "\u00ad", "us=er", "us=2cer"])
def test_a_name_that_saslprep_forbids_is_refused(name: str) -> None:
    """At once, as RFC 5802 section 5.1 has it: nobody can be known by it."""
    exchange = Exchange(name, "pencil")

    peer = _house().connect("c", V5, properties=_properties(exchange.first))

    assert int(peer.connack.reason) == 0x87
    assert not peer.of(Auth)


def test_an_unknown_user_in_another_spelling_sees_the_same_salt() -> None:
    """As a known one does: two spellings do not tell who is known."""
    house = _house()
    salts = set()
    for name in ("nobody", "no\u00adbody", "\uff4eobody"):
        peer, _ = _connect(house, name, "pencil")
        data = peer.of(Auth)[0].properties.authentication_data
        assert data is not None
        salts.add(data.split(b",s=")[1])

    assert len(salts) == 1


def test_the_user_name_of_connect_counts_for_nothing() -> None:
    """Beside SCRAM's, which alone was verified, nobody looks at it."""
    house = _house()
    peer, _ = _connect(house, "user", "pencil", username="other")

    assert int(peer.connack.reason) == 0
    client = house.broker.client("c")
    assert client is not None
    assert client.username == "user"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("\uff55ser", "write 'user', the name after SASLprep"),
        ("us\u00ader", "write 'user', the name after SASLprep"),
        ("us\u202eer", r"U\+202E, which SASLprep forbids"),
        ("\u00ad", "the name is empty after SASLprep"),
    ],
)
def test_a_name_in_the_settings_has_its_one_spelling(name: str, problem: str) -> None:
    """What stands there is what bans, access control lists and limits meet; two names can't become one."""
    with pytest.raises(ValueError, match=problem):
        ScramSettings(users={name: str(PENCIL)})


@pytest.mark.parametrize(
    "first",
    [b"", b"n,,", b"\xff", b"p=tls-unique,,n=user,r=a", b"n,a=admin,n=user,r=a", b"n,,n=user", b"n,,m=x,n=user,r=a"],
)
def test_a_message_that_is_none_is_refused(first: bytes) -> None:
    """Channel binding and other identities, which are not offered, too."""
    assert int(_house().connect("c", V5, properties=_properties(first)).connack.reason) == 0x87


@pytest.mark.parametrize(
    "wrong", [b"", b"c=biws,r=other,p=AAAA", b"c=eSws,r={nonce},p=AAAA", b"c=biws,r={nonce},p=!"]
)
def test_a_second_message_that_is_none_is_refused(wrong: bytes) -> None:
    """Another nonce, another channel binding than at first, a proof that is no base64."""
    exchange = Exchange("user", "pencil")
    peer = _house().connect("c", V5, properties=_properties(exchange.first))
    data = peer.of(Auth)[0].properties.authentication_data
    assert data is not None
    nonce = data.split(b",")[0][2:]

    peer.send(Auth(0x18, _properties(wrong.replace(b"{nonce}", nonce))))  # type: ignore[arg-type]

    assert int(peer.connack.reason) == 0x87


@given(st.text(max_size=20), st.binary(min_size=1, max_size=16))
def test_a_secret_is_read_as_it_was_written(password: str, salt: bytes) -> None:
    """Secrets round-trip through their text; of a password that SASLprep forbids there is none."""
    try:
        secret = Secret.of(password, salt, 2)
    except ValueError:
        with pytest.raises(ValueError, match=r"SASLprep|right to left"):
            prepared(password)
        return

    assert Secret.parse(str(secret)) == secret


def test_a_secret_that_is_none_is_refused() -> None:
    """The settings do not take it, and say whose it is."""
    with pytest.raises(ValueError, match=r"user 'user': .*StoredKey"):
        ScramSettings(users={"user": "pencil"})


KEY = b64encode(bytes(32)).decode()
SHORT = b64encode(bytes(31)).decode()


@pytest.mark.parametrize(
    ("secret", "problem"),
    [
        (f"0:AAAA${KEY}:{KEY}", "the number of iterations must be at least 1"),
        (f"00:AAAA${KEY}:{KEY}", "the number of iterations must be at least 1"),
        (f"1:AAA${KEY}:{KEY}", "its salt is not base64"),
        (f"1:AAAA${KEY[:-1]}:{KEY}", "its StoredKey is not base64"),
        (f"1:AAAA${KEY}:{KEY[:-1]}", "its ServerKey is not base64"),
        (f"1:AAAA${SHORT}:{KEY}", "its StoredKey has 31 bytes instead of 32"),
        (f"1:AAAA${KEY}:AAAA{KEY}", "its ServerKey has 35 bytes instead of 32"),
    ],
)
def test_a_secret_with_a_faulty_part_is_refused(secret: str, problem: str) -> None:
    """The settings name the user and the part, and show nothing of the secret."""
    users = {"good": str(PENCIL), "bad": f"SCRAM-SHA-256${secret}"}

    with pytest.raises(SettingsError) as raised:
        parse(ScramSettings, Document.parse("[users]\n" + "".join(f"{u} = '{users[u]}'\n" for u in users)), ())

    assert f"user 'bad': {problem}" in str(raised.value)
    assert not any(part in str(raised.value) for part in (KEY[:-1], SHORT[:-1]))


def test_the_password_is_prepared() -> None:
    """SASLprep: a non-breaking space is a space, a soft hyphen nothing (RFC 4013)."""
    assert Secret.of("a\u00a0b\u00ad", SALT, 2) == Secret.of("a b", SALT, 2)
