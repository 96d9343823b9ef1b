"""Secrets, whatever they are: hypothesis looks for one that comes out."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_spi.errors import SettingsError
from kinmqtt_spi.settings import Document, parse, setting


def _echo(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    raise ValueError(f"refused: {value}, {value!r}")


def _tell_user(instance: Any, attribute: attrs.Attribute[Any], value: dict[str, str]) -> None:
    raise ValueError(f"user {max(value)!r}: expected something else")


@frozen
class Echoing:
    password: str = setting(secret=True, validator=_echo)


@frozen
class Numeric:
    password: int = setting(secret=True, unit="bytes")
    others: list[str] = setting(factory=list, secret=True, one_of=["x"])


# Upper case, which no message has, and characters that are escaped in one way or another.
secrets = st.text("QXZ'\"\\\n\x07ä😀 ", min_size=4).filter(lambda text: any(c in text for c in "QXZ"))


@given(secrets)
def test_a_secret_is_shown_by_no_problem(secret: str) -> None:
    """Neither a validator that repeats the value nor a message about its type gives a secret away."""
    environ = {"X__A__PASSWORD": '"' + "".join(f"\\U{ord(c):08x}" for c in secret) + '"'}
    listed = environ | {"X__A__OTHERS": f"[{environ['X__A__PASSWORD']}]"}

    for cls, variables in ((Echoing, environ), (Numeric, listed)):
        with pytest.raises(SettingsError) as raised:
            parse(cls, Document.empty(), ("a",), environ=variables, prefix="X")
        text = str(raised.value).replace("X__A__", "")
        assert secret not in text
        assert not set("QXZä😀") & set(text)
        assert raised.value.__context__ is None
        assert "***" in text


@pytest.mark.parametrize("secret", ["r", "e", "user", "fus", "."])
def test_a_short_secret_does_not_garble_the_message(secret: str) -> None:
    """Where it stands by itself it is hidden; within words it would tell by the holes it leaves."""
    document = Document.parse(f"[a]\npassword = {secret!r}\n")

    with pytest.raises(SettingsError) as raised:
        parse(Echoing, document, ("a",))

    assert "refused: ***, '***'" in str(raised.value)


@frozen
class Users:
    users: dict[str, str] = setting(factory=dict, secret=True, validator=_tell_user)


@pytest.mark.parametrize("secret", ["u", "s", "or", "bad"])
def test_a_short_secret_of_a_table_hides_no_key(secret: str) -> None:
    """What a message says of a user can be read, though one of the secrets occurs in its words."""
    document = Document.parse(f"[a.users]\neve = {secret!r}\nmallory = 'badly'\n")

    with pytest.raises(SettingsError, match="user 'mallory': expected something else"):
        parse(Users, document, ("a",))
