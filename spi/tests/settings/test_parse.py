"""Parsing: what a table becomes, and every problem with it in one literal line."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated, Any, Literal

import attrs
import pytest
from attrs import field, frozen, validators

from kinmqtt_spi.errors import SettingsError
from kinmqtt_spi.settings import Document, parse, setting, unknown_tables


class Policy(enum.Enum):
    OLDEST = "drop-oldest"
    NEWEST = "drop-newest"


class Level(enum.IntEnum):
    ONE = 1
    FIVE = 5


@frozen
class Tls:
    cert: Path = setting(help="the certificate")
    versions: tuple[str, ...] = setting(("1.2", "1.3"), one_of=["1.2", "1.3"])


@frozen
class Rule:
    rate: float = setting(unit="messages per second")


@frozen
class Broker:
    """A field of every kind."""

    name: str = setting("broker")
    anonymous: bool = setting(False)
    max_inflight: int = setting(20, minimum=1, maximum=65535)
    port: int = setting(1883, minimum=1)
    ratio: float = setting(0.5, maximum=1)
    weight: float = setting(1.0, finite=False)
    queue: int = setting(1024, unit="bytes", minimum=1)
    keep_alive: float = setting(60.0, unit="s", maximum=86400)
    data: Path = setting(Path("data"))
    policy: Policy = setting(Policy.OLDEST)
    level: Level = setting(Level.ONE)
    style: Literal["hash", "trie"] = setting("trie")
    tags: list[str] = setting(factory=list)
    ports: tuple[int, ...] = setting((), minimum=1)
    groups: frozenset[str] = setting(frozenset())
    users: dict[str, int] = setting(factory=dict)
    tls: Tls | None = setting(None)
    rules: dict[str, Rule] = setting(factory=dict)
    listeners: list[Tls] = setting(factory=list)
    workers: int | Literal["auto"] = setting("auto", minimum=1)
    either: str | int | float = setting("x")
    limit: int | Literal["none"] = setting("none", unit="bytes")
    source: str | Tls = setting("")
    password: str | None = setting(None, secret=True)
    noted: Annotated[int, "a note"] = setting(0)
    internal: int = field(default=0, init=False)


def read(text: str, cls: type[Any] = Broker, path: tuple[str | int, ...] = ("broker",)) -> Any:
    """Parse the section of a file bad.toml."""
    return parse(cls, Document.parse(text, "bad.toml"), path)


def problems(text: str, cls: type[Any] = Broker, path: tuple[str | int, ...] = ("broker",)) -> list[str]:
    """The problems with a file bad.toml, which must have some."""
    with pytest.raises(SettingsError) as raised:
        read(text, cls, path)
    assert str(raised.value) == "\n".join(raised.value.problems)
    return list(raised.value.problems)


# What is accepted


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ('name = "b"', "name", "b"),
        ("anonymous = true", "anonymous", True),
        ("max_inflight = 65535", "max_inflight", 65535),
        ("ratio = 1", "ratio", 1.0),
        ("ratio = -0.25", "ratio", -0.25),
        ("weight = inf", "weight", float("inf")),
        ("queue = 5", "queue", 5),
        ('queue = "8 MiB"', "queue", 8 * 1024 * 1024),
        ('queue = "64KiB"', "queue", 65536),
        ('queue = "1.5 KiB"', "queue", 1536),
        ('queue = "7 B"', "queue", 7),
        ('queue = "1 TiB"', "queue", 1024**4),
        ("keep_alive = 30", "keep_alive", 30.0),
        ('keep_alive = "30 s"', "keep_alive", 30.0),
        ('keep_alive = "5 min"', "keep_alive", 300.0),
        ('keep_alive = "2 h"', "keep_alive", 7200.0),
        ('keep_alive = "1 d"', "keep_alive", 86400.0),
        ('keep_alive = "250ms"', "keep_alive", 0.25),
        ('data = "/srv/x"', "data", Path("/srv/x")),
        ('policy = "drop-newest"', "policy", Policy.NEWEST),
        ("level = 5", "level", Level.FIVE),
        ('style = "hash"', "style", "hash"),
        ('tags = ["a", "b", "a"]', "tags", ["a", "b", "a"]),
        ("ports = [1, 2]", "ports", (1, 2)),
        ('groups = ["a", "b"]', "groups", frozenset({"a", "b"})),
        ("users = {a = 1}", "users", {"a": 1}),
        ("tls = {cert = 'c'}", "tls", Tls(cert=Path("c"))),
        ("rules.x.rate = 5", "rules", {"x": Rule(rate=5.0)}),
        ("[[broker.listeners]]\ncert = 'c'", "listeners", [Tls(cert=Path("c"))]),
        ("workers = 3", "workers", 3),
        ('workers = "auto"', "workers", "auto"),
        ("either = 5", "either", 5),
        ("either = 5.5", "either", 5.5),
        ('either = "5"', "either", "5"),
        ('limit = "1 KiB"', "limit", 1024),
        ('limit = "none"', "limit", "none"),
        ('source = "s"', "source", "s"),
        ("source = {cert = 'c'}", "source", Tls(cert=Path("c"))),
        ('password = "p"', "password", "p"),
        ("noted = 1", "noted", 1),
    ],
)
def test_values_of_every_kind_are_taken(line: str, name: str, value: object) -> None:
    """A value that fits becomes what the field's type says, and of exactly that type."""
    result = getattr(read(f"[broker]\n{line}\n"), name)

    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize("text", ["", "[other]\nx = 1\n", "[broker]\n"])
