"""The settings file, the environment and the command line, as settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from kinmqtt.config import Overrides, Settings, default_data_directory, load
from kinmqtt.settings import DEFAULT_ENDPOINT, LimitSettings, ListenerLimitSettings
from kinmqtt_spi.errors import SettingsError
from kinmqtt_spi.settings import setting


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the settings file of a test is, in the working directory, beside files that settings name."""
    monkeypatch.chdir(tmp_path)
    for name in ("c.pem", "k.pem"):
        (tmp_path / name).touch()
    return tmp_path / "kinmqtt.toml"


def loaded(file: Path, text: str, overrides: Overrides = Overrides(), **environment: str) -> Settings:  # noqa: B008
    """The settings that a file's text makes."""
    file.write_text(text)
    return load(file, overrides, environment)


def problems(file: Path, text: str, **environment: Any) -> list[str]:
    """What is wrong with a file's text, without the folder."""
    with pytest.raises(SettingsError) as caught:
        loaded(file, text, **environment)
    return [problem.replace(str(file), "k.toml") for problem in caught.value.problems]


def listening(settings: Settings) -> dict[str, str]:
    """Each listener's name and place."""
    return {name: place for name, place, _ in settings.listeners}


def test_without_a_file_the_defaults_hold() -> None:
    """With nothing configured the broker listens on loopback only."""
    settings = load(None, Overrides(), {"PATH": "/bin"})

    assert listening(settings) == {DEFAULT_ENDPOINT: "broker.listen"}
    assert settings.broker.allow_anonymous is None
    assert settings.selection.named == frozenset()


def test_the_tables_are_read(file: Path) -> None:
    """Every table of the file comes to its place."""
    settings = loaded(
        file,
        """
        broker = {listen = ["1884"], allow_anonymous = true}
        limits.max_inflight = 7
        services = {subscription = "hash"}
        [plugins]
        order = ["b", "a"]
        only = ["a", "b"]
        disabled = ["anonymous"]
        [plugins.guard]
        colour = "red"
        """,
    )

    assert settings.broker.listen == ("1884",)
    assert settings.broker.allow_anonymous is True
    assert settings.limits.max_inflight == 7
    selection = settings.selection
    assert (selection.order, selection.only) == (("b", "a"), ("a", "b"))
    assert selection.disabled == {"anonymous"}
    assert selection.services == {"subscription": "hash"}
    assert selection.sections == {"guard"}
    assert selection.named == {"a", "b", "hash", "guard"}


def test_the_command_line_rules(file: Path) -> None:
    """What the command line says holds over what the file says."""
    overrides = Overrides(("1885",), "memory", True, ("hash",))

    settings = loaded(
        file,
        '[broker]\nlisten = ["1884"]\nallow_anonymous = false\n[plugins]\ndisabled = ["anonymous"]\n',
        overrides,
    )

    assert listening(settings) == {"1885": "--listen"}
    assert settings.broker.allow_anonymous is True
    assert settings.selection.disabled == {"anonymous", "hash"}


def test_the_environment_rules_over_the_file(file: Path) -> None:
    """A variable sets what its name says, over the file."""
    settings = loaded(file, "[limits]\nmax_inflight = 7\n", KINMQTT__LIMITS__MAX_INFLIGHT="9")

    assert settings.limits.max_inflight == 9


def test_where_things_are_named(file: Path) -> None:
    """Messages can say file, line and key of each plugin's name, and of the listeners."""
    settings = loaded(
        file,
        '[broker]\nlisten = ["1"]\n[services]\nqueue = "q"\n[plugins]\norder = ["o"]\n[plugins.s]\nx = 1\n',
        Overrides(disabled=("d",)),
    )

    places = {name: place.replace(str(file), "k.toml") for name, place in settings.selection.places.items()}
    assert places == {
        "d": "-P no:d",
        "o": "k.toml:6: plugins.order",
        "q": "k.toml:4: services.queue",
        "s": "k.toml:7: plugins.s",
    }
    assert listening(settings) == {"1": f"{file}:2: broker.listen"}


