"""Reads settings from a TOML file, the command line and the environment; opens and starts nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from attrs import evolve, field, frozen

from kinmqtt.hooks.discovery import RESERVED_NAMES
from kinmqtt.hooks.manager import PROVIDERS
from kinmqtt.hooks.selection import Selection
from kinmqtt.misplaced_keys import belongs_to
from kinmqtt.settings import DEFAULT_ENDPOINT, BrokerSettings, LimitSettings, ListenerSettings, from_text
from kinmqtt_spi.errors import SettingsError
from kinmqtt_spi.services.event import HoldBounds
from kinmqtt_spi.settings import (
    Document,
    KeyPath,
    parse,
    problem_with_folder,
    read_file,
    setting,
    unknown_environment,
    unknown_tables,
)

T = TypeVar("T")

TABLES: Final = ("broker", "events", "limits", "listeners", "services", "plugins")

_MOSQUITTO: Final = frozenset(
    {
        "acl_file",
        "allow_anonymous",
        "allow_zero_length_clientid",
        "autosave_interval",
        "bind_address",
        "bind_interface",
        "cafile",
        "capath",
        "certfile",
        "connection",
        "connection_messages",
        "include_dir",
        "keyfile",
        "listener",
        "log_dest",
        "log_timestamp",
        "log_type",
        "max_inflight_messages",
        "max_queued_messages",
        "password_file",
        "per_listener_settings",
        "persistence",
        "persistence_location",
        "pid_file",
        "plugin",
        "port",
        "protocol",
        "require_certificate",
        "socket_domain",
        "sys_interval",
        "user",
    }
)
"""The most frequent first keywords of lines in Mosquitto's settings."""


@frozen(slots=True)
class ServiceSettings:
    """``[services]``: the plugin that serves an exclusive family where several could."""

    subscription: str | None = setting(None, help="the subscription index: trie, hash, or a plugin")
    queue: str | None = setting(None, help="the queue store")
    retain: str | None = setting(None, help="the retain store")
    session: str | None = setting(None, help="the session store")
    event: str | None = setting(None, help="the event log")
    feed: str | None = setting(None, help="the feed of events for plugins: local_feed, or a plugin")
    cluster: str | None = setting(None, help="the cluster backend")
    arbiter: str | None = setting(
        None, help="the arbiter that decides splits of the cluster; there is no built-in one"
    )


@frozen(slots=True)
class PluginSettings:
    """``[plugins]``: the plugins in use, and the order of their hooks."""

    order: tuple[str, ...] = setting((), help="run these first, in this order")
    only: tuple[str, ...] | None = setting(None, help="of the installed plugins use only these")
    disabled: tuple[str, ...] = setting((), help="use none of these, built-ins included")


@frozen(slots=True)
class Overrides:
    """The command line's settings; they override the file's."""

    listen: tuple[str, ...] = ()
    data: str | None = None
    allow_anonymous: bool | None = None
    disabled: tuple[str, ...] = ()


@frozen(slots=True)
class Settings:
    """All settings; the plugins' sections are parsed when their plugins are known."""

    broker: BrokerSettings
    limits: LimitSettings
    events: HoldBounds
    selection: Selection
    listeners: tuple[tuple[str, str, ListenerSettings], ...]
    """Each listener's name, its place (file, line and key, or the option), and its settings."""
    _document: Document
    _environment: Mapping[str, str]
    _path: Path | None
    _overrides: Overrides

    def reread(self) -> Settings:
        """Reads the same file, command line and environment again; raises what :func:`load` does."""
        return load(self._path, self._overrides, self._environment)

    def left_by(self, new: Settings, active: Sequence[str]) -> list[str]:
        """Returns a line for each change in ``new`` that needs a restart; ``active`` are the broker's plugins."""
        before, after = self.selection, new.selection
        changed = {
            "[broker]": evolve(self.broker, listen=None) != evolve(new.broker, listen=None),
            "[events]": self.events != new.events,
            "the listeners": _unplaced(self.listeners) != _unplaced(new.listeners),
            "[services]": before.services != after.services,
            "the choice of plugins": (before.order, before.only, before.disabled)
            != (after.order, after.only, after.disabled),
        }
        left = [f"{what}: a change needs a restart" for what, is_changed in changed.items() if is_changed]
        unused = sorted(after.sections - set(active))
        return left + [f"plugins.{name}: the plugin is not in use; to use it needs a restart" for name in unused]

    def ineffective_sections(self, why_not: Mapping[str, str]) -> list[str]:
        """Returns a line for each section without an active plugin; ``why_not`` says why a plugin is not used."""
        return [
            f"{_place(self._document, 'plugins', name)}: the section has no effect: {why_not[name]}"
            for name in sorted(self.selection.sections)
            if name in why_not
        ]

    def problems_with_data_directory(self) -> list[str]:
        """Returns why the data directory is not writable; writes nothing to find out."""
        directory = self.broker.data_directory
        problem = None if directory is None else problem_with_folder(directory)
        return [] if problem is None else [f"{_place(self._document, 'broker', 'data')}: {problem}"]

    _classes: dict[str, type[Any]] = field(factory=dict, init=False, eq=False, repr=False)

    def for_plugin(self, name: str, settings_class: type[Any] | None) -> Any:
        """A plugin's section, parsed into its settings class.

        Raises :class:`SettingsError` for mistakes, and for a section that nobody reads.
        """
        if settings_class is not None:
            self._classes[name] = settings_class
            return _parsed(settings_class, self._document, ("plugins", name), self._environment)
        section = self._document.data.get("plugins", {}).get(name)
        if section:
            where = self._document.line(("plugins", name))
            line = f":{where[0]}" if where else ""
            raise SettingsError(
                [f"{self._document.name}{line}: plugins.{name}: the plugin takes no settings; remove the section"]
            )
        return None

    def check_plugin_variables(self) -> None:
        """Raise :class:`SettingsError` for plugins' environment variables that no section parsed so far has read."""
        variables = {name: value for name, value in self._environment.items() if _is_for_plugin(name)}
        known: Sequence[Any] = [(("plugins", name), settings_class) for name, settings_class in self._classes.items()]
        problems = unknown_environment(variables, known)
        if problems:
            raise SettingsError(problems)