def test_an_absent_table_means_defaults(text: str) -> None:
    """What is not written has its default."""
    assert read(text) == Broker()


def test_a_section_may_be_an_element_of_an_array_of_tables() -> None:
    """A path leads through arrays by index, so that each listener can be parsed by itself."""
    text = "[[rule]]\nrate = 1\n[[rule]]\nrate = true\n"

    assert read(text, Rule, ("rule", 0)) == Rule(rate=1.0)
    assert problems(text, Rule, ("rule", 1)) == ["bad.toml:4:8: rule[1].rate: expected a number, got true"]


def test_the_whole_document_may_be_the_section() -> None:
    """The empty path is the document itself, whose keys have no prefix in messages."""
    assert read("rate = 5", Rule, ()) == Rule(rate=5.0)
    assert problems("rat = 5", Rule, ()) == [
        "bad.toml: rate: required key is missing (a number, messages per second)",
        "bad.toml:1:1: rat: unknown key; did you mean 'rate'?",
    ]


# What is refused: nothing is coerced

REFUSED = [
    ('name = 5', 'expected a string, got 5'),
    ('name = true', 'expected a string, got true'),
    ('name = ["a"]', 'expected a string, got a list'),
    ('name = {}', 'expected a string, got a table'),
    ('name = 1979-05-27', 'expected a string, got 1979-05-27'),
    ('anonymous = 1', 'expected true or false, got 1'),
    ('anonymous = "yes"', 'expected true or false, got the string "yes"'),
    ('max_inflight = "many"', 'expected a whole number from 1 to 65535, got the string "many"'),
    ('max_inflight = "5"', 'expected a whole number from 1 to 65535, got the string "5"'),
    ('max_inflight = true', 'expected a whole number from 1 to 65535, got true'),
    ('max_inflight = 5.0', 'expected a whole number from 1 to 65535, got 5.0'),
    ('max_inflight = 0', 'expected a whole number from 1 to 65535, got 0'),
    ('max_inflight = 65536', 'expected a whole number from 1 to 65535, got 65536'),
    ('port = 0', 'expected a whole number not below 1, got 0'),
    ('ratio = true', 'expected a number not above 1, got true'),
    ('ratio = 1.5', 'expected a number not above 1, got 1.5'),
    ('ratio = nan', 'expected a number not above 1, got nan'),
    ('ratio = -inf', 'expected a number not above 1, got -inf'),
    ('weight = "5"', 'expected a number, got the string "5"'),
    (f'weight = {"9" * 400}', 'expected a number, got a number too long to show'),
    (f'name = 0x{"f" * 5000}', 'expected a string, got a number too long to show'),
    ('queue = "8 MB"', 'expected a whole number of bytes not below 1 or a size like "8 MiB", '
     'got the string "8 MB"; the suffixes are B, KiB, MiB, GiB and TiB'),
    ('queue = "8"', 'expected a whole number of bytes not below 1 or a size like "8 MiB", '
     'got the string "8"; the suffixes are B, KiB, MiB, GiB and TiB'),
    ('queue = "0 KiB"', 'expected a whole number of bytes not below 1 or a size like "8 MiB", '
     'got the string "0 KiB" (0 bytes)'),
    ('queue = "1.5 B"', 'expected a whole number of bytes not below 1 or a size like "8 MiB", '
     'got the string "1.5 B" (1.5 bytes)'),
    ('keep_alive = "2 d"', 'expected a number of seconds not above 86400 or a duration like "30 s", '
     'got the string "2 d" (172800 seconds)'),
    ('keep_alive = "-1 s"', 'expected a number of seconds not above 86400 or a duration like "30 s", '
     'got the string "-1 s"; the suffixes are ms, s, min, h and d'),
    ('data = 5', 'expected a path, got 5'),
    ('data = ""', 'expected a path, got the string ""'),
    ('data = "a\\u0000"', 'expected a path, got the string "a\\u0000"'),
    ('policy = "drop-oldst"', 'expected one of "drop-oldest", "drop-newest", got the string "drop-oldst"; '
     'did you mean "drop-oldest"?'),
    ('policy = "OLDEST"', 'expected one of "drop-oldest", "drop-newest", got the string "OLDEST"; '
     'did you mean "drop-oldest"?'),
    ('policy = 1', 'expected one of "drop-oldest", "drop-newest", got 1'),
    ('level = true', 'expected one of 1, 5, got true'),
    ('level = 1.0', 'expected one of 1, 5, got 1.0'),
    ('style = "Hash"', 'expected one of "hash", "trie", got the string "Hash"; did you mean "hash"?'),
    ('tags = "a"', 'expected a list, each element a string, got the string "a"'),
    ('users = 5', 'expected a table, each value a whole number, got 5'),
    ('tls = "c"', 'expected a table, got the string "c"'),
    ('workers = 0', 'expected a whole number not below 1 or "auto", got 0'),
    ('workers = "aut"', 'expected a whole number not below 1 or "auto", got the string "aut"'),
    ('workers = true', 'expected a whole number not below 1 or "auto", got true'),
    ('either = true', 'expected a whole number or a number or a string, got true'),
    ('limit = "x"', 'expected a whole number of bytes or a size like "8 MiB" or "none", got the string "x"'),
    ('source = 5', 'expected a string or a table, got 5'),
    ('password = 12345', 'expected a string, got ***'),
    (f'anonymous = "{"x" * 70}"', f'expected true or false, got the string "{"x" * 59}…"'),
    ('anonymous = "a\\n\\u001b[31m\\U0001f600\\U000e0001"',
     'expected true or false, got the string "a\\n\\u001b[31m\U0001f600\\U000e0001"'),
]  # fmt: skip