MISTAKES = [
    ("[brokr]\n", ["k.toml:1:2: brokr: unknown table; did you mean 'broker'?"]),
    ('[broker]\nlistn = ["1"]\n', ["k.toml:2:1: broker.listn: unknown key; did you mean 'listen'?"]),
    ("[broker]\nlisten = 5\n", ["k.toml:2:10: broker.listen: expected a list, each element a string, got 5"]),
    ("broker = 3\n", ["k.toml:1:10: broker: expected a table, got 3"]),
    ("plugins = 3\n", ["k.toml: plugins: expected a table"]),
    ("[plugins]\norder = 3\n", ["k.toml:2: plugins.order: expected a list of plugin names"]),
    ("[plugins]\nonly = [3]\n", ["k.toml:2: plugins.only: expected a list of plugin names"]),
    (
        "[plugins]\nguard = 3\n",
        ["k.toml:2: plugins.guard: unknown key; expected order, only, disabled, or a plugin's own table"],
    ),
]


@pytest.mark.parametrize(("text", "expected"), MISTAKES)
def test_a_mistake_is_located(file: Path, text: str, expected: list[str]) -> None:
    """Each mistake has file, line, key, what was expected and the nearest spelling."""
    assert problems(file, text) == expected


def test_bad_toml_is_located(file: Path) -> None:
    """Of a file that is no TOML the first fault is told, with line and column."""
    [problem] = problems(file, "[broker\n")

    assert problem.startswith("k.toml:1:8: ")


@pytest.mark.parametrize(
    ("name", "text", "is_mosquittos"),
    [
        ("mosquitto.conf", "user mosquitto\n", True),
        ("my-mosquitto.conf", "colour\n", True),
        ("k.toml", "# hello\n\nlistener 1883\nallow_anonymous true\n", True),
        ("k.toml", "[broker\n", False),
        ("k.toml", "user = \n", False),
    ],
)
def test_a_file_of_mosquittos_is_known(tmp_path: Path, name: str, text: str, is_mosquittos: bool) -> None:
    """Whoever hands over what they have is told where it says what becomes of it."""
    file = tmp_path / name

    [problem] = problems(file, text)

    hint = "; this looks like a settings file of Mosquitto: docs/from-mosquitto.md"
    assert problem.endswith(hint) is is_mosquittos


def test_all_mistakes_at_once(file: Path) -> None:
    """A person who made several mistakes hears of all of them."""
    found = problems(file, "[limits]\nmax_inflight = 0\n[brokr]\n[plugins]\norder = 3\n", KINMQTT__BROKER__LISTN="1")

    assert [problem.split(": ")[1] for problem in found] == [
        "brokr",
        "limits.max_inflight",
        "plugins.order",
        "sets nothing; did you mean KINMQTT__BROKER__LISTEN?",
    ]


def test_state_must_have_a_place() -> None:
    """An empty place for state is refused instead of being taken for another."""
    with pytest.raises(SettingsError, match="--data: name a directory, or memory"):
        load(None, Overrides(data=""), {})


@pytest.mark.parametrize(
    ("environment", "is_root", "expected"),
    [
        ({"STATE_DIRECTORY": "/var/lib/one:/var/lib/two", "XDG_STATE_HOME": "/x"}, True, "/var/lib/one"),
        ({}, True, "/var/lib/kinmqtt"),
        ({"XDG_STATE_HOME": "/x"}, False, "/x/kinmqtt"),
        ({}, False, str(Path.home() / ".local/state/kinmqtt")),
    ],
)
def test_where_state_is_kept_when_nobody_says(environment: dict[str, str], is_root: bool, expected: str) -> None:
    """Systemd's directory, then the system's or the user's."""
    assert str(default_data_directory(environment, is_root)) == expected


