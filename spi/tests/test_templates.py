"""Templates with a client's names in them."""

from __future__ import annotations

import pytest

from kinmqtt_spi import Client
from kinmqtt_spi.templates import fill_in


@pytest.mark.parametrize(
    ("template", "client", "filled"),
    [
        ("a/${clientid}", Client("x"), "a/x"),
        ("a/${username}", Client("x", "u"), "a/u"),
        ("a/${username}", Client("x"), None),
        ("a/${clientid}", Client("x/y"), None),
        ("a/${clientid}", Client("#"), None),
        ("a/${clientid}", Client("+"), None),
        ("a/${clientid}/${username}", Client("${username}", "u"), "a/${username}/u"),
        ("plain", Client("#"), "plain"),
        ("${clientid}/a", Client("$SYS"), None),
        ("${clientid}", Client("$share"), None),
        ("${username}${clientid}/a", Client("x", "$"), None),
        ("a/${clientid}", Client("$SYS"), "a/$SYS"),
        ("a${clientid}", Client("$SYS"), "a$SYS"),
        ("$SYS/${clientid}", Client("$x"), "$SYS/$x"),
        ("${other}/${clientid}", Client("x"), "${other}/x"),
    ],
)
def test_a_name_is_one_level_or_none(template: str, client: Client, filled: str | None) -> None:
    """A client must not subscribe to more than its own by the choice of its name, nor to topics of the broker's."""
    assert fill_in(template, client) == filled


def test_a_name_may_begin_with_a_dollar_within_a_topic() -> None:
    """What stands behind something else is no beginning."""
    assert fill_in("${clientid}/a", Client("$SYS"), begins=False) == "$SYS/a"