@pytest.mark.parametrize(("line", "text"), REFUSED, ids=[line[:30] for line, _ in REFUSED])
def test_values_that_do_not_fit_are_refused(line: str, text: str) -> None:
    """A wrong value is located, and told what was expected and what was got."""
    key, _, value = line.partition(" = ")

    assert problems(f"[broker]\n{line}\n") == [f"bad.toml:2:{len(key) + 4}: broker.{key}: {text}"]
    assert value


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('tags = ["a", 5]', "2:14: broker.tags[1]: expected a string, got 5"),
        ("ports = [1,\n 0]", "3:2: broker.ports[1]: expected a whole number not below 1, got 0"),
        ('users."a b" = "x"', '2:15: broker.users."a b": expected a whole number, got the string "x"'),
        ("tls = {}", "2: broker.tls.cert: required key is missing (a path)"),
        ("tls = {cert = 5}", "2:15: broker.tls.cert: expected a path, got 5"),
        (
            "tls = {cert = 'c', versions = ['1.20']}",
            '2:32: broker.tls.versions[0]: expected one of "1.2", "1.3", got the string "1.20"; did you mean "1.2"?',
        ),
        ("source = {cert = 5}", "2:18: broker.source.cert: expected a path, got 5"),
        (
            "[broker.rules.x]",
            "2: broker.rules.x.rate: required key is missing (a number, messages per second)",
        ),
        (
            "[[broker.listeners]]\nkert = 'c'\ncert = 'c'",
            "3:1: broker.listeners[0].kert: unknown key; did you mean 'cert'?",
        ),
        ("max_inflght = 3", "2:1: broker.max_inflght: unknown key; did you mean 'max_inflight'?"),
        ("Max-Inflight = 3", "2:1: broker.Max-Inflight: unknown key; did you mean 'max_inflight'?"),
        ("xyzzy = 3", "2:1: broker.xyzzy: unknown key"),
        ("internal = 3", "2:1: broker.internal: unknown key"),
        ('"a\\nb" = 3', '2:1: broker."a\\nb": unknown key'),
    ],
)
def test_problems_within_a_value_are_located_there(line: str, problem: str) -> None:
    """A problem with an element, or with a key of an inner table, is located at that element or key."""
    assert problems(f"[broker]\n{line}\n") == [f"bad.toml:{problem}"]


