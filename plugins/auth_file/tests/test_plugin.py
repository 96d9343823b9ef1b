"""The plugin by itself, without a broker."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from kinmqtt_auth_file import AuthFile, AuthFileSettings
from kinmqtt_auth_file.hashes import Argon2Settings, Pbkdf2
from kinmqtt_auth_file.verification_pool import TooBusy
from kinmqtt_spi import Client, Decision, Message
from kinmqtt_spi.errors import NotConfigured, SettingsError
from kinmqtt_spi.memory.plugin import BareContext
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authentication import Authenticated, ConnectRequest
from kinmqtt_spi.services.authorization import EVERYBODY, Action, AuthorizationRequest
from kinmqtt_spi.services.plugin import HealthState, Requirements
from kinmqtt_spi.settings import Document, parse
from kinmqtt_spi.values import Verdict

ANN, BOB, NEW_ANN = (f"{user}:{Pbkdf2.of(password, 10)}\n" for user, password in
                     (("ann", b"secret"), ("bob", b"hunter2"), ("ann", b"secret")))  # fmt: skip
UNKNOWN = "a line must begin with user, topic or pattern, not with 'x'"
ACL = "topic read news\nuser ann\ntopic readwrite a/#\ntopic deny a/b\n"


def done(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The answer of a coroutine that has all it waits for."""
    return Deferred.fromCoroutine(coroutine).result


class Threads(BareContext):
    """A context whose threads do nothing until they are told to."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.calls: list[tuple[Callable[[], Any], Deferred[Any]]] = []

    def in_thread(self, call: Callable[[], Any]) -> Deferred[Any]:
        """Remember the call."""
        answer: Deferred[Any] = Deferred()
        self.calls.append((call, answer))
        return answer

    def finish(self) -> None:
        """Let the oldest call come to its end."""
        call, answer = self.calls.pop(0)
        try:
            result = call()
        except Exception as error:
            answer.errback(error)
        else:
            answer.callback(result)


class Bench:
    """A plugin with files of its own, in a context without a broker."""

    def __init__(
        self,
        folder: Path,
        passwords: str | None = ANN,
        acl: str | None = ACL,
        context: type[BareContext] = BareContext,
        **settings: Any,
    ) -> None:
        self.folder = folder
        paths: dict[str, Any] = {}
        for key, name, content in (("password_file", "passwords", passwords), ("acl_file", "acl", acl)):
            if content is not None:
                paths[key] = folder / name
                paths[key].write_text(content)
                paths[key].chmod(0o600)
        self.settings = AuthFileSettings(**paths, **settings)
        self.context = context("auth_file", self.settings)
        self.plugin = AuthFile()
        self.plugin.configure(self.context)
        self.plugin.start(self.context)

    def connect(self, user: str | None, password: bytes | None) -> Decision | None:
        """What is answered to a CONNECT."""
        answer: Decision | None = done(self.plugin.authenticate(ConnectRequest("c", user, password)))
        return answer

    def may(self, action: Action, topic: str, user: str | None = "ann") -> Verdict | None:
        """What is answered to a question of rights."""
        request = AuthorizationRequest(Client("c", user), action, topic)
        receive = action is Action.RECEIVE
        answer = self.plugin.authorize_receive(request) if receive else self.plugin.authorize(request)
        return None if answer is None else answer.verdict

    def write(self, name: str, content: str) -> None:
        """Write a file as a careful program does: another one takes its place."""
        (self.folder / "new").write_text(content)
        os.replace(self.folder / "new", self.folder / name)

    def look(self, times: int = 2) -> None:
        """Let so much time pass that the files are looked at."""
        for _ in range(times):
            self.context.clock.advance(self.settings.watch_s)

    def counted(self, name: str) -> int:
        """A metric's value."""
        counter = self.context.metrics.counter(name, "files" if name.startswith("reload") else "clients")
        return counter.value


def test_a_password_decides(tmp_path: Path) -> None:
    """The right one lets in; all else is a bad user name or password, without saying which."""
    bench = Bench(tmp_path)

    answers = [bench.connect(user, password) for user, password in
               (("ann", b"secret"), ("ann", b"wrong"), ("ann", None), ("bob", b"secret"))]  # fmt: skip

    assert [answer is not None and answer.allowed for answer in answers] == [True, False, False, False]
    assert {answer.reason for answer in answers[1:] if answer} == {ReasonCode.BAD_USER_NAME_OR_PASSWORD}
    assert len({answer.text for answer in answers[1:] if answer}) == 1
    assert (bench.counted("verified"), bench.counted("refused")) == (1, 3)


