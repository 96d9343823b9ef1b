"""The plugin itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from twisted.internet.defer import Deferred

from kinmqtt_auth_file.client_ids import ClientIds
from kinmqtt_auth_file.files import Contents, Files, counted, files_of
from kinmqtt_auth_file.hashes import Argon2id
from kinmqtt_auth_file.line import Line, TooBusy
from kinmqtt_auth_file.passwords import Passwords
from kinmqtt_auth_file.settings import AuthFileSettings
from kinmqtt_auth_file.users import Seals, Users
from kinmqtt_auth_file.verifying import Verified, Verifier
from kinmqtt_spi import Client, Decision, Message, Reject, deny, hookimpl
from kinmqtt_spi.errors import SettingsError
from kinmqtt_spi.files import FileWatch
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authentication import ConnectRequest, Identity, allow_as
from kinmqtt_spi.services.authorization import EVERYBODY, Action, AuthorizationRequest
from kinmqtt_spi.services.plugin import Context, Health, HealthState, Requirements, Timer
from kinmqtt_spi.values import ALLOW

REFUSED: Final = deny(ReasonCode.BAD_USER_NAME_OR_PASSWORD, "unknown user or wrong password")
NOT_YOURS: Final = Reject(
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "no pattern of plugins.auth_file.client_ids allows this client id"
)
BUSY: Final = deny(ReasonCode.SERVER_BUSY, "too many passwords are being verified")

NEEDED: Final = {
    "authenticate": "password_file",
    "authorize": "acl_file",
    "connected": "disconnect_removed",
    "choose_server": "client_ids",
}
"""Hooks, and the settings without which they are left out."""

VERIFIED: Final = "auth_file.verified"
"""A client's attribute: which hash its password was verified by, under a seal."""

NOBODY: Final = Passwords({}, Argon2id.costing())


