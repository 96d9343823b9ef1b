"""Environment variables: which setting each overrides, what its text means, and which override nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from kinmqtt_spi.errors import SettingsError
from kinmqtt_spi.settings import Document, parse, setting, unknown_environment


@frozen
class Tls:
    cert: Path = setting()
    port: int = setting(8883)


@frozen
class Broker:
    max_inflight: int = setting(20, minimum=1)
    name: str = setting("broker")
    idle: float = setting(60.0, unit="s")
    ratio: int | str = setting(1)
    tags: tuple[str, ...] = setting(())
    users: dict[str, int] = setting(factory=dict)
    rules: dict[str, Tls] = setting(factory=dict)
    tls: Tls | None = setting(None)
    either: str | Tls = setting("")
    password: str | None = setting(None, secret=True)


def read(environ: dict[str, str], text: str = "", path: tuple[str | int, ...] = ("broker",)) -> Broker:
    """Parse the section of a file a.toml under an environment."""
    return parse(Broker, Document.parse(text, "a.toml"), path, environ=environ)


def problems(environ: dict[str, str], text: str = "") -> list[str]:
    """The problems with a file a.toml under an environment, which must have some."""
    with pytest.raises(SettingsError) as raised:
        read(environ, text)
    return list(raised.value.problems)


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("KINMQTT__BROKER__MAX_INFLIGHT", "5", "max_inflight", 5),
        ("kinmqtt__Broker__max_Inflight", "5", "max_inflight", 5),
        ("KINMQTT__BROKER__NAME", "plain text", "name", "plain text"),
        ("KINMQTT__BROKER__NAME", '"quoted"', "name", "quoted"),
        ("KINMQTT__BROKER__NAME", "", "name", ""),
        ("KINMQTT__BROKER__NAME", "true", "name", "true"),
        ("KINMQTT__BROKER__NAME", "1\nother = 2", "name", "1\nother = 2"),
        ("KINMQTT__BROKER__NAME", "[" * 100_000, "name", "[" * 100_000),
        ("KINMQTT__BROKER__IDLE", "5 min", "idle", 300.0),
        ("KINMQTT__BROKER__RATIO", "5", "ratio", 5),
        ("KINMQTT__BROKER__RATIO", '"5"', "ratio", "5"),
        ("KINMQTT__BROKER__TAGS", '["a", "b"]', "tags", ("a", "b")),
        ("KINMQTT__BROKER__USERS", "{a = 1}", "users", {"a": 1}),
        ("KINMQTT__BROKER__USERS__ANNA", "7", "users", {"anna": 7}),
        ("KINMQTT__BROKER__RULES__R__CERT", "/c", "rules", {"r": Tls(cert=Path("/c"))}),
        ("KINMQTT__BROKER__TLS__CERT", "/c", "tls", Tls(cert=Path("/c"))),
        ("KINMQTT__BROKER__TLS", "{cert = '/c', port = 1}", "tls", Tls(cert=Path("/c"), port=1)),
        ("KINMQTT__BROKER__EITHER__CERT", "/c", "either", Tls(cert=Path("/c"))),
        ("KINMQTT__BROKER__PASSWORD", "12345", "password", "12345"),
    ],
)
def test_a_variable_sets_a_setting(variable: str, text: str, name: str, value: object) -> None:
    """Double underscores separate; the text is a TOML value if that fits, else a string."""
    result = getattr(read({variable: text}), name)

    assert result == value
    assert type(result) is type(value)


def test_variables_override_the_file() -> None:
    """The environment wins over the file, setting by setting, whatever was wrong there."""
    text = "[broker]\nmax_inflight = 'many'\ntls = {cert = '/a', port = 1}\nname = 'file'\n"

    result = read({"KINMQTT__BROKER__MAX_INFLIGHT": "5", "KINMQTT__BROKER__TLS__CERT": "/b"}, text)

    assert result == Broker(max_inflight=5, tls=Tls(cert=Path("/b"), port=1), name="file")


def test_a_variable_within_a_table_overrides_the_table_of_another() -> None:
    """Where one variable sets a table and another a key within it, both have their say."""
    environ = {"KINMQTT__BROKER__TLS__PORT": "2", "KINMQTT__BROKER__TLS": "{cert = '/c', port = 1}"}

    assert read(environ).tls == Tls(cert=Path("/c"), port=2)


def test_keys_of_the_file_are_found_whatever_their_case() -> None:
    """A free key in the file is the one meant by a variable that differs in case and dashes only."""
    text = "[broker.users]\nAnna-Maria = 1\n"

    assert read({"KINMQTT__BROKER__USERS__ANNA_MARIA": "2"}, text).users == {"Anna-Maria": 2}


def test_variables_leave_the_document_as_it_is() -> None:
    """What the environment says is not written into the document, which others read too."""
    document = Document.parse("[broker.users]\na = 1\n")

    parse(Broker, document, ("broker",), environ={"KINMQTT__BROKER__USERS__A": "2"})

    assert document.data == {"broker": {"users": {"a": 1}}}


def test_elements_of_arrays_of_tables_are_numbered() -> None:
    """A section that is an element of an array has its number in the variable's name."""
    text = "[[broker]]\n[[broker]]\nname = 'x'\n"

    assert read({"KINMQTT__BROKER__1__MAX_INFLIGHT": "5"}, text, ("broker", 1)) == Broker(max_inflight=5, name="x")
    assert read({"KINMQTT__BROKER__0__MAX_INFLIGHT": "5"}, text, ("broker", 1)) == Broker(name="x")


def test_another_prefix_is_another_broker() -> None:
    """With a prefix of its own a program sees only its own variables."""
    environ = {"KINMQTT__BROKER__NAME": "a", "OTHER__BROKER__NAME": "b", "OTHERWISE": "c"}

    assert parse(Broker, Document.empty(), ("broker",), environ=environ, prefix="OTHER").name == "b"