def test_all_problems_are_told_at_once_in_the_order_of_the_file() -> None:
    """One run tells the operator everything that is wrong, from the top of the file to its end."""
    text = 'ratio = "x"\ntls = {}\nmax_inflght = 3\n\nmax_inflight = "many"\n'

    assert problems(text, path=()) == [
        'bad.toml:1:9: ratio: expected a number not above 1, got the string "x"',
        "bad.toml:2: tls.cert: required key is missing (a path)",
        "bad.toml:3:1: max_inflght: unknown key; did you mean 'max_inflight'?",
        'bad.toml:5:16: max_inflight: expected a whole number from 1 to 65535, got the string "many"',
    ]


@pytest.mark.parametrize(
    ("text", "path", "problem"),
    [
        ("broker = 5", ("broker",), "bad.toml:1:10: broker: expected a table, got 5"),
        ("[[broker]]", ("broker",), "bad.toml:1:3: broker: expected a table, got a list"),
        ("plugins = 5", ("plugins", "x"), "bad.toml:1:11: plugins: expected a table, got 5"),
        ("[broker]", ("broker", 0), "bad.toml:1:2: broker: expected a list, got a table"),
    ],
)
def test_a_section_must_be_a_table(text: str, path: tuple[str | int, ...], problem: str) -> None:
    """Something else in the place of a section, or on the way to it, is a problem."""
    assert problems(text, path=path) == [problem]


def test_an_index_beyond_the_array_means_defaults() -> None:
    """An element that is not there is an absent table."""
    assert read("[[broker]]\nname = 'b'", path=("broker", 1)) == Broker()


def test_a_required_key_of_an_absent_table_has_no_line() -> None:
    """Where there is no table there is no line to show, only the file."""
    assert problems("", Rule, ("plugins", "x")) == [
        "bad.toml: plugins.x.rate: required key is missing (a number, messages per second)"
    ]


# Validators


def _even(instance: Any, attribute: attrs.Attribute[int], value: int) -> None:
    if value % 2:
        raise ValueError(f"{value} is odd,\n  which is odd")


def _below_high(instance: Any, attribute: attrs.Attribute[int], value: int) -> None:
    if value >= instance.high:
        raise ValueError(f"must be below high, which is {instance.high}")


def _mute(instance: Any, attribute: attrs.Attribute[int], value: int) -> None:
    if value == 13:
        raise ValueError