def test_who_names_no_user_is_somebody_elses(tmp_path: Path) -> None:
    """The plugin abstains, also from an empty name, which is none to Mosquitto."""
    bench = Bench(tmp_path)

    assert bench.connect(None, None) is None
    assert bench.connect("", b"secret") is None


def test_too_many_at_once_are_told_that_the_server_is_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And are counted by themselves."""
    bench = Bench(tmp_path)

    async def too_busy(*question: object) -> bool:
        raise TooBusy

    monkeypatch.setattr(bench.plugin._verifier, "is_right", too_busy)
    answer = bench.connect("ann", b"secret")

    assert answer is not None and answer.reason is ReasonCode.SERVER_BUSY
    assert bench.counted("busy") == 1


def test_one_file_alone_answers_for_one_thing(tmp_path: Path) -> None:
    """Without a list it abstains from rights, without passwords from who comes in."""
    passwords_only = Bench(tmp_path, acl=None)
    acl_only = Bench(tmp_path, passwords=None)

    assert [passwords_only.may(action, "x") for action in Action] == [None] * 4
    assert passwords_only.plugin.will_publishing(Client("c"), Message("x")) is None
    assert passwords_only.connect("ann", b"secret") is not None
    assert acl_only.connect("ann", b"secret") is None
    assert acl_only.may(Action.PUBLISH, "a/c") is Verdict.ALLOW
    idle = {"connected", "choose_server"}
    assert passwords_only.context.left_out == idle | {"authorize", "authorize_receive", "will_publishing"}
    assert acl_only.context.left_out == idle | {"authenticate"}


def test_without_a_file_it_is_not_configured() -> None:
    """The plugin stays away where nothing asks for it."""
    with pytest.raises(NotConfigured, match="neither password_file nor acl_file"):
        AuthFile().configure(BareContext("auth_file", AuthFileSettings()))


def test_rights_are_those_of_the_list(tmp_path: Path) -> None:
    """Publishing and receiving are decided; every filter may be subscribed to, as with Mosquitto."""
    bench = Bench(tmp_path)

    publish = [bench.may(Action.PUBLISH, topic) for topic in ("a/c", "a/b", "news")]
    receive = [bench.may(Action.RECEIVE, topic) for topic in ("a/c", "a/b", "news")]

    assert publish == receive == [Verdict.ALLOW, Verdict.DENY, Verdict.DENY]
    assert bench.may(Action.RECEIVE, "news", None) is Verdict.ALLOW
    assert bench.may(Action.PUBLISH, "news", None) is Verdict.DENY
    assert bench.may(Action.SUBSCRIBE, "#", "stranger") is Verdict.ALLOW


def test_a_denied_will_is_dropped_when_it_is_due(tmp_path: Path) -> None:
    """The client is let in, as with Mosquitto, unless somebody else refuses it; the log tells."""
    bench = Bench(tmp_path)
    client = Client("c", "ann")

    assert bench.may(Action.WILL, "a/b") is None
    assert bench.may(Action.WILL, "a/c") is Verdict.ALLOW
    dropped = bench.plugin.will_publishing(client, Message("a/b"))
    assert dropped is not None and dropped.text == "denied by acl, line 4"
    assert bench.plugin.will_publishing(client, Message("a/c")) is None
    assert "the will of client 'c' is dropped: denied by acl, line 4" in bench.context.log.texts("info")


def test_a_denied_will_refuses_where_that_is_asked_for(tmp_path: Path) -> None:
    """At once, and still when it is due."""
    bench = Bench(tmp_path, denied_wills="refuse")

    assert bench.may(Action.WILL, "a/b") is Verdict.DENY
    assert bench.plugin.will_publishing(Client("c", "ann"), Message("a/b")) is not None


def test_changes_are_taken_once_they_have_settled(tmp_path: Path) -> None:
    """At the second look that sees the same; what was remembered and cached is forgotten."""
    bench = Bench(tmp_path)
    bench.connect("ann", b"secret")
    bench.write("passwords", BOB)
    bench.write("acl", "user bob\ntopic b\n")

    bench.look(1)
    early = bench.connect("bob", b"hunter2")
    bench.look(1)
    late = bench.connect("bob", b"hunter2")
    ann = bench.connect("ann", b"secret")

    assert early is not None and not early.allowed
    assert late is not None and late.allowed
    assert ann is not None and not ann.allowed
    assert bench.may(Action.PUBLISH, "b", "bob") is Verdict.ALLOW
    assert bench.context.authorization_changes == [EVERYBODY]
    assert bench.counted("reloads") == 1
    bench.look(5)
    assert bench.counted("reloads") == 1


def test_a_broken_file_leaves_the_old_rules(tmp_path: Path) -> None:
    """One error in the log, however often it is looked at, and a health that says so, until it is mended."""
    bench = Bench(tmp_path)
    bench.write("acl", "topic a\ntopik b\n")

    bench.look(10)

    assert bench.may(Action.PUBLISH, "a/c") is Verdict.ALLOW
    [told] = bench.context.log.texts("error")
    assert f"{tmp_path}/acl:2: a line must begin with user, topic or pattern" in told
    assert bench.plugin.health().state is HealthState.DEGRADED
    assert "acl:2" in bench.plugin.health().text
    assert bench.counted("reload_failures") == 1
    bench.write("acl", "user ann\ntopic b\n")
    bench.look()
    assert bench.may(Action.PUBLISH, "b") is Verdict.ALLOW
    assert bench.plugin.health().state is HealthState.HEALTHY
    assert bench.plugin.health().text == "1 user and 1 rule"


def test_a_file_that_is_gone_leaves_the_old_rules(tmp_path: Path) -> None:
    """Also where only for a moment, which nobody is told of."""
    bench = Bench(tmp_path)
    (tmp_path / "acl").unlink()
    bench.look(1)
    assert bench.context.log.texts("error") == []

    bench.look(2)

    assert "there is no such file" in bench.context.log.texts("error")[0]
    assert bench.may(Action.PUBLISH, "a/c") is Verdict.ALLOW


@pytest.mark.parametrize("name", ["passwords", "acl"])
def test_a_fifo_in_a_files_place_leaves_the_old_rules(tmp_path: Path, name: str) -> None:
    """It is told once; the looking goes on, and finds the file that takes the FIFO's place."""
    bench = Bench(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    os.replace(tmp_path / "fifo", tmp_path / name)

    bench.look(5)
    health = bench.plugin.health()
    failures = bench.counted("reload_failures")
    may = bench.may(Action.PUBLISH, "a/c")
    bench.write(name, ANN if name == "passwords" else ACL)
    bench.look()

    assert health.state is HealthState.DEGRADED
    assert f"{tmp_path / name}: can't be read: it is a FIFO, not a regular file" in health.text
    assert failures == 1
    assert may is Verdict.ALLOW
    assert bench.plugin.health().state is HealthState.HEALTHY


def test_nothing_looks_where_that_is_asked_for(tmp_path: Path) -> None:
    """With 0 the files are read at a reload only; a stopped plugin leaves no timer either."""
    silent, stopped = Bench(tmp_path, watch_s=0.0), Bench(tmp_path)

    stopped.plugin.stop()

    assert silent.context.clock.pending() == stopped.context.clock.pending() == 0


def test_a_reload_reads_at_once(tmp_path: Path) -> None:
    """Without waiting for the files to settle, and with the new settings."""
    bench = Bench(tmp_path)
    bench.write("acl", "user ann\ntopic b\n")

    answer = done(bench.plugin.reload(bench.settings))

    assert answer == ()
    assert bench.may(Action.PUBLISH, "b") is Verdict.ALLOW
    assert bench.context.clock.pending() == 1


def test_a_reload_tells_what_a_restart_is_needed_for(tmp_path: Path) -> None:
    """What was left out at the start is not asked: who adds it is told so, and it is not forgotten later."""
    bench = Bench(tmp_path, acl=None)
    (tmp_path / "acl").write_text(ACL)
    later = attrs.evolve(bench.settings, acl_file=tmp_path / "acl", disconnect_removed=True)

    answers = [done(bench.plugin.reload(later)), done(bench.plugin.reload(bench.settings))]

    assert answers[0] == (
        "acl_file: what it asks for begins after a restart",
        "disconnect_removed: what it asks for begins after a restart",
    )
    assert answers[1] == ()


def test_a_slow_disk_is_looked_at_once_at_a_time(tmp_path: Path) -> None:
    """While a look lasts no other begins; one that fails altogether is told, and the next goes on."""
    bench = Bench(tmp_path, context=Threads)
    assert isinstance(bench.context, Threads)

    bench.look(5)
    assert len(bench.context.calls) == 1
    bench.context.calls.pop()[1].errback(OSError("the pool is closed"))
    bench.look(5)

    assert len(bench.context.calls) == 1
    [told] = bench.context.log.texts("error")
    assert told.endswith(": the pool is closed")


@pytest.mark.parametrize("late", ["user ann\ntopic late\n", "x\n"])
def test_a_reload_overtakes_a_look(tmp_path: Path, late: str) -> None:
    """What a look has read by then, or could not read, is of no use any more."""
    bench = Bench(tmp_path, context=Threads)
    assert isinstance(bench.context, Threads)
    bench.write("acl", late)
    bench.look(1)
    bench.context.finish()
    bench.look(1)
    reading = bench.context.calls.pop()
    reloading = Deferred.fromCoroutine(bench.plugin.reload(bench.settings))
    late_call = reading[0]
    try:
        answer: Any = late_call()
    except SettingsError as error:
        answer = error
    bench.write("acl", "user ann\ntopic newest\n")
    bench.context.finish()

    (reading[1].errback if isinstance(answer, SettingsError) else reading[1].callback)(answer)

    assert reloading.result == ()
    assert bench.may(Action.PUBLISH, "newest") is Verdict.ALLOW
    assert bench.counted("reloads") == 1
    assert bench.plugin.health().state is HealthState.HEALTHY


def test_a_reload_of_what_is_broken_changes_nothing(tmp_path: Path) -> None:
    """The operator is told, and so is who asks for the health."""
    bench = Bench(tmp_path)
    bench.write("acl", "x\n")

    errors: list[BaseException | None] = []
    reloading = Deferred.fromCoroutine(bench.plugin.reload(bench.settings))

    def failed(failure: Failure) -> None:
        errors.append(failure.value)

    reloading.addErrback(failed)

    assert [str(error) for error in errors] == [f"{tmp_path}/acl:1: {UNKNOWN}"]
    assert isinstance(errors[0], SettingsError)

    assert bench.may(Action.PUBLISH, "a/c") is Verdict.ALLOW
    assert bench.plugin.health().state is HealthState.DEGRADED


@pytest.mark.parametrize(("asked", "expected"), [(True, ["bob", "changed"]), (False, [])])
def test_clients_of_removed_users_are_sent_away_where_that_is_asked_for(
    tmp_path: Path, asked: bool, expected: list[str]
) -> None:
    """A removed user's, and one's whose hash has changed; others stay."""
    bench = Bench(tmp_path, ANN + BOB + ANN.replace("ann:", "carl:", 1), disconnect_removed=asked)
    for client_id, user in (("bob", "bob"), ("changed", "ann"), ("carl", "carl"), ("other", "stranger")):
        bench.context.clients[client_id] = Client(client_id, user)
        bench.plugin.connected(bench.context.clients[client_id], False)

    bench.write("passwords", NEW_ANN + ANN.replace("ann:", "carl:", 1))
    bench.look()

    assert sorted(client_id for client_id, _ in bench.context.disconnected) == expected


def verified(bench: Bench, client_id: str, user: str = "ann", password: bytes = b"secret") -> Client:
    """A client whose password was verified, and that is not connected yet."""
    decision = done(bench.plugin.authenticate(ConnectRequest(client_id, user, password)))
    assert isinstance(decision, Authenticated)
    return Client(client_id, user, attributes=decision.identity.attributes)


def connected(bench: Bench, client: Client) -> None:
    """It is, and the plugin hears of it."""
    bench.context.clients[client.client_id] = client
    bench.plugin.connected(client, False)


@pytest.mark.parametrize(("later", "stays"), [(BOB, False), (NEW_ANN, False), (ANN + BOB, True)])
def test_who_is_removed_while_connecting_is_sent_away(tmp_path: Path, later: str, stays: bool) -> None:
    """Between its password and its CONNACK other plugins may take their time: what counts is the file by then."""
    bench = Bench(tmp_path, disconnect_removed=True)
    client = verified(bench, "c")
    bench.write("passwords", later)
    done(bench.plugin.reload(bench.settings))

    connected(bench, client)

    assert [client_id for client_id, _ in bench.context.disconnected] == ([] if stays else ["c"])
    if stays:
        bench.write("passwords", BOB)
        done(bench.plugin.reload(bench.settings))
        assert [client_id for client_id, _ in bench.context.disconnected] == ["c"]


def test_a_newer_client_of_the_same_id_is_not_sent_away(tmp_path: Path) -> None:
    """The notice of the one before comes late; the newer one has shown the new password."""
    bench = Bench(tmp_path, disconnect_removed=True)
    old = verified(bench, "c")
    bench.write("passwords", NEW_ANN)
    done(bench.plugin.reload(bench.settings))
    new = verified(bench, "c")

    bench.context.clients["c"] = new
    bench.plugin.connected(old, False)
    bench.plugin.connected(new, False)

    assert bench.context.disconnected == []
    assert old.attributes != new.attributes


@pytest.mark.parametrize("told", [False, True])
def test_who_is_refused_in_the_end_hides_nobody(tmp_path: Path, told: bool) -> None:
    """Bob shows his password under the client id of Ann's client and is refused by another plugin: hers is known.

    Nor does it matter if the notice of a connection of his, which is over, comes late.
    """
    bench = Bench(tmp_path, ANN + BOB, disconnect_removed=True)
    connected(bench, verified(bench, "c"))
    refused = verified(bench, "c", "bob", b"hunter2")
    if told:
        bench.plugin.connected(refused, False)

    bench.write("passwords", BOB)
    done(bench.plugin.reload(bench.settings))

    assert [client_id for client_id, _ in bench.context.disconnected] == ["c"]


def test_many_who_connect_slowly_are_not_forgotten(tmp_path: Path) -> None:
    """Who is let in and not connected yet looks like one who has left: only those connected are counted."""
    bench = Bench(tmp_path, disconnect_removed=True)
    clients = [verified(bench, f"c{number}") for number in range(1100)]

    for client in clients:
        connected(bench, client)
    bench.write("passwords", BOB)
    done(bench.plugin.reload(bench.settings))

    assert len(bench.context.disconnected) == 1100


def test_what_others_can_see_tells_nothing_of_the_hash(tmp_path: Path) -> None:
    """A seal under a key of its own, and only where it is asked for."""
    one, two = Bench(tmp_path, disconnect_removed=True), Bench(tmp_path, disconnect_removed=True)
    without = Bench(tmp_path)

    attributes = [verified(bench, "c").attributes for bench in (one, one, two, without)]

    assert attributes[0] == attributes[1] != attributes[2]
    assert attributes[3] == {}


def test_a_pattern_for_everybody_is_told_of(tmp_path: Path) -> None:
    """Once, when the file is read."""
    bench = Bench(tmp_path, acl="pattern read news\n")

    assert bench.context.log.texts("warn") == [
        f"{tmp_path}/acl:1: the pattern 'news' has neither %u nor %c: it applies to all clients"
    ]
    assert bench.context.log.texts("info") == [f"1 user and 1 rule read from {tmp_path}/passwords and {tmp_path}/acl"]


def test_a_password_file_for_everybody_is_told_of(tmp_path: Path) -> None:
    """Hashes are not for everybody to try at."""
    bench = Bench(tmp_path, acl=None)
    (tmp_path / "passwords").chmod(0o644)

    done(bench.plugin.reload(bench.settings))

    [told] = bench.context.log.texts("warn")
    assert told.startswith(f"{tmp_path}/passwords: all users of this machine can read it; `chmod o= ")


def test_settings_are_read_from_the_section(tmp_path: Path) -> None:
    """Paths, durations, sizes, and the cost of new passwords."""
    document = Document.parse(
        '[plugins.auth_file]\npassword_file = "p"\nwatch_s = "1 min"\n[plugins.auth_file.argon2]\n'
        'memory_bytes = "64 MiB"\ntime_cost = 3\n',
        "kinmqtt.toml",
    )

    settings = parse(AuthFile().settings_class(), document, ("plugins", "auth_file"))

    assert settings == AuthFileSettings(
        password_file=Path("p"), watch_s=60.0, argon2=Argon2Settings(time_cost=3, memory_bytes=64 << 20)
    )


def test_paths_may_begin_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a tilde; others are relative to where the broker was started."""
    (tmp_path / "acl").write_text("topic a\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    plugin = AuthFile()

    plugin.configure(BareContext("auth_file", AuthFileSettings(acl_file=Path("~/acl"))))

    assert plugin.health().text == "1 rule"


def test_the_requirements_name_a_version() -> None:
    """The plugin says what it was written for, whichever SPI is installed."""
    assert AuthFile().requirements() == Requirements(spi_version=2)
