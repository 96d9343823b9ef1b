"""Finding plugins and loading them: entry points, names that are taken, modules that can't be imported."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kinmqtt.builtins import BUILTINS, DEFAULTS
from kinmqtt.hooks.discovery import RESERVED_NAMES, Candidate, builtin_candidates, installed_candidates
from kinmqtt.hooks.manager import PROVIDERS
from kinmqtt_spi.errors import AssemblyError


class Package(Distribution):
    """An installed distribution that is not installed."""

    def __init__(self, name: str, version: str = "1.0") -> None:
        self._text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"

    def read_text(self, filename: str) -> str | None:
        return self._text if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Path:
        return Path(path)


def point(name: str, target: str, package: str = "kinmqtt-demo") -> EntryPoint:
    """An entry point of a distribution."""
    found = EntryPoint(name, target, "kinmqtt.plugins")
    vars(found)["dist"] = Package(package)
    return found


@pytest.fixture
def module() -> Iterator[ModuleType]:
    """A module that can be imported as ``demo_plugin``."""
    made = ModuleType("demo_plugin")
    sys.modules["demo_plugin"] = made
    yield made
    del sys.modules["demo_plugin"]


# Finding


def test_installed_plugins_are_found_by_name() -> None:
    """Each entry point is a candidate that says where it comes from, in the order of names."""
    found = installed_candidates([point("b", "two:Two"), point("a", "one", "kinmqtt-one")])

    assert found == [
        Candidate("a", "kinmqtt-one 1.0", "one", False),
        Candidate("b", "kinmqtt-demo 1.0", "two:Two", False),
    ]


def test_an_entry_point_of_nobody_is_found_too() -> None:
    """An entry point without a distribution is used, and said to be of an unknown one."""
    [found] = installed_candidates([EntryPoint("a", "one", "kinmqtt.plugins")])

    assert found.source == "unknown distribution"


def test_two_plugins_of_one_name_are_refused() -> None:
    """Both distributions are named, and what to do."""
    twins = [point("a", "one", "kinmqtt-one"), point("a", "two", "kinmqtt-two")]

    with pytest.raises(AssemblyError, match=r"two plugins are named 'a': one of kinmqtt-one 1\.0 \(one\) and one of"):
        installed_candidates(twins)


def test_one_plugin_found_twice_is_one() -> None:
    """The same distribution seen through two entries of the Python path is no conflict."""
    found = installed_candidates([point("a", "one"), point("a", "one")])

    assert [candidate.name for candidate in found] == ["a"]


@pytest.mark.parametrize("name", sorted(RESERVED_NAMES))
def test_keys_of_the_settings_are_no_plugins_names(name: str) -> None:
    """A plugin can't be named after a key of the [plugins] table."""
    with pytest.raises(AssemblyError, match=rf"^kinmqtt-demo 1\.0 names a plugin '{name}', which is a key of"):
        installed_candidates([point(name, "one")])


@pytest.mark.parametrize("name", sorted(BUILTINS))
def test_names_of_built_ins_are_taken(name: str) -> None:
    """A plugin can't take the place of a built-in by its name."""
    with pytest.raises(AssemblyError, match=rf"names a plugin '{name}', the name of a built-in; rename it"):
        installed_candidates([point(name, "one")])


def test_every_built_in_can_be_loaded() -> None:
    """The list of built-ins leads to plugins, each with its own name."""
    loaded = {candidate.name: candidate.load() for candidate in builtin_candidates()}

    assert list(loaded) == list(BUILTINS)
    assert None not in loaded.values()


def test_every_exclusive_family_has_a_built_in() -> None:
    """Without any installed plugin each service has a provider, except the arbiter, which a broker may do without."""
    assert DEFAULTS.keys() == PROVIDERS.keys() - {"arbiter"}
    assert set(DEFAULTS.values()) <= BUILTINS.keys()


# Loading


def test_a_module_may_be_a_plugin(module: ModuleType) -> None:
    """A target without an attribute is the module itself."""
    assert Candidate("a", "test", "demo_plugin", False).load() is module


def test_an_object_may_be_a_plugin(module: Any) -> None:
    """An attribute, dotted or not, is used as it is."""
    module.outer = ModuleType("outer")
    module.outer.plugin = object()

    assert Candidate("a", "test", "demo_plugin:outer.plugin", False).load() is module.outer.plugin


def test_a_class_is_made_an_instance(module: Any) -> None:
    """Of a class the one instance is made, without arguments."""

    class Plugin:
        pass

    module.Plugin = Plugin

    assert isinstance(Candidate("a", "test", "demo_plugin:Plugin", False).load(), Plugin)


def test_a_plugin_that_is_handed_in_is_taken_as_it_is() -> None:
    """Nothing is imported for a plugin object that is there already."""
    plugin = object()

    assert Candidate("a", "test", "no_such_module", False, plugin).load() is plugin


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("no_such_module_anywhere", "ModuleNotFoundError: No module named 'no_such_module_anywhere'"),
        ("demo_plugin:Missing", "AttributeError: module 'demo_plugin' has no attribute 'Missing'"),
        ("demo_plugin:Broken", "ValueError: broken"),
    ],
)
def test_a_plugin_that_cannot_be_loaded_is_named(module: Any, target: str, problem: str) -> None:
    """Whatever the import or the constructor raises, the plugin, its distribution and target are told."""

    class Broken:
        def __init__(self) -> None:
            raise ValueError("broken")

    module.Broken = Broken

    with pytest.raises(AssemblyError) as caught:
        Candidate("a", "kinmqtt-demo 1.0", target, False).load()

    assert str(caught.value) == (
        f"plugin 'a' (kinmqtt-demo 1.0) can't be loaded from {target}: {problem}; repair it, uninstall it, or leave "
        "it out with -P no:a"
    )
