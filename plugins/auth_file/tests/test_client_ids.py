"""Which client ids a user may have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred

from kinmqtt_auth_file import AuthFile, AuthFileSettings
from kinmqtt_auth_file.client_ids import ClientIds, Pattern
from kinmqtt_auth_file.hashes import Pbkdf2
from kinmqtt_spi import Client
from kinmqtt_spi.errors import SettingsError
from kinmqtt_spi.memory.plugin import BareContext
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.settings import Document, parse
from kinmqtt_spi.values import Reject

USERS = {user: f"{user}:{Pbkdf2.of(b'secret', 10)}\n" for user in ("ann", "ann-b", "bob", "carl")}


def configured(folder: Path, users: str = "ann bob", **settings: Any) -> tuple[AuthFile, BareContext]:
    """A plugin with these users, and its context."""
    file = folder / "passwords"
    file.write_text("".join(USERS[user] for user in users.split()))
    file.chmod(0o600)
    context = BareContext("auth_file", AuthFileSettings(password_file=file, **settings))
    plugin = AuthFile()
    plugin.configure(context)
    plugin.start(context)
    return plugin, context


def may(plugin: AuthFile, client_id: str, username: str | None = "ann") -> bool:
    """Whether a client may have that client id; how it is refused is looked at on the way."""
    answer: object = plugin.choose_server(Client(client_id, username))
    assert answer is None or (isinstance(answer, Reject) and answer.reason == ReasonCode.CLIENT_IDENTIFIER_NOT_VALID)
    return answer is None


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("%u", ["ann"], ["", "Ann", "ann-1", "bob", "%u"]),
        ("%u-*", ["ann-", "ann-1", "ann-b-2"], ["ann", "anna-1", "bob-1", "*"]),
        ("dev-%u", ["dev-ann"], ["dev-bob", "ann", "dev-ann2"]),
        ("dev-*", ["dev-", "dev-1"], ["ann", "1dev-"]),
        ("gate", ["gate"], ["gate1", "Gate"]),
        ("*", ["", "anything"], []),
        ("%u:%u", ["ann:ann"], ["ann:bob", "ann"]),
    ],
)
def test_a_pattern_says_which_client_ids_a_user_may_have(
    tmp_path: Path, pattern: str, good: list[str], bad: list[str]
) -> None:
    """`%u` is the user name, a `*` at the end anything, and everything else itself; 0x85 is the answer to others."""
    plugin, context = configured(tmp_path, client_ids=(pattern,))

    assert all(may(plugin, each) for each in good)
    assert not any(may(plugin, each) for each in bad)
    assert context.metrics.counter("refused", "clients").value == len(bad)


def test_a_user_may_have_patterns_of_its_own(tmp_path: Path) -> None:
    """They stand in place of those for everybody."""
    plugin, _ = configured(tmp_path, client_ids=("%u-*",), client_ids_of={"bob": ("gate-1", "gate-2")})

    assert may(plugin, "ann-1")
    assert may(plugin, "gate-2", "bob")
    assert not may(plugin, "bob-1", "bob")
    assert not may(plugin, "gate-1", "ann")


def test_patterns_of_single_users_leave_others_free(tmp_path: Path) -> None:
    """They reserve nothing: that is what patterns for everybody do."""
    plugin, _ = configured(tmp_path, client_ids_of={"bob": ("gate",)})

    assert may(plugin, "gate", "ann")
    assert may(plugin, "anything", None)
    assert not may(plugin, "other", "bob")


@pytest.mark.parametrize("no_name", [None, ""])
def test_an_anonymous_client_has_no_users_client_ids(tmp_path: Path, no_name: str | None) -> None:
    """A pattern with `%u` is not for it, one without is; an empty name is none."""
    plugin, _ = configured(tmp_path, client_ids=("%u-*", "-%u", "auto-*"), client_ids_of={"": ("x",)})

    assert may(plugin, "auto-1", no_name)
    assert not may(plugin, "ann-1", no_name)
    assert not may(plugin, "-1", no_name)
    assert not may(plugin, "-", no_name)
    assert not may(plugin, "x", no_name)


def test_without_patterns_nobody_is_asked(tmp_path: Path) -> None:
    """The hook is left out, and any client id is good."""
    plugin, context = configured(tmp_path)

    assert "choose_server" in context.left_out
    assert may(plugin, "anything")


def test_a_reload_takes_other_patterns(tmp_path: Path) -> None:
    """They hold for who connects from then on; where there were none at all, a restart is needed."""
    plugin, context = configured(tmp_path, client_ids=("%u-*",))
    without, calm = configured(tmp_path)

    told = reloaded(plugin, evolve(context.settings, client_ids=("dev-*",), client_ids_of={"bob": ("gate",)}))
    late = reloaded(without, evolve(calm.settings, client_ids=("dev-*",)))

    assert not may(plugin, "ann-1")
    assert may(plugin, "dev-1")
    assert may(plugin, "gate", "bob")
    assert (told, late) == ((), ("client_ids: what it asks for begins after a restart",))


def reloaded(plugin: AuthFile, settings: AuthFileSettings) -> Any:
    """What a reload answers."""
    return Deferred.fromCoroutine(plugin.reload(settings)).result


@given(st.text(max_size=8), st.text(min_size=1, max_size=4), st.text(max_size=8))
def test_names_are_no_patterns(before: str, username: str, client_id: str) -> None:
    """Whatever a user is called, `*`, `%u` and all, it has the client ids that begin with its very name."""
    plain = before.replace("%u", "").replace("*", "").replace("%", "")
    pattern = Pattern(f"{plain}%u-*")

    assert pattern.fits(f"{plain}{username}-{client_id}", username)
    assert pattern.fits(client_id, username) is client_id.startswith(f"{plain}{username}-")


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("", 'it is empty; "*" allows every client id'),
        ("%u*", "put a separator in between, as in '%u-*'"),
        ("a*b", "only allowed at the end"),
        ("**", "only allowed at the end"),
        ("%c-*", "%c, the client id in an acl_file, is not available"),
        ("a\tb", "control characters"),
    ],
)
@pytest.mark.parametrize("section", ["client_ids = [{}]", "client_ids_of = {{ ann = [{}] }}"])
def test_a_pattern_that_is_none_is_a_mistake(section: str, pattern: str, problem: str) -> None:
    """`kinmqtt check` says which, where, and what would be one."""
    quoted = '"' + pattern.replace("\t", "\\t") + '"'
    document = Document.parse(section.format(quoted), "k.toml")

    with pytest.raises(SettingsError) as caught:
        parse(AuthFileSettings, document, ())

    [text] = caught.value.problems
    assert text.startswith("k.toml:1:")
    assert f"pattern {pattern!r}: " in text
    assert problem in text


def test_names_that_begin_alike_are_told_of(tmp_path: Path) -> None:
    """With `-` behind the name one user may have another's client ids; so it is not with a sign that no name has."""
    _, context = configured(tmp_path, "ann ann-b", client_ids=("%u-*",))
    _, calm = configured(tmp_path, "ann ann-b", client_ids=("%u/*", "%u"))

    [note] = [text for text in context.log.texts() if "client_ids" in text]
    assert "by '%u-*' user 'ann' may have the client ids of user 'ann-b', which begin with 'ann-b-'" in note
    assert not any("client_ids" in text for text in calm.log.texts())


def test_many_names_that_begin_alike_are_told_of_in_few_words() -> None:
    """Five of them, and how many more there are."""
    notes = ClientIds(("%u-*",)).notes(["a" + "-a" * number for number in range(6)])

    assert len(notes) == 6
    assert notes[-1] == "and 10 more overlaps"


def test_patterns_of_a_user_who_does_not_exist_are_told_of(tmp_path: Path) -> None:
    """A slip of the finger would leave the user with those for everybody."""
    _, context = configured(tmp_path, client_ids_of={"bobb": ("gate",)})

    assert any("client_ids_of: there is no user 'bobb'" in text for text in context.log.texts())