def test_the_command_line_says_where_state_is_kept(tmp_path: Path) -> None:
    """`--data` over `broker.data` over the default; `memory` is no directory."""
    file = tmp_path / "k.toml"
    file.write_text('[broker]\ndata = "here"\n')

    assert load(file, Overrides(), {}).broker.data_directory == Path("here").absolute()
    assert load(file, Overrides(data="memory"), {}).broker.data_directory is None
    assert load(None, Overrides(), {"STATE_DIRECTORY": "/s"}).broker.data_directory == Path("/s")


# The plugins' own sections


@frozen
class GuardSettings:
    """The settings of a plugin."""

    colour: str = setting("blue", help="the colour")


def coloured(colour: str) -> GuardSettings:
    """What the plugin gets for a colour."""
    return GuardSettings(colour=colour)


def test_a_plugin_s_section(file: Path) -> None:
    """A plugin's section is parsed into its settings class, and so are the variables for it."""
    text = '[plugins.guard]\ncolour = "red"\n'

    assert loaded(file, text).for_plugin("guard", GuardSettings) == coloured("red")
    assert loaded(file, "").for_plugin("guard", GuardSettings) == coloured("blue")
    changed = loaded(file, text, KINMQTT__PLUGINS__GUARD__COLOUR="green")
    assert changed.for_plugin("guard", GuardSettings) == coloured("green")


def test_a_variable_for_a_plugin_without_a_section(file: Path) -> None:
    """A plugin may be set up by variables alone."""
    settings = load(None, Overrides(), {"KINMQTT__PLUGINS__GUARD__COLOUR": "green"})

    assert settings.for_plugin("guard", GuardSettings) == coloured("green")
    settings.check_plugin_variables()


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("KINMQTT__PLUGINS__GUARD__COLOR", "; did you mean KINMQTT__PLUGINS__GUARD__COLOUR?"),
        ("KINMQTT__PLUGINS__X__Y", ""),
    ],
)
def test_a_variable_that_no_plugin_reads(variable: str, hint: str) -> None:
    """A variable for a plugin that isn't there, or that has no such setting, is refused."""
    settings = load(None, Overrides(), {variable: "green"})
    settings.for_plugin("guard", GuardSettings)

    with pytest.raises(SettingsError) as caught:
        settings.check_plugin_variables()

    assert caught.value.problems == (f"{variable}: sets nothing{hint}",)


def test_a_section_does_not_hide_a_misspelt_variable(file: Path) -> None:
    """A variable that sets nothing of the broker's is refused, whatever sections the file has for plugins."""
    found = problems(file, "[plugins.guard]\nx = 1\n", KINMQTT__BROKER__LISTN="1")

    assert found == ["KINMQTT__BROKER__LISTN: sets nothing; did you mean KINMQTT__BROKER__LISTEN?"]


def test_a_mistake_in_a_plugin_s_section(file: Path) -> None:
    """A plugin's section is checked as strictly as the broker's own."""
    settings = loaded(file, '[plugins.guard]\ncolor = "red"\n')

    with pytest.raises(SettingsError, match=r"2:1: plugins\.guard\.color: unknown key; did you mean 'colour'\?"):
        settings.for_plugin("guard", GuardSettings)


def test_a_section_that_nobody_reads(file: Path) -> None:
    """A section of a plugin that has no settings is refused."""
    settings = loaded(file, "[plugins.guard]\nx = 1\n")

    with pytest.raises(SettingsError, match=r":1: plugins\.guard: the plugin takes no settings; remove"):
        settings.for_plugin("guard", None)
    assert loaded(file, "").for_plugin("guard", None) is None


# Listeners

TABLES = """\
[listeners.public]
endpoint = "tcp:8883"
authenticators = ["scram"]
tls = { certificate = "c.pem", private_key = "k.pem" }

[listeners.public.limits]
max_connections = 5

[listeners.web]
endpoint = "127.0.0.1:8083"
websocket = { path = "/mqtt" }
proxy_protocol = true
"""