@frozen
class Range:
    low: int = setting(0, validator=_below_high)
    high: int = setting(10, validator=_even)
    step: int = setting(2, validator=[validators.ge(1), _mute])
    computed: int = attrs.Factory(lambda self: self.low, takes_self=True)
    _hidden: int = 3
    name: str = setting("range", validator=validators.min_len(1))

    def __attrs_post_init__(self) -> None:
        if self.step > self.high:
            raise ValueError("step leads beyond high")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("high = 11", ["1:8: high: 11 is odd, which is odd"]),
        (
            "low = 11\nhigh = 11\nstep = 0",
            [
                "1:7: low: must be below high, which is 11",
                "2:8: high: 11 is odd, which is odd",
                "3:8: step: 'step' must be >= 1: 0",
            ],
        ),
        ("step = 13", ["1:8: step: not valid"]),
        ("step = 12", ["step leads beyond high"]),
        # low can't be compared with a high that is not even a number, and not with the default in its stead.
        ("low = 20\nhigh = 'x'", ['2:8: high: expected a whole number, got the string "x"']),
        # A field that is sound in itself is validated although another is not.
        (
            "high = 11\nstep = 'x'",
            ["1:8: high: 11 is odd, which is odd", '2:8: step: expected a whole number, got the string "x"'],
        ),
        ("name = ''", ["1:8: name: Length of 'name' must be >= 1: 0"]),
        ("hiden = 1", ["1:1: hiden: unknown key; did you mean 'hidden'?"]),
    ],
)
def test_validators_tell_what_is_wrong(text: str, expected: list[str]) -> None:
    """The text of a validator's ValueError is the problem's; all validators are asked."""
    separated = [problem if problem[0].isdigit() else f" {problem}" for problem in expected]

    assert problems(text, Range, ()) == [f"bad.toml:{problem}" for problem in separated]


def test_a_class_that_objects_as_a_whole_is_located_at_its_table() -> None:
    """What __attrs_post_init__ refuses is a problem of the table."""
    assert problems("[a]\nstep = 12\n", Range, ("a",)) == ["bad.toml:1:2: a: step leads beyond high"]


def test_a_private_field_has_the_name_of_its_argument() -> None:
    """The key of a field is what the class's constructor calls it."""
    assert read("hidden = 4", Range, ())._hidden == 4


@frozen
class Group:
    members: tuple[str, ...] = setting((), validator=validators.min_len(1))
    size: int = setting(1)


def test_a_default_that_is_refused_is_located_at_the_table() -> None:
    """A default may be there to be refused: the problem is on the line where the table begins."""
    text = "\n[group]\nsize = 'x'\n"

    assert problems(text, Group, ("group",)) == [
        "bad.toml:2: group.members: Length of 'members' must be >= 1: 0",
        'bad.toml:3:8: group.size: expected a whole number, got the string "x"',
    ]
    assert problems("", Group, ("group",)) == ["bad.toml: group.members: Length of 'members' must be >= 1: 0"]


# Secrets


def _tell(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value:
        raise ValueError(f"{value} ({value!r}) is too well known")


@frozen
class Login:
    password: str = setting(secret=True, validator=_tell)


@frozen
class Vault:
    key: str | None = setting(None, secret=True, one_of=["correct horse"])
    pin: int = setting(0, secret=True, unit="s", maximum=5)
    tokens: dict[str, tuple[str, ...]] = setting(factory=dict, secret=True, validator=_tell)
    logins: tuple[Login, ...] = setting(())
    open: Path | None = setting(None, secret=True)

    def __attrs_post_init__(self) -> None:
        if self.open:
            raise ValueError(f"can't open {self.open} with {self.pin}")


@frozen
class Inner:
    code: str = setting(secret=True)


@frozen
class Safe:
    password: str = setting(secret=True)
    inner: Inner = setting()

    def __attrs_post_init__(self) -> None:
        raise ValueError(f"{self.password} and {self.inner.code} do not match")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('key = "correct hose"', '1:7: key: expected "correct horse", got the string "***"'),
        ("key = 1.5", '1:7: key: expected "correct horse", got ***'),
        ("pin = 1234", '1:7: pin: expected a whole number of seconds not above 5 or a duration like "30 s", '
         "got ***"),
        ('pin = "9 s"', '1:7: pin: expected a whole number of seconds not above 5 or a duration like "30 s", '
         'got the string "***"'),
        ('logins = [{password = "it\'s\\u0007me"}]',
         "1:23: logins[0].password: *** ('***') is too well known"),
        ("tokens = {a = ['x y', 5]}", "1:23: tokens.a[1]: expected a string, got ***"),
    ],
)  # fmt: skip
def test_secrets_are_never_shown(text: str, problem: str) -> None:
    """A problem with a secret tells everything but the secret, whoever words it."""
    if "\\u0007" in text:  # a representation in double quotes, as Python chooses for an apostrophe
        problem = problem.replace("('***')", '("***")')

    assert problems(text, Vault, ()) == [f"bad.toml:{problem}"]