def load(path: Path | None, overrides: Overrides, environment: Mapping[str, str]) -> Settings:
    """Read and check the settings file; without one, the defaults hold.

    Raises :class:`SettingsError` with all mistakes, each with file, line, key, what was expected and the nearest
    spelling.
    """
    document = Document.empty() if path is None else _read(path)
    problems = list(unknown_tables(document, (), TABLES, elsewhere=belongs_to))
    classes = {"broker": BrokerSettings, "limits": LimitSettings, "events": HoldBounds, "services": ServiceSettings}
    parsed: dict[str, Any] = {}
    for table, settings_class in classes.items():
        try:
            parsed[table] = _parsed(settings_class, document, (table,), environment)
        except SettingsError as error:
            problems.extend(error.problems)
    plugins, sections = _plugins(document, problems)
    tables = _listener_tables(document, environment, problems)
    known: Sequence[Any] = [
        *(((table,), settings_class) for table, settings_class in classes.items()),
        *((("listeners", name), ListenerSettings) for name in tables),
    ]
    # Variables for plugins can be checked only when the plugins are known.
    variables = {name: value for name, value in environment.items() if not _is_for_plugin(name)}
    problems.extend(unknown_environment(variables, known))
    if problems:
        raise SettingsError(problems)
    services = {family: name for family in PROVIDERS if (name := getattr(parsed["services"], family))}
    selection = Selection(
        plugins.order,
        plugins.only,
        frozenset((*plugins.disabled, *overrides.disabled)),
        services,
        frozenset(sections),
        _places(document, plugins, sections, services, overrides),
    )
    broker = _overridden(parsed["broker"], overrides, environment)
    listeners = _listeners(document, broker, tables, overrides)
    return Settings(
        broker, parsed["limits"], parsed["events"], selection, listeners, document, environment, path, overrides
    )


def _parsed(settings_class: type[T], document: Document, path: KeyPath, environment: Mapping[str, str]) -> T:
    """Parses a table into its class, and checks that the files it names exist."""
    return parse(settings_class, document, path, environ=environment, check_paths=True, elsewhere=belongs_to)


def _read(path: Path) -> Document:
    try:
        return Document.read(path)
    except SettingsError as error:
        if _is_mosquittos(path):
            hint = "; this looks like a settings file of Mosquitto: docs/from-mosquitto.md"
            raise SettingsError([f"{problem}{hint}" for problem in error.problems]) from None
        raise


