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
    ],
)
def test_a_name_is_one_level_or_none(template: str, client: Client, filled: str | None) -> None:
    """A client must not subscribe to more than its own by the choice of its name."""
    assert fill_in(template, client) == filled
