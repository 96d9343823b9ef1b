"""The scanner of keys agrees with tomllib, on every document that hypothesis comes up with."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_spi.errors import SettingsError
from kinmqtt_spi.settings import Document

# Few names, so that tables and arrays of tables meet; some need quotes, some look like something else.
NAMES = ["a", "b", "c-1", "1979-05-27", "true", '"a"', "'b'", '""', '"x.y"', "'[#='", '"\\u00e4\\""', '"]"']
SCALARS = [
    "1",
    "0x1F",
    "1_000.5e-3",
    "nan",
    "-inf",
    "true",
    "1979-05-27",
    "1979-05-27 07:32:00",
    "1979-05-27T07:32:00.5+01:00",
    "07:32:00",
    '""',
    "''",
    '"]#,}= \\" \\\\"',
    "'\"]#,}\\'",
    '""""""',
    "''''''",
    '"""\n[a]\nb = 1 # \\""" ""\\\n  x"""',
    '""""two"" quotes"""""',
    "'''\n[[a]]\n''b = {'''''",
]
BLANKS = st.sampled_from(["", " ", "\t "])
GAPS = st.sampled_from(["", " ", "\n", " # ] } \" '\n", "\n\n\t"])

keys = st.builds(
    lambda names, gap: f"{gap}.{gap}".join(names),
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=3),
    BLANKS,
)


def arrays(elements: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Arrays over several lines, with comments and perhaps a comma at the end."""
    return st.builds(
        lambda items, gap, end: f"[{gap}{f'{gap},{gap}'.join(items)}{gap}{',' if items and end else ''}{gap}]",
        st.lists(elements, max_size=4),
        GAPS,
        st.booleans(),
    )


def inline_tables(elements: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Inline tables, some of them with a key twice, which are sorted out later."""
    pairs = st.builds(lambda key, gap, value: f"{key}{gap}={gap}{value}", keys, BLANKS, elements)
    return st.builds(
        lambda items, gap: f"{{{gap}{f'{gap},{gap}'.join(items)}{gap}}}", st.lists(pairs, max_size=3), BLANKS
    )


values = st.recursive(
    st.sampled_from(SCALARS), lambda elements: arrays(elements) | inline_tables(elements), max_leaves=8
)
statements = st.one_of(
    st.builds(lambda key, gap, value: f"{gap}{key}{gap}={gap}{value}{gap}", keys, BLANKS, values),
    st.builds(lambda key, gap: f"{gap}[{gap}{key}{gap}]{gap}# ]", keys, BLANKS),
    st.builds(lambda key, gap: f"{gap}[[{gap}{key}{gap}]]", keys, BLANKS),
    st.sampled_from(["", "# a = 1", "\t"]),
)


@st.composite
def documents(draw: st.DrawFn) -> str:
    """Valid documents: of random statements those that tomllib accepts after the ones before."""
    text = ""
    for statement in draw(st.lists(statements, max_size=12)):
        longer = f"{text}{statement}\n"
        try:
            tomllib.loads(longer)
        except tomllib.TOMLDecodeError:
            continue
        text = longer
    return text if draw(st.booleans()) else text.removesuffix("\n")


def paths(data: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Every path in the data with its value."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield (*path, key), value
        yield from paths(value, (*path, key))


def rest_at(text: str, position: tuple[int, int] | None) -> str:
    """The text from a line and column on."""
    assert position is not None
    line, column = position
    return "\n".join(text.split("\n")[line - 1 :])[column - 1 :]


def starts_with_key(rest: str, key: str) -> bool:
    """Whether the text begins with the key, bare or quoted."""
    match = re.match(r"""[\w-]+|"(?:[^"\\]|\\.)*"|'[^']*'""", rest)
    return match is not None and tomllib.loads(f"{match.group()} = 1") == {key: 1}


def starts_with_value(rest: str, value: Any) -> bool:
    """Whether the text begins with the value: some beginning of it, up to where a value may end, means it."""
    for end in [match.start() for match in re.finditer(r"[\s,\]}#]|$", rest)]:
        try:
            parsed = tomllib.loads(f"value = {rest[:end]}")
        except tomllib.TOMLDecodeError:
            continue
        if repr(parsed) == repr({"value": value}):  # nan is not equal to itself
            return True
    # A closing bracket is part of the value, so the above stops one short of it.
    return any(
        repr(_loads_or_none(rest[: match.end()])) == repr({"value": value}) for match in re.finditer(r"[\]}]", rest)
    )


def _loads_or_none(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return None


@given(documents(), st.booleans())
def test_every_path_is_located_at_its_key(text: str, windows: bool) -> None:
    """For every path in the data there is a location, and the key, or the element, is what stands there."""
    document = Document.parse(text.replace("\n", "\r\n") if windows else text)

    assert document.data == tomllib.loads(text) or "nan" in text
    for path, value in paths(document.data):
        rest = rest_at(text, document.line(path))
        name = next(part for part in reversed(path) if isinstance(part, str))
        if isinstance(path[-1], str):
            assert starts_with_key(rest, path[-1])
        else:
            assert starts_with_value(rest, value) or starts_with_key(rest, name)


@given(documents())
def test_every_value_is_located(text: str) -> None:
    """What stands at the location of a value is the value, or the key of a table that has no equals sign."""
    document = Document.parse(text)

    for path, value in paths(document.data):
        rest = rest_at(text, document.value_line(path))
        tables = isinstance(value, dict) or (isinstance(value, list) and value and isinstance(value[0], dict))
        if not starts_with_value(rest, value):
            name = next(part for part in reversed(path) if isinstance(part, str))
            assert tables
            assert starts_with_key(rest, name)


@given(documents())
def test_nothing_is_located_that_is_not_there(text: str) -> None:
    """The scanner knows exactly the paths that the data has."""
    document = Document.parse(text)

    assert set(document._keys) == {path for path, _ in paths(document.data)}
    assert set(document._values) <= set(document._keys)


@given(st.text() | st.text(alphabet="ab.=[]{}\"'\\#,\n 1"))
def test_any_text_is_a_document_or_one_located_problem(text: str) -> None:
    """No text whatever raises anything else than SettingsError."""
    try:
        document = Document.parse(text, "a.toml")
    except SettingsError as error:
        assert len(error.problems) == 1
        assert re.match(r"a\.toml:\d+:\d+: ", error.problems[0])
    else:
        assert all(document.line(path) for path, _ in paths(document.data))


@given(documents(), st.data())
def test_a_damaged_document_is_a_document_or_one_problem(whole: str, data: st.DataObject) -> None:
    """Cut a valid document anywhere: it is still valid, or refused in one line."""
    text = whole[: data.draw(st.integers(0, len(whole)))]

    try:
        document = Document.parse(text)
    except SettingsError as error:
        assert len(error.problems) == 1
    else:
        assert all(document.line(path) for path, _ in paths(document.data))