def _is_mosquittos(path: Path) -> bool:
    """Whether a file that is not TOML is Mosquitto's, by its name or by the first keyword."""
    try:
        text = read_file(path).decode("utf-8", "replace")
    except SettingsError:
        return False
    first = next((line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")), [""])
    return path.name.endswith("mosquitto.conf") or (first[0] in _MOSQUITTO and first[1:2] != ["="])


def _unplaced(listeners: Sequence[tuple[str, str, ListenerSettings]]) -> list[tuple[str, ListenerSettings]]:
    """Returns the listeners without their lines in the file, which may have moved."""
    return [(name, settings) for name, _, settings in listeners]


def _is_for_plugin(variable: str) -> bool:
    return variable.upper().startswith("KINMQTT__PLUGINS__")


def _place(document: Document, *path: str) -> str:
    """Returns file, line and key for a message; the key alone where the file does not have it."""
    where = document.line(path)
    key = ".".join(path)
    return key if where is None else f"{document.name}:{where[0]}: {key}"


def _places(
    document: Document,
    plugins: PluginSettings,
    sections: Sequence[str],
    services: Mapping[str, str],
    overrides: Overrides,
) -> dict[str, str]:
    """Returns the place where the settings name each plugin; the last of several."""
    lists = {"disabled": plugins.disabled, "only": plugins.only or (), "order": plugins.order}
    places = {name: f"-P no:{name}" for name in overrides.disabled}
    for key, names in lists.items():
        places.update(dict.fromkeys(names, _place(document, "plugins", key)))
    places.update({name: _place(document, "services", family) for family, name in services.items()})
    places.update({name: _place(document, "plugins", name) for name in sections})
    return places


def _plugins(document: Document, problems: list[str]) -> tuple[PluginSettings, list[str]]:
    """Returns the keys of ``[plugins]`` itself, and the names of the sections below it."""
    table = document.data.get("plugins", {})
    if not isinstance(table, dict):
        problems.append(f"{document.name}: plugins: expected a table")
        return PluginSettings(), []
    own = {key: value for key, value in table.items() if key in RESERVED_NAMES}
    sections = [key for key in table if key not in RESERVED_NAMES]
    values: dict[str, Any] = {}
    for key, value in own.items():
        if isinstance(value, list) and all(isinstance(name, str) for name in value):
            values[key] = tuple(value)
        else:
            problems.append(f"{_place(document, 'plugins', key)}: expected a list of plugin names")
    for name in sections:
        if not isinstance(table[name], dict):
            place = _place(document, "plugins", name)
            problems.append(f"{place}: unknown key; expected order, only, disabled, or a plugin's own table")
    return PluginSettings(**values), [name for name in sections if isinstance(table[name], dict)]


def _listener_tables(
    document: Document, environment: Mapping[str, str], problems: list[str]
) -> dict[str, ListenerSettings]:
    """Returns the tables ``[listeners.NAME]``, by name."""
    tables = document.data.get("listeners", {})
    if not isinstance(tables, dict):
        problems.append(f"{document.name}: listeners: expected tables [listeners.NAME]")
        return {}
    found = {}
    for name, table in tables.items():
        if not isinstance(table, dict):
            place = _place(document, "listeners", name)
            problems.append(f"{place}: each listener's table has a name, such as [listeners.main]")
            continue
        try:
            found[name] = _parsed(ListenerSettings, document, ("listeners", name), environment)
        except SettingsError as error:
            problems.extend(error.problems)
    return found


def _listeners(
    document: Document, broker: BrokerSettings, tables: Mapping[str, ListenerSettings], overrides: Overrides
) -> tuple[tuple[str, str, ListenerSettings], ...]:
    """Returns all listeners; those of the command line replace the file's."""
    if overrides.listen:
        return tuple((name, "--listen", settings) for name, settings in map(from_text, overrides.listen))
    listed = broker.listen
    if listed is None:
        listed = () if tables else (DEFAULT_ENDPOINT,)
    place = _place(document, "broker", "listen")
    listeners = [(name, place, settings) for name, settings in map(from_text, listed)]
    listeners += [(name, _place(document, "listeners", name), settings) for name, settings in tables.items()]
    if not listeners:
        raise SettingsError([f"{place} is empty: name at least one endpoint, for example 'tcp:1883'"])
    return tuple(listeners)


def _overridden(broker: BrokerSettings, overrides: Overrides, environment: Mapping[str, str]) -> BrokerSettings:
    changes: dict[str, Any] = {}
    if overrides.data == "":
        raise SettingsError(["--data: name a directory, or memory"])
    if overrides.data is not None or broker.data is None:
        changes["data"] = overrides.data or str(default_data_directory(environment))
    if overrides.allow_anonymous is not None:
        changes["allow_anonymous"] = overrides.allow_anonymous
    return evolve(broker, **changes)


def default_data_directory(environment: Mapping[str, str], is_root: bool | None = None) -> Path:
    """Returns the default data directory: systemd's, the system's, or the user's."""
    given = environment.get("STATE_DIRECTORY", "").partition(":")[0]
    if given:
        return Path(given)
    if os.geteuid() == 0 if is_root is None else is_root:
        return Path("/var/lib/kinmqtt")
    state = environment.get("XDG_STATE_HOME") or "~/.local/state"
    try:
        return Path(state).expanduser() / "kinmqtt"
    except RuntimeError as error:
        raise SettingsError([f"broker.data: {error}; name a directory (`--data DIRECTORY`), or memory"]) from error