def test_listeners_have_tables(file: Path) -> None:
    """Each with its name and what it says of itself; the default endpoint is not listened on besides."""
    settings = loaded(file, TABLES)
    public, web = (listener for _, _, listener in settings.listeners)

    assert listening(settings) == {"public": f"{file}:1: listeners.public", "web": f"{file}:9: listeners.web"}
    assert public.tls is not None
    assert (public.tls.certificate, public.tls.minimum_version) == (Path("c.pem"), "1.2")
    assert (public.limits.max_connections, public.authenticators) == (5, ("scram",))
    assert web.websocket is not None
    assert (web.websocket.path, web.proxy_protocol, web.tls) == ("/mqtt", True, None)


def test_listed_endpoints_stand_beside_tables(file: Path) -> None:
    """`listen` and the tables add up; the command line replaces both."""
    text = '[broker]\nlisten = ["ws:8080"]\n' + TABLES

    assert list(listening(loaded(file, text))) == ["ws:8080", "public", "web"]
    assert list(listening(loaded(file, text, Overrides(("1883",))))) == ["1883"]


def test_websocket_in_one_word(file: Path) -> None:
    """`ws:` in front of an endpoint."""
    [(name, _, listener)] = loaded(file, '[broker]\nlisten = ["ws:127.0.0.1:8080"]\n').listeners

    assert (name, listener.endpoint) == ("ws:127.0.0.1:8080", "127.0.0.1:8080")
    assert listener.websocket is not None


def test_a_listeners_limits_stand_over_the_brokers() -> None:
    """What a listener says nothing about is as in [limits]; its count of connections is its own."""
    broker = LimitSettings(max_connections=9, receive_maximum=7)

    merged = ListenerLimitSettings(max_connections=5, max_packet_bytes=100).over(broker)

    assert (merged.max_connections, merged.receive_maximum, merged.max_packet_bytes) == (9, 7, 100)


WRONG_LISTENERS = [
    ("[listeners.a]\n", "k.toml:1: listeners.a.endpoint: required key is missing (a string)"),
    ("[listeners.a]\nendpoint = '1'\nauthenticators = []\n", "authenticators is empty: name plugins"),
    ("[listeners.a]\nendpoint = '1'\ntlss = {}\n", "listeners.a.tlss: unknown key; did you mean 'tls'?"),
    (
        "[listeners.a]\nendpoint = '1'\ntls = {certificate = 'c'}\n",
        "listeners.a.tls.private_key: required key is missing",
    ),
    (
        "[listeners.a]\nendpoint='1'\ntls = {certificate = 'c', private_key = 'k', client_certificates='optional'}\n",
        "client_certificates needs client_ca",
    ),
    (
        "[listeners.a]\nendpoint = '1'\ntls = {certificate = 'c', private_key = 'k', username_from = 'subject'}\n",
        'need client_certificates = "optional" or "required"',
    ),
    ("[listeners.a]\nendpoint = '1'\nwebsocket = {path = 'mqtt'}\n", "path 'mqtt' does not begin with a slash"),
    ("[listeners.a]\nendpoint = '1'\nwebsocket = {origins = ['x.org']}\n", "origin 'x.org' has no scheme"),
    ("listeners = 5\n", "k.toml: listeners: expected tables [listeners.NAME]"),
    (
        "[listeners]\nendpoint = 'tcp:1'\n",
        "k.toml:2: listeners.endpoint: each listener's table has a name, such as [listeners.main]",
    ),
    ("[broker]\nlisten = []\n", "k.toml:2: broker.listen is empty: name at least one endpoint"),
]


@pytest.mark.parametrize(("text", "problem"), WRONG_LISTENERS)
def test_a_mistake_in_a_listener_is_located(file: Path, text: str, problem: str) -> None:
    """With file, line, key, and what was expected."""
    [found] = problems(file, text)

    assert problem in found


def test_a_listener_is_set_by_a_variable(file: Path) -> None:
    """Over what the file says."""
    settings = loaded(file, TABLES, KINMQTT__LISTENERS__WEB__ENDPOINT="127.0.0.1:9001")

    assert [listener.endpoint for _, _, listener in settings.listeners] == ["tcp:8883", "127.0.0.1:9001"]
