"""What documentation shows of a settings class: rows, and an example that says what the defaults say."""

from __future__ import annotations

import enum
import re
import tomllib
from pathlib import Path
from typing import Any, Literal

import attrs
from attrs import field, frozen
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_spi.settings import Document, Row, as_toml, describe, parse, setting


class Policy(enum.Enum):
    OLDEST = "oldest"
    NEWEST = "newest"


@frozen
class Tls:
    cert: Path = setting(help="The server's certificate.")
    key: str | None = setting(None, secret=True)


@frozen
class Listener:
    endpoint: str = setting("tcp:1883", help="A Twisted endpoint string.")
    tls: Tls | None = setting(None, help="Without it connections are not encrypted.")
    token: str | None = setting(None, secret=True)


@frozen
class Limits:
    rate: float = setting(100.0, unit="messages per second")


@frozen
class Broker:
    max_inflight: int = setting(20, help="Messages on their way to one client.", minimum=1, maximum=65535)
    queue: int = setting(1024, unit="bytes", help="What a queue may hold")
    name: str = setting(unit="letters")
    policy: Policy = setting(Policy.OLDEST)
    style: Literal["trie"] | int = setting("trie")
    password: str = setting("changeme", secret=True)
    data: Path | None = setting(None)
    limits: Limits = setting(Limits(rate=5.0))
    admin: Tls = setting(help="How administrators come in.")
    listeners: tuple[Listener, ...] = setting((Listener(token="t"),))
    users: dict[str, list[Limits]] = setting(factory=dict)
    node: int = field(default=attrs.Factory(lambda self: self.max_inflight, takes_self=True))


def test_every_key_has_a_row() -> None:
    """Keys are described in the order of declaration, those of inner sections below their own."""
    assert describe(Broker) == [
        Row("max_inflight", "a whole number from 1 to 65535", "20", "", "Messages on their way to one client."),
        Row(
            "queue",
            'a whole number of bytes or a size like "8 MiB"',
            "1024",
            "bytes",
            "What a queue may hold",
        ),
        Row("name", "a string", "required", "letters", ""),
        Row("policy", 'one of "oldest", "newest"', '"oldest"', "", ""),
        Row("style", 'a whole number or "trie"', '"trie"', "", ""),
        Row("password", "a string", '"***"', "", ""),
        Row("data", "a path", "", "", ""),
        Row("limits.rate", "a number", "5.0", "messages per second", ""),
        Row("admin", "a table", "required", "", "How administrators come in."),
        Row("admin.cert", "a path", "required", "", "The server's certificate."),
        Row("admin.key", "a string", "", "", ""),
        Row(
            "listeners",
            "a list, each element a table",
            '[{endpoint = "tcp:1883", token = "***"}]',
            "",
            "",
        ),
        Row("listeners[].endpoint", "a string", '"tcp:1883"', "", "A Twisted endpoint string."),
        Row("listeners[].tls", "a table", "", "", "Without it connections are not encrypted."),
        Row("listeners[].tls.cert", "a path", "required", "", "The server's certificate."),
        Row("listeners[].tls.key", "a string", "", "", ""),
        Row("listeners[].token", "a string", "", "", ""),
        Row("users", "a table, each value a list, each element a table", "{}", "", ""),
        Row("users.<name>[].rate", "a number", "100.0", "messages per second", ""),
        Row("node", "a whole number", "", "", ""),
    ]


EXAMPLE = """\
[broker]
# Messages on their way to one client: a whole number from 1 to 65535.
#max_inflight = 20
# What a queue may hold: a whole number of bytes or a size like "8 MiB".
#queue = 1024
# A string, letters.
#name = <a string, letters>
# One of "oldest", "newest".
#policy = "oldest"
# A whole number or "trie".
#style = "trie"
# A string.
#password = "***"
# A path. Not set by default.
#data = <a path>
# A list, each element a table.
#listeners = [{endpoint = "tcp:1883", token = "***"}]
# A table, each value a list, each element a table.
#users = {}
# A whole number. Not set by default.
#node = <a whole number>

#[broker.limits]
# A number, messages per second.
#rate = 5.0

# How administrators come in.
#[broker.admin]
# The server's certificate: a path.
#cert = <a path>
# A string. Not set by default.
#key = <a string>
"""


def test_the_example_shows_every_key_and_its_default() -> None:
    """The example section is TOML as it stands, and changes nothing until a line is uncommented."""
    assert as_toml(Broker, ("broker",)) == EXAMPLE
    assert tomllib.loads(EXAMPLE) == {"broker": {}}


def test_the_example_of_a_whole_document_has_no_header() -> None:
    """Without a path the keys stand at the top of the file."""
    assert as_toml(Limits) == "# A number, messages per second.\n#rate = 100.0\n"


def test_long_help_is_wrapped() -> None:
    """No comment is wider than a terminal with some room to spare."""
    body = {"__annotations__": {"x": int}, "x": setting(0, help="many words " * 30)}
    lines = as_toml(attrs.define(type("Settings", (), body))).splitlines()

    assert max(map(len, lines)) <= 96


texts = st.text(st.characters(exclude_categories=["Cs"]))
VALUES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (bool, st.booleans()),
    (int, st.integers()),
    (float, st.floats(allow_nan=False, allow_infinity=False)),
    (str, texts),
    (Path, st.text("ab/._ \\'\"\n#", min_size=1).map(Path)),
    (Policy, st.sampled_from(Policy)),
    (list[str], st.lists(texts)),
    (tuple[int, ...], st.lists(st.integers()).map(tuple)),
    (frozenset[str], st.frozensets(texts)),
    (dict[str, list[int]], st.dictionaries(texts, st.lists(st.integers()))),
    (Limits, st.builds(Limits, rate=st.floats(allow_nan=False, allow_infinity=False))),
    (tuple[Listener, ...], st.lists(st.builds(Listener, endpoint=texts)).map(tuple)),
    (str | int | bool, texts | st.integers() | st.booleans()),
]


@given(st.lists(st.sampled_from(VALUES).flatmap(lambda pair: st.tuples(st.just(pair[0]), pair[1]))))
def test_the_uncommented_example_says_what_the_defaults_say(fields: list[tuple[Any, Any]]) -> None:
    """Whatever the defaults are, uncommenting the example's keys and parsing it gives the same instance."""
    body: dict[str, Any] = {f"x{i}": setting(value) for i, (_, value) in enumerate(fields)}
    body["__annotations__"] = {f"x{i}": annotation for i, (annotation, _) in enumerate(fields)}
    cls = attrs.frozen(type("Settings", (), body))

    example = as_toml(cls, ("a b", "c"))

    uncommented = re.sub(r"^#(?! )", "", example, flags=re.MULTILINE)
    for text in (example, uncommented):
        assert parse(cls, Document.parse(text), ("a b", "c")) == cls()


@frozen
class Named:
    size: int = setting(1)
    rules: dict[str, Limits] = setting(factory=dict, others=True)


def test_tables_by_name_are_shown_as_such() -> None:
    """With a name in capital letters in the example, and in angle brackets in the rows."""
    assert [row.key for row in describe(Named)] == ["size", "<name>.rate"]
    assert as_toml(Named, ("named",)).endswith("\n\n#[named.NAME]\n# A number, messages per second.\n#rate = 100.0\n")