def test_what_is_within_a_secret_is_secret() -> None:
    """The texts of a list or table of secrets are masked in the words of validators, too."""
    assert problems("tokens = {a = ['hunter2', 'swordfish']}", Vault, ()) == [
        "bad.toml:1:10: tokens: {'a': ('***', '***')} ({'a': ('***', '***')}) is too well known"
    ]
    assert problems("tokens = {a = ['hunter2']}\nopen = 'swordfish'", Vault, ()) == [
        "bad.toml:1:10: tokens: {'a': ('***',)} ({'a': ('***',)}) is too well known"
    ]


def test_the_class_may_object_without_showing_a_secret() -> None:
    """Secrets are masked in what __attrs_post_init__ says, those of inner tables included."""
    text = "password = 'hunter2'\ninner.code = 'swordfish'\n"

    assert problems(text, Safe, ()) == ["bad.toml: *** and *** do not match"]
    assert problems("open = '/home/x'\npin = '4 s'", Vault, ()) == ["bad.toml: can't open *** with ***"]


def test_representations_hide_secrets() -> None:
    """The representation shows whether a secret is set, and never what it is."""
    assert repr(Inner(code="swordfish")) == "Inner(code='***')"
    assert "password=None" in repr(Broker())


# What authors get wrong


@frozen
class Node:
    child: Node | None = setting(None)


@pytest.mark.parametrize(
    ("cls", "text"),
    [
        (int, "int is not an attrs class"),
        (Node, "Node contains itself, which settings can't"),
        (attrs.make_class("C", {"x": setting(0)}), "C.x: the type None is not supported in settings"),
    ],
)
def test_a_class_that_can_not_be_settings_is_a_type_error(cls: type[Any], text: str) -> None:
    """What a settings class can't be is told to its author, not to the operator."""
    with pytest.raises(TypeError) as raised:
        parse(cls, Document.empty(), ())

    assert str(raised.value) == text


class Shade(enum.Enum):
    LIGHT = (1, 2)


class Nothing(enum.Enum):
    pass


@pytest.mark.parametrize(
    ("annotation", "declared", "text"),
    [
        (bytes, setting(b""), "the type bytes is not supported in settings"),
        (complex | None, setting(None), "the type complex is not supported in settings"),
        (dict[int, str], setting(None), "the type dict[int, str] is not supported in settings"),
        (tuple[int, str], setting(None), "the type tuple[int, str] is not supported in settings"),
        (list, setting(None), "the type list is not supported in settings"),
        (Any, setting(None), "the type Any is not supported in settings"),
        (Shade, setting(None), f"{Shade} has values that TOML can't say"),
        (Nothing, setting(None), f"{Nothing} has values that TOML can't say"),
        (Literal[None, b"x"], setting(None), "typing.Literal[None, b'x'] has values that TOML can't say"),
        (str, setting("", minimum=1), "only numbers have a minimum or maximum"),
        (list[bool], setting(None, maximum=1), "only numbers have a minimum or maximum"),
        (bool, setting(True, one_of=[True]), "one_of is for strings and numbers"),
    ],
)
def test_a_field_that_can_not_be_a_setting_is_a_type_error(annotation: Any, declared: Any, text: str) -> None:
    """The class and the field at fault are named."""
    cls = attrs.define(type("C", (), {"__annotations__": {"x": annotation}, "x": declared}))

    with pytest.raises(TypeError) as raised:
        parse(cls, Document.empty(), ())

    assert str(raised.value) == f"C.x: {text}"


