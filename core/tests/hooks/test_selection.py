"""Which plugins are used, and in which order: what the settings say about them."""

from __future__ import annotations

import pytest

from kinmqtt.hooks.discovery import Candidate
from kinmqtt.hooks.selection import Choice, Selection, choose
from kinmqtt_spi.errors import AssemblyError

INSTALLED = [Candidate(name, f"kinmqtt-{name} 1.0", name, False) for name in ("redis", "bridge", "ldap")]
BUILT_IN = [Candidate(name, "built-in", name, True) for name in ("trie", "memory", "anonymous")]
CANDIDATES = [*BUILT_IN, *INSTALLED]


def names(choices: list[Choice]) -> list[str]:
    """The names of the active ones, in order."""
    return [choice.candidate.name for choice in choices if choice.active]


def why(choices: list[Choice], name: str) -> tuple[bool, str]:
    """Whether and why one is used."""
    [choice] = [choice for choice in choices if choice.candidate.name == name]
    return choice.active, choice.why


def test_installed_plugins_stand_by_name_before_the_built_ins() -> None:
    """Without settings every plugin is used; the built-ins keep their own order behind the others."""
    choices = choose(CANDIDATES, Selection())

    assert names(choices) == ["bridge", "ldap", "redis", "trie", "memory", "anonymous"]
    assert why(choices, "redis") == (True, "installed")
    assert why(choices, "trie") == (True, "built-in")


def test_order_comes_first() -> None:
    """Those in plugins.order go before all others, in that order, built-ins included."""
    choices = choose(CANDIDATES, Selection(order=("redis", "anonymous")))

    assert names(choices) == ["redis", "anonymous", "bridge", "ldap", "trie", "memory"]


def test_order_is_not_an_allow_list() -> None:
    """Plugins that plugins.order leaves out are used all the same."""
    choices = choose(CANDIDATES, Selection(order=("ldap",)))

    assert why(choices, "bridge") == (True, "installed")
    assert why(choices, "ldap") == (True, "named in the settings")


def test_only_leaves_the_built_ins_alone() -> None:
    """plugins.only switches the other installed plugins off, and no built-in."""
    choices = choose(CANDIDATES, Selection(only=("ldap",)))

    assert names(choices) == ["ldap", "trie", "memory", "anonymous"]
    assert why(choices, "redis") == (False, "not among plugins.only")


def test_an_empty_only_leaves_nothing_but_the_built_ins() -> None:
    """An empty allow-list is a list, and not the absence of one."""
    assert names(choose(CANDIDATES, Selection(only=()))) == ["trie", "memory", "anonymous"]


def test_disabled_holds_for_built_ins_too() -> None:
    """plugins.disabled switches off whatever it names."""
    choices = choose(CANDIDATES, Selection(disabled=frozenset({"anonymous", "bridge"})))

    assert names(choices) == ["ldap", "redis", "trie", "memory"]
    assert why(choices, "anonymous") == (False, "disabled by the settings")


def test_only_leaves_out_what_order_names_as_well() -> None:
    """A plugin that has a place in the order but is not allowed is not used."""
    choices = choose(CANDIDATES, Selection(order=("ldap",), only=("redis",)))

    assert names(choices) == ["redis", "trie", "memory", "anonymous"]


@pytest.mark.parametrize(
    "selection",
    [
        Selection(order=("ldab",)),
        Selection(only=("ldab",)),
        Selection(disabled=frozenset({"ldab"})),
        Selection(services={"queue": "ldab"}),
        Selection(sections=frozenset({"ldab"})),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(selection: Selection) -> None:
    """Wherever the settings name a plugin that nobody has, the one they may have meant is told."""
    with pytest.raises(AssemblyError, match=r"^no plugin named 'ldab' is installed; did you mean 'ldap'\?$"):
        choose(CANDIDATES, selection)


def test_an_unknown_name_like_no_other_gets_other_advice() -> None:
    """Where no name is near, the command that lists them is told."""
    with pytest.raises(AssemblyError, match="no plugin named 'postgres' is installed; `kinmqtt plugins` lists"):
        choose(CANDIDATES, Selection(order=("postgres",)))


def test_all_mistakes_are_told_at_once() -> None:
    """One start is enough to learn of every name to mend."""
    selection = Selection(order=("ldab", "ldap"), disabled=frozenset({"ldap", "postgres"}))

    with pytest.raises(AssemblyError) as caught:
        choose(CANDIDATES, selection)

    assert str(caught.value).splitlines() == [
        "no plugin named 'ldab' is installed; did you mean 'ldap'?",
        "the settings both use and disable plugin 'ldap'; remove one of the two",
        "no plugin named 'postgres' is installed; `kinmqtt plugins` lists the installed ones",
    ]


def test_the_place_of_a_name_is_told() -> None:
    """File, line and key stand before the message where they are known."""
    selection = Selection(order=("ldab",), places={"ldab": "kinmqtt.toml:3: plugins.order"})

    with pytest.raises(AssemblyError, match=r"^kinmqtt\.toml:3: plugins\.order: no plugin named 'ldab'"):
        choose(CANDIDATES, selection)


@pytest.mark.parametrize(
    "selection",
    [
        Selection(order=("ldap",), disabled=frozenset({"ldap"})),
        Selection(only=("ldap",), disabled=frozenset({"ldap"})),
        Selection(services={"queue": "ldap"}, disabled=frozenset({"ldap"})),
        Selection(sections=frozenset({"ldap"}), disabled=frozenset({"ldap"}), places={}),
    ],
)
def test_using_and_disabling_one_plugin_is_refused(selection: Selection) -> None:
    """Settings that both name and disable a plugin can't be meant."""
    with pytest.raises(AssemblyError, match="the settings both use and disable plugin 'ldap'; remove one"):
        choose(CANDIDATES, selection)


def test_named_is_whatever_the_settings_speak_of() -> None:
    """Order, allow-list, services and sections name a plugin; to disable one does not."""
    selection = Selection(("a",), ("b",), frozenset({"c"}), {"queue": "d"}, frozenset({"e"}))

    assert selection.named == {"a", "b", "d", "e"}