class AuthFile:
    """Authenticates by a password file, authorizes by an access control list, and takes changes of both."""

    def __init__(self) -> None:
        self._settings = AuthFileSettings()
        self._files = Files(None, None)
        self._contents = Contents(None, None)
        self._client_ids = ClientIds()
        self._watch: FileWatch[Contents] | None = None
        self._left_out: set[str] = set()
        self._problem: str | None = None
        self._timer: Timer | None = None
        self._looking = False
        self._line: Line | None = None

    # Its life

    @hookimpl
    def requirements(self) -> Requirements:
        """Written for version 1 of the SPI."""
        return Requirements(spi_version=1)

    @hookimpl
    def settings_class(self) -> type[AuthFileSettings]:
        """The section is parsed into this."""
        return AuthFileSettings

    @hookimpl
    def configure(self, context: Context) -> None:
        """Read the files, so that `kinmqtt check` tells what is wrong with them."""
        settings: AuthFileSettings = context.settings
        files = files_of(settings)
        watch = files.watch(settings.argon2)
        contents = watch.read_now()
        self._left_out = _idle(settings)
        context.leave_out(*sorted(self._left_out))
        self._context = context
        self._settings, self._files, self._contents, self._watch = settings, files, contents, watch
        self._client_ids = _client_ids_of(settings)
        metrics = context.metrics
        self._right = metrics.counter("verified", "clients")
        self._refused = metrics.counter("refused", "clients")
        self._busy = metrics.counter("busy", "clients")
        self._reloads = metrics.counter("reloads", "files")
        self._failures = metrics.counter("reload_failures", "files")
        self._line = Line(context, *_bounds(settings))
        self._verified = Verified(context.clock, settings.cache_entries, settings.cache_s)
        self._verifier = Verifier(
            self._line, self._verified, self._passwords, metrics.counter("cache_hits", "clients")
        )
        self._users = Users(context)
        self._seals = Seals()
        metrics.gauge("cached", "passwords", lambda: len(self._verified))
        self._warn()

    @hookimpl
    def start(self, context: Context) -> None:
        """Begin to look for changes."""
        context.log.info("{words} read from {names}", words=self._contents.words(), names=self._files.names())
        self._look_later()

    @hookimpl
    async def reload(self, settings: AuthFileSettings) -> Sequence[str]:
        """Take new settings and read the files at once; raises, and keeps what holds, where they are wrong."""
        files = files_of(settings)
        watch = files.watch(settings.argon2)
        try:
            contents = await self._context.in_thread(watch.read_now)
        except SettingsError as error:
            self._failures.value += 1
            self._problem = "; ".join(error.problems)
            raise
        self._verified.bound(settings.cache_entries, settings.cache_s)
        assert self._line is not None
        self._line.resize(*_bounds(settings))
        self._settings, self._files, self._watch = settings, files, watch
        self._client_ids = _client_ids_of(settings)
        self._take(contents)
        self._look_later()
        late = self._left_out - _idle(settings)
        return tuple(f"{NEEDED[hook]}: what it asks for begins after a restart" for hook in NEEDED if hook in late)

    @hookimpl
    def stop(self) -> None:
        """Look no more, and turn away who waits."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._line is not None:
            self._line.close()

    @hookimpl
    def health(self) -> Health:
        """Degraded while a file is wrong, and what was read before holds."""
        if self._problem is not None:
            return Health(HealthState.DEGRADED, f"what was read before holds on: {self._problem}")
        return Health(HealthState.HEALTHY, self._contents.words())

    # Who comes in

    @hookimpl
    async def authenticate(self, request: ConnectRequest) -> Decision | None:
        """Let in who knows a user's password; who names no user is somebody else's to judge."""
        username, password = request.username, request.password
        if self._contents.passwords is None or not username:
            return None  # An empty name is none, as for Mosquitto.
        if password is None:
            self._refused.value += 1
            return REFUSED
        try:
            right = await self._verifier.is_right(username, password, request.address.host)
        except TooBusy:
            self._busy.value += 1
            return BUSY
        if not right:
            self._refused.value += 1
            return REFUSED
        self._right.value += 1
        if not self._settings.disconnect_removed:
            return allow_as()
        # With no wait since it was verified: the hash is the one that was.
        return allow_as(Identity(attributes={VERIFIED: self._seals.of(username, self._passwords().get(username))}))

    @hookimpl
    def choose_server(self, client: Client) -> Reject | None:
        """Refuse a client id that the user may not have, whichever plugin has let the client in."""
        if self._client_ids.allows(client.client_id, client.username or None):
            return None
        self._refused.value += 1
        return NOT_YOURS

    @hookimpl
    def connected(self, client: Client, session_present: bool) -> None:
        """Remember whose client it is, or send it away where its user was changed since its password was verified.

        Much may happen in between: other plugins and stores are asked, and may take their time.
        """
        if not self._settings.disconnect_removed or client.username is None:
            return
        hash = self._passwords().users.get(client.username)
        verified = client.attributes.get(VERIFIED)
        if verified is None:
            if hash is not None:  # Another plugin let it in, under the name of a user of ours.
                self._users.add(client)
        elif hash is not None and verified == self._seals.of(client.username, hash):
            self._users.add(client)
        elif self._context.client(client.client_id) == client:  # and no newer one of that id
            self._context.disconnect(client.client_id)
            self._context.log.info("client {client!r} disconnected: its user was changed", client=client.client_id)

    # What they may do

    @hookimpl
    def authorize(self, request: AuthorizationRequest) -> Decision | None:
        """Decide about publishing and wills. Every filter may be subscribed to: what comes of it is decided then."""
        acl = self._contents.acl
        if acl is None:
            return None
        if request.action is Action.SUBSCRIBE:
            return ALLOW
        client = request.client
        decision = acl.may_write(client.username, client.client_id, request.topic)
        if request.action is Action.WILL and not decision.allowed and self._settings.denied_wills == "drop":
            return None  # It is dropped when it is due; another authorizer may refuse it now.
        return decision

    @hookimpl
    def authorize_receive(self, request: AuthorizationRequest) -> Decision | None:
        """Decide about one message to one client."""
        acl = self._contents.acl
        if acl is None:
            return None
        client = request.client
        return acl.may_read(client.username, client.client_id, request.topic)

    @hookimpl
    def will_publishing(self, client: Client, message: Message) -> Reject | None:
        """Drop a will that the rules, as they are now, do not allow."""
        acl = self._contents.acl
        if acl is None:
            return None
        decision = acl.may_write(client.username, client.client_id, message.topic)
        if decision.allowed:
            return None
        self._context.log.info(
            "the will of client {client!r} is dropped: {text}", client=client.client_id, text=decision.text
        )
        return Reject(decision.reason, decision.text)

    # Changes

    def _passwords(self) -> Passwords:
        return self._contents.passwords or NOBODY

    def _look_later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._settings.watch_s:
            self._timer = self._context.clock.later(self._settings.watch_s, self._look)

    def _look(self) -> Deferred[None] | None:
        """Look whether the files have changed, unless the look before is not done yet."""
        self._timer = None
        self._look_later()
        if self._looking:
            return None
        self._looking = True
        return Deferred.fromCoroutine(self._look_once())

    async def _look_once(self) -> None:
        watch = self._watch
        assert watch is not None
        try:
            contents = await self._context.in_thread(watch.look)
            if contents is not None and watch is self._watch:  # else a reload has read them since
                self._take(contents)
        except SettingsError as error:
            if watch is self._watch:
                self._failed(error)
        except Exception as error:
            self._context.log.error("can't look at {names}: {error}", names=self._files.names(), error=error)
        self._looking = False

    def _failed(self, error: SettingsError) -> None:
        self._failures.value += 1
        self._problem = "; ".join(error.problems)
        self._context.log.error("what was read before holds on, for: {problem}", problem=self._problem)

    def _take(self, contents: Contents) -> None:
        """What was read is sound, and holds from now on."""
        before, self._contents = self._contents, contents
        self._problem = None
        self._reloads.value += 1
        self._verified.clear()
        if before.acl is not None or contents.acl is not None:
            self._context.authorization_changed(EVERYBODY)
        self._warn()
        self._context.log.info("{words} read from {names}", words=contents.words(), names=self._files.names())
        if self._settings.disconnect_removed and before.passwords is not None:
            gone = self._users.disconnect_changed(before.passwords, self._passwords())
            if gone:
                self._context.log.info("{count} of users who are changed disconnected", count=counted(gone, "client"))

    def _warn(self) -> None:
        """Tell an operator what may be worth a look."""
        passwords = self._contents.passwords
        users = None if passwords is None else passwords.users
        for note in (*self._contents.notes, *self._client_ids.notes(users)):
            self._context.log.warn("{note}", note=note)


def _client_ids_of(settings: AuthFileSettings) -> ClientIds:
    return ClientIds(settings.client_ids, settings.client_ids_of)


def _bounds(settings: AuthFileSettings) -> tuple[int, int, float]:
    """Of the line for the threads."""
    return settings.verify_at_once, settings.verify_waiting, settings.failure_pause_s


def _idle(settings: AuthFileSettings) -> set[str]:
    """The hooks in which a plugin with these settings has nothing to say: clients shall not pay for them."""
    idle = set()
    if settings.password_file is None:
        idle.add("authenticate")
    if settings.password_file is None or not settings.disconnect_removed:
        idle.add("connected")
    if settings.client_ids is None and not settings.client_ids_of:
        idle.add("choose_server")
    if settings.acl_file is None:
        idle |= {"authorize", "authorize_receive", "will_publishing"}
    return idle