def test_a_plain_attrs_class_is_a_settings_class_too() -> None:
    """Fields made without setting() have no limits and no help."""

    @attrs.define
    class Plain:
        x: int
        y: Literal["a", None] = None

    assert read("x = 1\ny = 'a'", Plain, ()) == Plain(1, "a")


# The level above


def test_unknown_tables_are_reported_in_the_order_of_the_file() -> None:
    """What the caller does not know is located, with the nearest spelling."""
    document = Document.parse("[broker]\n[plugin.x]\n[[listner]]\n[xyzzy]\n", "bad.toml")

    assert unknown_tables(document, (), ["broker", "plugins", "listener"]) == [
        "bad.toml:2:2: plugin: unknown table; did you mean 'plugins'?",
        "bad.toml:3:3: listner: unknown table; did you mean 'listener'?",
        "bad.toml:4:2: xyzzy: unknown table",
    ]


def test_unknown_tables_are_found_within_a_table() -> None:
    """A level below, the path is part of the name; what is no table is called a key."""
    document = Document.parse("[plugins]\nauth_fil = 5\nauth_redis.x = 1\n", "bad.toml")

    assert unknown_tables(document, ("plugins",), ["auth_file", "auth_redis"]) == [
        "bad.toml:2:1: plugins.auth_fil: unknown key; did you mean 'auth_file'?"
    ]


@pytest.mark.parametrize(
    ("text", "path", "expected"),
    [
        ("", ("plugins",), []),
        ("plugins = 5", ("plugins",), ["bad.toml:1:11: plugins: expected a table, got 5"]),
        ("plugins = 5", ("plugins", "x"), ["bad.toml:1:11: plugins: expected a table, got 5"]),
    ],
)
def test_a_level_that_is_no_table_is_one_problem(text: str, path: tuple[str, ...], expected: list[str]) -> None:
    """An absent level has no unknown tables; a value in its place is a problem."""
    assert unknown_tables(Document.parse(text, "bad.toml"), path, ["a"]) == expected


# A section whose keys are names


@frozen
class Named:
    size: int = setting(1)
    rules: dict[str, Rule] = setting(factory=dict, others=True, validator=lambda i, a, rules: _refuse_x(rules))


def _refuse_x(rules: dict[str, Rule]) -> None:
    if "x" in rules:
        raise ValueError("x is no name")


def test_a_field_can_have_all_other_keys() -> None:
    """A section then has tables by name, beside its own keys."""
    document = Document.parse("[named]\nsize = 2\n[named.one]\nrate = 1.5\n[named.two]\nrate = 2\n")

    parsed = parse(Named, document, ("named",), environ={"KINMQTT__NAMED__TWO__RATE": "3"})

    assert parsed == Named(size=2, rules={"one": Rule(rate=1.5), "two": Rule(rate=3.0)})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[named]\none = 3\n", "<settings>:2:7: named.one: expected a table, got 3"),
        ("[named.one]\nrat = 3\n", "<settings>:2:1: named.one.rat: unknown key; did you mean 'rate'?"),
        ("[named.x]\nrate = 1\n", "<settings>:1:2: named: x is no name"),
    ],
)
def test_problems_with_other_keys_have_their_places(text: str, expected: str) -> None:
    """As those of any other table."""
    with pytest.raises(SettingsError) as caught:
        parse(Named, Document.parse(text), ("named",))

    assert expected in caught.value.problems


def test_only_a_dict_can_have_all_other_keys() -> None:
    """Anything else is a mistake of the class."""

    @frozen
    class Wrong:
        rest: int = setting(1, others=True)

    with pytest.raises(TypeError, match="only a dict has all other keys"):
        parse(Wrong, Document.empty(), ())
