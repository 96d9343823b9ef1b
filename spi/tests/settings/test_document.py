"""Documents: what they say, where they say it, and what they answer to files that are no settings at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinmqtt_spi.errors import SettingsError
from kinmqtt_spi.settings import Document

TEXT = '''# a comment with [brackets] and = signs
title = "x"  # another
[broker]
max_inflight = 20
"quoted key" . 'literal.key' = 1
limits = { rate = 5, burst.size = [1, 2] }

[plugins.auth_file]
banner = """
[not.a.header]
key = "not a key"
four quotes"""" # end
users = [
  "a,]b", # [ not an array
  ['x'],
  {name = "n"},
]
since = 1979-05-27 07:32:00Z

[[listener]]
port = 1
[listener.tls]
cert = 'C:\\path'
[[listener]]
port = 2
'''

WHERE: list[tuple[tuple[str | int, ...], tuple[int, int], tuple[int, int]]] = [
    (("title",), (2, 1), (2, 9)),
    (("broker",), (3, 2), (3, 2)),
    (("broker", "max_inflight"), (4, 1), (4, 16)),
    (("broker", "quoted key"), (5, 1), (5, 1)),
    (("broker", "quoted key", "literal.key"), (5, 16), (5, 32)),
    (("broker", "limits"), (6, 1), (6, 10)),
    (("broker", "limits", "rate"), (6, 12), (6, 19)),
    (("broker", "limits", "burst"), (6, 22), (6, 22)),
    (("broker", "limits", "burst", "size"), (6, 28), (6, 35)),
    (("broker", "limits", "burst", "size", 1), (6, 39), (6, 39)),
    (("plugins",), (8, 2), (8, 2)),
    (("plugins", "auth_file"), (8, 10), (8, 10)),
    (("plugins", "auth_file", "banner"), (9, 1), (9, 10)),
    (("plugins", "auth_file", "users", 0), (14, 3), (14, 3)),
    (("plugins", "auth_file", "users", 1, 0), (15, 4), (15, 4)),
    (("plugins", "auth_file", "users", 2, "name"), (16, 4), (16, 11)),
    (("plugins", "auth_file", "since"), (18, 1), (18, 9)),
    (("listener",), (20, 3), (20, 3)),
    (("listener", 0), (20, 3), (20, 3)),
    (("listener", 0, "port"), (21, 1), (21, 8)),
    (("listener", 0, "tls"), (22, 11), (22, 11)),
    (("listener", 0, "tls", "cert"), (23, 1), (23, 8)),
    (("listener", 1), (24, 3), (24, 3)),
    (("listener", 1, "port"), (25, 1), (25, 8)),
]


@pytest.mark.parametrize(("path", "key", "value"), WHERE)
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_keys_and_values_are_located(
    path: tuple[str | int, ...], key: tuple[int, int], value: tuple[int, int], ending: str
) -> None:
    """Every way to write a key has its line and column, whatever ends the lines."""
    document = Document.parse(TEXT.replace("\n", ending))

    assert document.line(path) == key
    assert document.value_line(path) == value


def test_an_absent_path_has_no_location() -> None:
    """Where a document says nothing, there is no line."""
    document = Document.parse(TEXT)

    assert document.line(("broker", "rate")) is None
    assert document.value_line(("listener", 2)) is None
    assert document.line(()) is None


def test_a_header_of_its_own_is_where_a_table_stands() -> None:
    """A table first mentioned on the way to another stands at its own header, once it has one."""
    document = Document.parse("[a.b]\n[a]\n")

    assert document.line(("a",)) == (2, 2)


def test_keys_after_a_nested_array_of_tables_belong_to_its_last_element() -> None:
    """A header that leads through an array of tables means the last element so far."""
    document = Document.parse("[[a]]\n[[a.b]]\nx = 1\n[[a.b]]\n[a.b.c]\ny = 2\n[[a]]\n[[a.b]]\n")

    assert document.data == {"a": [{"b": [{"x": 1}, {"c": {"y": 2}}]}, {"b": [{}]}]}
    assert document.line(("a", 0, "b", 0, "x")) == (3, 1)
    assert document.line(("a", 0, "b", 1, "c", "y")) == (6, 1)
    assert document.line(("a", 1, "b", 0)) == (8, 5)


def test_the_empty_document_says_nothing() -> None:
    """An empty document has no data, and a name to begin messages with."""
    document = Document.empty()

    assert document.data == {}
    assert document.name == "<settings>"


def test_a_representation_shows_no_content() -> None:
    """Settings hold secrets, so a document in a log line must not show them."""
    assert repr(Document.parse("password = 'hunter2'", "a.toml")) == "<Document 'a.toml'>"


def test_a_file_is_read_with_its_name(tmp_path: Path) -> None:
    """A file's path is its name in messages, and a byte order mark is not part of it."""
    path = tmp_path / "a.toml"
    path.write_bytes(b"\xef\xbb\xbfkey = 1\r\n")

    document = Document.read(path)

    assert document.data == {"key": 1}
    assert document.name == str(path)
    assert document.line(("key",)) == (1, 1)


def test_a_missing_file_is_one_clear_problem(tmp_path: Path) -> None:
    """A file that is not there is said to be not there."""
    path = tmp_path / "a.toml"

    with pytest.raises(SettingsError) as raised:
        Document.read(path)

    assert raised.value.problems == (f"{path}: there is no such file",)


def test_an_unreadable_file_is_one_clear_problem(tmp_path: Path) -> None:
    """What can't be read as a file is said with the system's reason."""
    with pytest.raises(SettingsError) as raised:
        Document.read(tmp_path)

    assert len(raised.value.problems) == 1
    assert raised.value.problems[0].startswith(f"{tmp_path}: can't be read: ")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"a = 1\nb = '\xc3\xa4\xe9'\n", "2:7: not UTF-8: byte 0xe9"),
        (b"\xef\xbb\xbfb = '\xff'\n", "1:6: not UTF-8: byte 0xff"),
        (b"\xff\xfea\0", "1:1: not UTF-8: byte 0xff"),
    ],
)
def test_bytes_that_are_not_utf8_are_located(tmp_path: Path, content: bytes, problem: str) -> None:
    """The first byte that is not UTF-8 is shown with its line and column."""
    path = tmp_path / "a.toml"
    path.write_bytes(content)

    with pytest.raises(SettingsError) as raised:
        Document.read(path)

    assert raised.value.problems == (f"{path}:{problem}",)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a = 1\nb = \n", "a.toml:2:5: invalid value"),
        ("a = 1\nb", "a.toml:2:2: expected '=' after a key in a key/value pair"),
        ("a = 1\n a = 2", "a.toml:2:7: cannot overwrite a value"),
    ],
)
def test_syntax_errors_are_located(text: str, problem: str) -> None:
    """What is not TOML is one problem: file, line, column and tomllib's reason."""
    with pytest.raises(SettingsError) as raised:
        Document.parse(text, "a.toml")

    assert raised.value.problems == (problem,)


def test_too_deep_a_nesting_is_a_problem() -> None:
    """Arrays within arrays without end are refused, not followed until Python gives up."""
    with pytest.raises(SettingsError) as raised:
        Document.parse("a = " + "[" * 100_000, "a.toml")

    assert raised.value.problems == ("a.toml: arrays or inline tables are nested too deeply",)


def test_numbers_python_refuses_to_read_are_a_problem_too() -> None:
    """A number of thousands of digits is refused with Python's own words instead of a traceback."""
    with pytest.raises(SettingsError, match=r"^a\.toml: exceeds the limit"):
        Document.parse("a = " + "1" * 5000, "a.toml")
