"""Password hashes: read, verified, and made."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinmqtt_auth_file.hashes import (
    MAX_ITERATIONS,
    Argon2id,
    Argon2Settings,
    PasswordHash,
    Pbkdf2,
    Sha512,
    parse_hash,
)

OF_SECRET = (
    "$7$101$TFXZQAa90wArJDYb$lLapZ4/tQ46XEx8kJbJm5/GYQZHb5mPcQ7txTtWzJHiFTRYeD+fSGcnakZ17BWoPBdpxUYKk3GxFWsMajqVy9A=="
)
OF_HUNTER = (
    "$6$DlzToWMXHAqY+i9j$Fc0EyxGMd8YVqxQVkjOomaFFeVTO3jMMJcuanDquTwBDQQ6vOsCFxvde3lYQ4v0LWhqWf/ctxb2gBiCmL4C4HQ=="
)
CHEAP = Argon2Settings(time_cost=1, memory_bytes=1 << 20)


def test_what_mosquittos_tool_has_written_is_verified() -> None:
    """Both kinds, as mosquitto_passwd 2.0.11 wrote them for `secret` and `hunter`."""
    assert parse_hash(OF_SECRET).verify(b"secret")
    assert parse_hash(OF_HUNTER).verify(b"hunter")
    assert not parse_hash(OF_SECRET).verify(b"hunter")
    assert not parse_hash(OF_HUNTER).verify(b"secret")


@settings(max_examples=20, deadline=None)
@given(st.binary(max_size=40).filter(lambda password: not password.endswith(b"\0")), st.binary(max_size=40))
def test_a_hash_that_was_made_fits_its_password_only(password: bytes, other: bytes) -> None:
    """Also after it was written and read again."""
    for made in (Pbkdf2.of(password, 10), Argon2id.of(password, CHEAP)):
        again = parse_hash(str(made))
        assert again == made
        assert again.verify(password)
        assert again.verify(other) is (other == password)


@pytest.mark.parametrize("hash", [parse_hash(OF_SECRET), parse_hash(OF_HUNTER), Argon2id.of(b"secret", CHEAP)])
def test_zero_bytes_behind_a_password_are_wrong(hash: PasswordHash) -> None:
    """Also where HMAC takes a key for the same as one with zeros behind it."""
    [password] = [each for each in (b"secret", b"hunter") if hash.verify(each)]

    assert not any(hash.verify(password + b"\0" * zeros) for zeros in (1, 2, 100, 122, 123))


def test_no_hash_is_made_that_fits_two_passwords() -> None:
    """A password that ends with a zero byte would be let in without it."""
    with pytest.raises(ValueError, match="ends with a zero byte"):
        Pbkdf2.of(b"secret\0", 10)


@pytest.mark.parametrize("hash", [parse_hash(OF_SECRET), parse_hash(OF_HUNTER), Argon2id.of(b"secret", CHEAP)])
def test_nobodys_costs_the_same_and_fits_nothing(hash: PasswordHash) -> None:
    """It has the parameters of the one it was made after, and stands in a file as that does."""
    dummy = hash.dummy()

    assert dummy.cost == hash.cost
    assert parse_hash(str(dummy)) == dummy
    assert not dummy.verify(b"secret")
    assert not dummy.verify(b"hunter")


def test_nobodys_without_an_example_costs_what_new_passwords_do() -> None:
    """Argon2id with the parameters of the settings."""
    assert Argon2id.costing(CHEAP).cost == Argon2id.of(b"x", CHEAP).cost
    assert not Argon2id.costing(CHEAP).verify(b"x")


def test_a_hash_is_not_shown() -> None:
    """What may land in a log has no digest in it."""
    for hash in (parse_hash(OF_SECRET), parse_hash(OF_HUNTER), Argon2id.of(b"x", CHEAP)):
        assert str(hash).rpartition("$")[2] not in repr(hash)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "there is no password"),
        ("secret", "not hashed"),
        ("$8$x$y", "unknown kind of hash"),
        ("$argon2i$v=19$m=65536,t=3,p=4$c29tZXNhbHQ$eHh4eHh4eHh4eHh4", "unknown kind of hash"),
        ("$6$x", "expected \\$6\\$"),
        (OF_HUNTER + "$more", "expected \\$6\\$"),
        ("$6$!$" + OF_HUNTER.split("$")[3], "salt is not base64"),
        ("$6$$" + OF_HUNTER.split("$")[3], "salt is empty"),
        ("$6$é$" + OF_HUNTER.split("$")[3], "salt is not base64"),
        ("$6$AAAA$AAAA", "3 bytes instead of 64"),
        ("$7$101$AAAA", "expected \\$7\\$"),
        (OF_SECRET.replace("101", "0"), "iterations"),
        (OF_SECRET.replace("101", "101x"), "iterations"),
        (OF_SECRET.replace("101", "-1"), "iterations"),
        (OF_SECRET.replace("101", str(MAX_ITERATIONS + 1)), "iterations"),
        ("$argon2id$v=16$m=1024,t=1,p=1$c29tZXNhbHQ$eHh4eHh4eHh4eHh4", "expected \\$argon2id"),
        ("$argon2id$v=19$m=1024,t=0,p=1$c29tZXNhbHQ$eHh4eHh4eHh4eHh4", "t must be"),
        ("$argon2id$v=19$m=01024,t=1,p=1$c29tZXNhbHQ$eHh4eHh4eHh4eHh4", "expected \\$argon2id"),
        ("$argon2id$v=19$m=1024,t=01,p=1$c29tZXNhbHQ$eHh4eHh4eHh4eHh4", "expected \\$argon2id"),
        ("$argon2id$v=19$m=1024,t=1,p=\u0661$c29tZXNhbHQ$eHh4eHh4eHh4eHh4", "expected \\$argon2id"),
        ("$argon2id$v=19$m=7,t=1,p=1$c29tZXNhbHQ$eHh4eHh4eHh4eHh4", "m must be"),
        ("$argon2id$v=19$m=99999999,t=1,p=1$c29tZXNhbHQ$eHh4eHh4eHh4eHh4", "m must be"),
        ("$argon2id$v=19$m=1024,t=1,p=1$c29t$eHh4eHh4eHh4eHh4", "8 bytes"),
        ("$argon2id$v=19$m=1024,t=1,p=1$c29tZXNhbHQ$A", "base64"),
    ],
)
def test_what_is_no_hash_is_told(text: str, what: str) -> None:
    """In words, without showing it."""
    with pytest.raises(ValueError, match=what) as told:
        parse_hash(text)

    assert not text or text not in str(told.value)


@given(st.text(max_size=60) | st.from_regex(r"\$(6|7|argon2id)\$[\$A-Za-z0-9+/=,]*", fullmatch=True))
def test_any_text_is_a_hash_or_a_mistake(text: str) -> None:
    """Nothing else is raised, and what is read is written the same again."""
    try:
        hash = parse_hash(text)
    except ValueError:
        return
    assert parse_hash(str(hash)) == hash


def test_a_salt_of_another_length_is_read() -> None:
    """Newer versions of Mosquitto write longer ones."""
    made = Sha512(b"s" * 64, b"d" * 64)

    assert parse_hash(str(made)) == made
