"""The plugin keeps the contracts of authenticators and authorizers, and what any plugin promises."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from twisted.internet.defer import Deferred

from kinmqtt_auth_file import AuthFile, AuthFileSettings
from kinmqtt_auth_file.hashes import Argon2id, Argon2Settings, PasswordHash, Pbkdf2
from kinmqtt_spi.memory.plugin import BareContext, TurnableClock
from kinmqtt_spi.services.authorization import Action, AuthorizationRequest
from kinmqtt_spi.testing.authentication import AuthenticationCase, AuthenticatorContract
from kinmqtt_spi.testing.authorization import UNUSUAL_NAMES, AuthorizationCase, AuthorizerContract
from kinmqtt_spi.testing.build import authorization, client, connect_request
from kinmqtt_spi.testing.driving import Driver, TurningDriver
from kinmqtt_spi.testing.plugin import PluginCase, PluginContract
from kinmqtt_spi.values import Address

T = TypeVar("T")

CHEAP = Argon2Settings(time_cost=1, memory_bytes=1 << 20)
ANN, BOB, CAROL = client("phone", "ann"), client("desk", "bob"), client("gate", "carol")
ACL = """\
topic read news
user ann
topic readwrite sensors/#
topic deny sensors/secret
user bob
topic read sensors/#
pattern readwrite people/%u/#
pattern write inbox/%c
"""


class Threads(BareContext):
    """A context whose threads are done at the clock's next turn, or break."""

    broken = False

    def in_thread(self, call: Callable[[], T]) -> Awaitable[T]:
        """Make the call in a turn to come."""
        answer: Deferred[T] = Deferred()

        def run() -> None:
            if self.broken:
                answer.errback(RuntimeError("can't start new thread"))
            else:
                answer.callback(call())

        self.clock.later(0.0, run)
        return answer


def started(clock: TurnableClock, **settings: Any) -> tuple[AuthFile, Threads]:
    """The plugin with these settings, and its context."""
    context = Threads("auth_file", AuthFileSettings(**settings), clock=clock)
    plugin = AuthFile()
    plugin.configure(context)
    plugin.start(context)
    return plugin, context


def written(path: Path, content: str) -> Path:
    """A file with this content, which takes the place of one that is there."""
    new = path.with_suffix(".new")
    new.write_text(content, encoding="utf-8")
    new.chmod(0o600)
    os.replace(new, path)
    return path


# Who comes in


class TestArgon2idPasswords(AuthenticatorContract):
    """Hashes as `kinmqtt passwd` writes them."""

    can_fail = True

    def hash_of(self, password: bytes) -> PasswordHash:
        """What stands in the file."""
        return Argon2id.of(password, CHEAP)

    @pytest.fixture
    def drive(self, clock: TurnableClock) -> Driver:
        """Lets time go: after wrong passwords an address waits."""
        return TurningDriver(clock, lambda: clock.advance(0.1))

    @pytest.fixture
    def authentication(self, clock: TurnableClock, tmp_path: Path) -> AuthenticationCase:
        users = {"ann": b"Secret of Ann", "bob": b"hunter2 hunter2", "carl v": "pässwörd: $7$ \\".encode()}
        lines = "".join(f"{user}:{self.hash_of(password)}\n" for user, password in users.items())
        plugin, context = started(clock, password_file=written(tmp_path / "passwords", lines), argon2=CHEAP)
        return AuthenticationCase(
            plugin,
            accepted=[
                connect_request(user, username=user, password=users[user], address=Address(f"192.0.2.{number}"))
                for number, user in enumerate(users)
            ],
            refused=[
                connect_request("a", username=user, password=password, address=Address(f"198.51.100.{number}"))
                for number, (user, password) in enumerate(
                    [("ann", users["bob"]), ("ANN", users["ann"]), ("stranger", users["ann"]), ("ann", None)]
                )
            ],
            foreign=[connect_request("a"), connect_request("a", username="", password=b"certainly")],
            context=context,
        )

    def failing(self, case: AuthenticationCase) -> None:
        """No thread verifies any more."""
        assert isinstance(case.context, Threads)
        case.context.broken = True


class TestMosquittosPasswords(TestArgon2idPasswords):
    """Hashes as mosquitto_passwd writes them: `$7$`."""

    def hash_of(self, password: bytes) -> PasswordHash:
        return Pbkdf2.of(password, 101)


# What they may do