@pytest.mark.parametrize(
    ("environ", "text", "expected"),
    [
        (
            {"KINMQTT__BROKER__MAX_INFLIGHT": "many"},
            "",
            'KINMQTT__BROKER__MAX_INFLIGHT: broker.max_inflight: expected a whole number not below 1, '
            'got the string "many"',
        ),
        (
            {"KINMQTT__BROKER__MAX_INFLIGHT": "0"},
            "[broker]\nmax_inflight = 5",
            "KINMQTT__BROKER__MAX_INFLIGHT: broker.max_inflight: expected a whole number not below 1, got 0",
        ),
        (
            {"KINMQTT__BROKER__TAGS": "['a', 1]"},
            "",
            "KINMQTT__BROKER__TAGS: broker.tags[1]: expected a string, got 1",
        ),
        (
            {"kinmqtt__broker__tls__port": "'x'"},
            "[broker]\ntls = {cert = 'c', port = 1}",
            "kinmqtt__broker__tls__port: broker.tls.port: expected a whole number, got the string \"x\"",
        ),
        (
            {"KINMQTT__BROKER__TLS": "{port = 1, prot = 2, cert = 'c'}"},
            "",
            "KINMQTT__BROKER__TLS: broker.tls.prot: unknown key; did you mean 'port'?",
        ),
        (
            {"KINMQTT__BROKER__TLS": "{port = 1}"},
            "[broker]",
            "KINMQTT__BROKER__TLS: broker.tls.cert: required key is missing (a path)",
        ),
        (
            {"KINMQTT__BROKER__TLS__PORT": "1"},
            "[broker]",
            "a.toml: broker.tls.cert: required key is missing (a path)",
        ),
        (
            {"KINMQTT__BROKER__PASSWORD": "{secret = 'x'"},
            "[broker]\ntls = 'x'",
            "a.toml:2:7: broker.tls: expected a table, got the string \"x\"",
        ),
        (
            {"KINMQTT__BROKER__TLS__PORT": "1"},
            "[broker]\ntls = 'x'",
            "a.toml:2:7: broker.tls: expected a table, got the string \"x\"",
        ),
        (
            {"KINMQTT__BROKER__NAME": "a", "kinmqtt__broker__name": "b"},
            "",
            "kinmqtt__broker__name: broker.name: KINMQTT__BROKER__NAME sets this too",
        ),
    ],
)  # fmt: skip
def test_problems_name_the_variable(environ: dict[str, str], text: str, expected: str) -> None:
    """A problem with a variable's value is located at the variable's name."""
    assert problems(environ, text) == [expected]


def test_problems_of_the_environment_come_after_those_of_the_file() -> None:
    """One run tells what is wrong in both."""
    text = "[broker]\n\nname = 1\n"

    assert problems({"KINMQTT__BROKER__IDLE": "soon", "KINMQTT__BROKER__MAX_INFLIGHT": "-1"}, text) == [
        "a.toml:3:8: broker.name: expected a string, got 1",
        'KINMQTT__BROKER__IDLE: broker.idle: expected a number of seconds or a duration like "30 s", '
        'got the string "soon"; the suffixes are ms, s, min, h and d',
        "KINMQTT__BROKER__MAX_INFLIGHT: broker.max_inflight: expected a whole number not below 1, got -1",
    ]


SECTIONS: list[tuple[tuple[str | int, ...], type[Any]]] = [
    (("broker",), Broker),
    (("plugins", "auth-file"), Tls),
]


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        ("KINMQTT__BROKER__MAX_INFLGHT", "; did you mean KINMQTT__BROKER__MAX_INFLIGHT?"),
        ("KINMQTT__BROKR__MAX_INFLIGHT", "; did you mean KINMQTT__BROKER__MAX_INFLIGHT?"),
        ("KINMQTT__BROKER__TLS__CRET", "; did you mean KINMQTT__BROKER__TLS__CERT?"),
        ("KINMQTT__PLUGINS__AUTH_FILE__PROT", "; did you mean KINMQTT__PLUGINS__AUTH_FILE__PORT?"),
        ("KINMQTT__BROKER__MAX_INFLIGHT__X", "; did you mean KINMQTT__BROKER__MAX_INFLIGHT?"),
        ("KINMQTT__BROKER__RULES__RULE__PROT", ""),
        ("KINMQTT__BROKER__USERS__", "; did you mean KINMQTT__BROKER__USERS?"),
        ("KINMQTT__", ""),
        ("KINMQTT__XYZZY", ""),
    ],
)
def test_a_variable_that_sets_nothing_is_found(variable: str, expected: str) -> None:
    """A variable with the prefix that matches no setting is reported, with the nearest one."""
    assert unknown_environment({variable: "1"}, SECTIONS) == [f"{variable}: sets nothing{expected}"]


def test_variables_that_set_something_are_not_reported() -> None:
    """What parsing will use, and what is none of ours, is no problem."""
    environ = dict.fromkeys(
        [
            "KINMQTT__BROKER__NAME",
            "kinmqtt__broker__users__anna",
            "KINMQTT__BROKER__RULES__R__PORT",
            "KINMQTT__BROKER__TLS",
            "KINMQTT__PLUGINS__AUTH_FILE__CERT",
            "KINMQTT_HOME",
            "PATH",
        ],
        "x",
    )

    assert unknown_environment(environ, SECTIONS) == []
    assert unknown_environment({"OTHER__X": "", "KINMQTT__X": ""}, SECTIONS, prefix="OTHER") == [
        "OTHER__X: sets nothing"
    ]