class TestRules(AuthorizerContract):
    """Rules of an access control list; every filter may be subscribed to, and each delivery is decided."""

    guards_subscriptions = False
    receives = changes_rules = True
    # As with Mosquitto a `/` in a name is let through, and an empty name is none: the README says so.
    unusual_names = tuple(name for name in UNUSUAL_NAMES if name not in ("/", "a/b", ""))

    @pytest.fixture
    def authorization(self, clock: TurnableClock, tmp_path: Path) -> AuthorizationCase:
        acl = written(tmp_path / "acl", ACL)
        plugin, context = started(clock, acl_file=acl, denied_wills="refuse", watch_s=1.0)
        writing = (Action.PUBLISH, Action.WILL)
        every = (*writing, Action.RECEIVE)
        return AuthorizationCase(
            plugin,
            allowed=[
                *(authorization(action, "sensors/hall", ANN) for action in every),
                *(authorization(action, "people/ann/phone", ANN) for action in every),
                *(authorization(action, "inbox/gate", CAROL) for action in writing),
                authorization(Action.RECEIVE, "sensors/secret", BOB),
                authorization(Action.RECEIVE, "news", client("phone")),
                authorization(Action.SUBSCRIBE, "#", CAROL),
            ],
            denied=[
                *(authorization(action, "sensors/secret", ANN) for action in every),
                *(authorization(action, "people/ann/phone", BOB) for action in every),
                *(authorization(action, "sensors/hall", BOB) for action in writing),
                *(authorization(action, "inbox/phone", CAROL) for action in every),
                *(authorization(action, "news", ANN) for action in every),
                authorization(Action.RECEIVE, "inbox/gate", CAROL),
                authorization(Action.PUBLISH, "news", client("phone")),
            ],
            context=context,
        )

    def change_rules(self, case: AuthorizationCase) -> AuthorizationRequest:
        """The file is changed, and looked at until the change is taken: the same twice."""
        context = case.context
        assert context is not None
        written(context.settings.acl_file, ACL.replace("readwrite sensors/#", "read sensors/#"))
        context.clock.advance(3 * context.settings.watch_s)
        return authorization(Action.PUBLISH, "sensors/hall", ANN)


class TestRulesThatDropWills(TestRules):
    """By default a will that no rule allows is not this plugin's to refuse: it is dropped when it is due."""

    @pytest.fixture
    def authorization(self, clock: TurnableClock, tmp_path: Path) -> AuthorizationCase:
        acl = written(tmp_path / "acl", ACL)
        plugin, context = started(clock, acl_file=acl, watch_s=1.0)
        return AuthorizationCase(
            plugin,
            allowed=[authorization(action, "sensors/hall", ANN) for action in (Action.PUBLISH, Action.WILL)],
            denied=[authorization(Action.PUBLISH, "sensors/secret", ANN)],
            foreign=[authorization(Action.WILL, "sensors/secret", ANN)],
            context=context,
        )


class TestPasswordsAlone(AuthorizerContract):
    """Without a list of rules it has nothing to say of what clients do."""

    guards_subscriptions = False
    receives = True

    @pytest.fixture
    def authorization(self, clock: TurnableClock, tmp_path: Path) -> AuthorizationCase:
        passwords = written(tmp_path / "passwords", f"ann:{Pbkdf2.of(b'x', 101)}\n")
        plugin, context = started(clock, password_file=passwords)
        return AuthorizationCase(
            plugin, foreign=[authorization(action, "a", ANN) for action in Action], context=context
        )


# Its life


class TestAuthFile(PluginContract):
    """Two files, others, and a broken one."""

    reloads = refuses_settings = True

    @pytest.fixture
    def plugin(self, tmp_path_factory: pytest.TempPathFactory) -> PluginCase:
        folder = tmp_path_factory.mktemp("files")
        written(folder / "passwords", f"ann:{Pbkdf2.of(b'secret', 101)}\n")
        written(folder / "others", f"bob:{Argon2id.of(b'hunter2', CHEAP)}\n")
        written(folder / "acl", ACL)
        written(folder / "stricter", "topic read news\n")
        written(folder / "broken", "topik read news\n")

        def section(passwords: str, acl: str, more: str = "") -> str:
            return f'password_file = "{folder / passwords}"\nacl_file = "{folder / acl}"\n{more}'

        return PluginCase(
            AuthFile,
            section("passwords", "acl"),
            section("others", "stricter", 'cache_entries = 3\nwatch_s = "1 s"\ndenied_wills = "refuse"\n'),
            section("others", "broken", 'denied_wills = "refuse"\n'),
            "auth_file",
        )

    def probe(self, plugin: Any) -> object:
        """Who is known, and what some may do; that a reload was refused its health tells, as it should."""
        asked = [authorization(action, "sensors/secret", ANN) for action in (Action.PUBLISH, Action.WILL)]
        asked.append(authorization(Action.PUBLISH, "sensors/hall", ANN))
        rights = [None if answer is None else answer.verdict for answer in map(plugin.authorize, asked)]
        return [sorted(plugin._contents.passwords.users), rights]
