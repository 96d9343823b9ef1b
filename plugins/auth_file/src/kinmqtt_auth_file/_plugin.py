"""The plugin: hooks, settings, file checks and metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from twisted.internet.defer import Deferred

from kinmqtt_auth_file.client_ids import ClientIds
from kinmqtt_auth_file.files import Contents, Files, counted, files_of
from kinmqtt_auth_file.hashes import Argon2id
from kinmqtt_auth_file.passwords import Passwords
from kinmqtt_auth_file.settings import AuthFileSettings
from kinmqtt_auth_file.users import Seals, Users
from kinmqtt_auth_file.verification_pool import TooBusy, VerificationPool
from kinmqtt_auth_file.verifier import Verified, Verifier
from kinmqtt_spi import Client, Decision, Message, Reject, deny, hookimpl
from kinmqtt_spi.errors import SettingsError
from kinmqtt_spi.files import FileWatch
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authentication import ConnectRequest, Identity, allow_as
from kinmqtt_spi.services.authorization import EVERYBODY, Action, AuthorizationRequest
from kinmqtt_spi.services.plugin import Context, Health, HealthState, Requirements, Timer
from kinmqtt_spi.values import ALLOW

REFUSED: Final = deny(ReasonCode.BAD_USER_NAME_OR_PASSWORD, "unknown user or wrong password")
WRONG_CLIENT_ID: Final = Reject(
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "no pattern of plugins.auth_file.client_ids allows this client id"
)
BUSY: Final = deny(ReasonCode.SERVER_BUSY, "too many passwords are being verified")

REQUIRED_SETTINGS: Final = {
    "authenticate": "password_file",
    "authorize": "acl_file",
    "connected": "disconnect_removed",
    "choose_server": "client_ids",
}
"""Hooks, each with the setting without which it is left out."""

VERIFIED: Final = "auth_file.verified"
"""The client attribute with the seal of the hash that verified its password."""

NO_PASSWORDS: Final = Passwords({}, Argon2id.costing())


class AuthFile:
    """Authenticates by a password file, authorizes by an access control list, and reloads both when they change."""

    def __init__(self) -> None:
        self._settings = AuthFileSettings()
        self._files = Files(None, None)
        self._contents = Contents(None, None)
        self._client_ids = ClientIds()
        self._watch: FileWatch[Contents] | None = None
        self._left_out: set[str] = set()
        self._problem: str | None = None
        self._timer: Timer | None = None
        self._checking = False
        self._pool: VerificationPool | None = None

    # Lifecycle

    @hookimpl
    def requirements(self) -> Requirements:
        """Declare version 2 of the SPI."""
        return Requirements(spi_version=2)

    @hookimpl
    def settings_class(self) -> type[AuthFileSettings]:
        """The class that the settings section is parsed into."""
        return AuthFileSettings

    @hookimpl
    def configure(self, context: Context) -> None:
        """Read the files, so that `kinmqtt check` reports errors in them."""
        settings: AuthFileSettings = context.settings
        files = files_of(settings)
        watch = files.watch(settings.argon2)
        contents = watch.read_now()
        self._left_out = _unused_hooks(settings)
        context.leave_out(*sorted(self._left_out))
        self._context = context
        self._settings, self._files, self._contents, self._watch = settings, files, contents, watch
        self._client_ids = _client_ids_of(settings)
        metrics = context.metrics
        self._verified_clients = metrics.counter("verified", "clients")
        self._refused = metrics.counter("refused", "clients")
        self._busy = metrics.counter("busy", "clients")
        self._reloads = metrics.counter("reloads", "files")
        self._failures = metrics.counter("reload_failures", "files")
        self._pool = VerificationPool(context, *_bounds(settings))
        self._verified = Verified(context.clock, settings.cache_entries, settings.cache_s)
        self._verifier = Verifier(
            self._pool, self._verified, self._passwords, metrics.counter("cache_hits", "clients")
        )
        self._users = Users(context)
        self._seals = Seals()
        metrics.gauge("cached", "passwords", lambda: len(self._verified))
        self._log_notes()

    @hookimpl
    def start(self, context: Context) -> None:
        """Start to check the files for changes."""
        context.log.info("{summary} read from {names}", summary=self._contents.summary(), names=self._files.names())
        self._schedule_check()

    @hookimpl
    async def reload(self, settings: AuthFileSettings) -> Sequence[str]:
        """Take new settings and read the files at once; on an error, raise and keep the current state."""
        files = files_of(settings)
        watch = files.watch(settings.argon2)
        try:
            contents = await self._context.in_thread(watch.read_now)
        except SettingsError as error:
            self._failures.value += 1
            self._problem = "; ".join(error.problems)
            raise
        self._verified.set_limits(settings.cache_entries, settings.cache_s)
        assert self._pool is not None
        self._pool.resize(*_bounds(settings))
        self._settings, self._files, self._watch = settings, files, watch
        self._client_ids = _client_ids_of(settings)
        self._take(contents)
        self._schedule_check()
        late = self._left_out - _unused_hooks(settings)
        return tuple(
            f"{REQUIRED_SETTINGS[hook]}: what it asks for begins after a restart"
            for hook in REQUIRED_SETTINGS
            if hook in late
        )

    @hookimpl
    def stop(self) -> None:
        """Stop checking the files, and reject waiting clients."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pool is not None:
            self._pool.close()

    @hookimpl
    def health(self) -> Health:
        """Degraded while a file is invalid and the old contents are in use."""
        if self._problem is not None:
            return Health(HealthState.DEGRADED, f"the old contents stay in use: {self._problem}")
        return Health(HealthState.HEALTHY, self._contents.summary())

    # Authentication

    @hookimpl
    async def authenticate(self, request: ConnectRequest) -> Decision | None:
        """Accept a client with a user's right password; abstain for a client without a user name."""
        username, password = request.username, request.password
        if self._contents.passwords is None or not username:
            return None  # An empty name counts as none, as in Mosquitto.
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
        self._verified_clients.value += 1
        if not self._settings.disconnect_removed:
            return allow_as()
        # No await since the verification, so this is the hash that was verified.
        return allow_as(Identity(attributes={VERIFIED: self._seals.of(username, self._passwords().get(username))}))

    @hookimpl
    def choose_server(self, client: Client) -> Reject | None:
        """Refuse a client id that the user may not have, whichever plugin has authenticated the client."""
        if self._client_ids.allows(client.client_id, client.username or None):
            return None
        self._refused.value += 1
        return WRONG_CLIENT_ID

    @hookimpl
    def connected(self, client: Client, session_present: bool) -> None:
        """Track the client, or disconnect it if its user was changed since its password was verified.

        Other plugins and stores are called in between, which may take long.
        """
        if not self._settings.disconnect_removed or client.username is None:
            return
        hash = self._passwords().users.get(client.username)
        verified = client.attributes.get(VERIFIED)
        if verified is None:
            if hash is not None:  # Another plugin authenticated it under the name of a user in the file.
                self._users.add(client)
        elif hash is not None and verified == self._seals.of(client.username, hash):
            self._users.add(client)
        elif self._context.client(client.client_id) == client:  # and no newer one of that id
            self._context.disconnect(client.client_id)
            self._context.log.info("client {client!r} disconnected: its user was changed", client=client.client_id)

    # Authorization

    @hookimpl
    def authorize(self, request: AuthorizationRequest) -> Decision | None:
        """Decide about publishing and wills. Every filter may be subscribed to; messages are checked on delivery."""
        acl = self._contents.acl
        if acl is None:
            return None
        if request.action is Action.SUBSCRIBE:
            return ALLOW
        client = request.client
        decision = acl.may_write(client.username, client.client_id, request.topic)
        if request.action is Action.WILL and not decision.allowed and self._settings.denied_wills == "drop":
            return None  # The will is dropped when it is due; another authorizer may refuse it now.
        return decision

    @hookimpl
    def authorize_receive(self, request: AuthorizationRequest) -> Decision | None:
        """Decide about one message for one client."""
        acl = self._contents.acl
        if acl is None:
            return None
        client = request.client
        return acl.may_read(client.username, client.client_id, request.topic)

    @hookimpl
    def will_publishing(self, client: Client, message: Message) -> Reject | None:
        """Drop a will that the current rules do not allow."""
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

    # File checks

    def _passwords(self) -> Passwords:
        return self._contents.passwords or NO_PASSWORDS

    def _schedule_check(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._settings.watch_s:
            self._timer = self._context.clock.later(self._settings.watch_s, self._check_files)

    def _check_files(self) -> Deferred[None] | None:
        """Check whether the files have changed, unless the last check is still running."""
        self._timer = None
        self._schedule_check()
        if self._checking:
            return None
        self._checking = True
        return Deferred.fromCoroutine(self._check_files_once())

    async def _check_files_once(self) -> None:
        watch = self._watch
        assert watch is not None
        try:
            contents = await self._context.in_thread(watch.look)
            if contents is not None and watch is self._watch:  # else a reload has read the files since
                self._take(contents)
        except SettingsError as error:
            if watch is self._watch:
                self._failed(error)
        except Exception as error:
            self._context.log.error("can't check {names}: {error}", names=self._files.names(), error=error)
        self._checking = False

    def _failed(self, error: SettingsError) -> None:
        self._failures.value += 1
        self._problem = "; ".join(error.problems)
        self._context.log.error("a file is invalid, the old contents stay in use: {problem}", problem=self._problem)

    def _take(self, contents: Contents) -> None:
        """Use new valid contents."""
        before, self._contents = self._contents, contents
        self._problem = None
        self._reloads.value += 1
        self._verified.clear()
        if before.acl is not None or contents.acl is not None:
            self._context.authorization_changed(EVERYBODY)
        self._log_notes()
        self._context.log.info("{summary} read from {names}", summary=contents.summary(), names=self._files.names())
        if self._settings.disconnect_removed and before.passwords is not None:
            gone = self._users.disconnect_changed(before.passwords, self._passwords())
            if gone:
                self._context.log.info("{count} of changed users disconnected", count=counted(gone, "client"))

    def _log_notes(self) -> None:
        """Log warnings for the operator."""
        passwords = self._contents.passwords
        users = None if passwords is None else passwords.users
        for note in (*self._contents.notes, *self._client_ids.notes(users)):
            self._context.log.warn("{note}", note=note)


def _client_ids_of(settings: AuthFileSettings) -> ClientIds:
    return ClientIds(settings.client_ids, settings.client_ids_of)


def _bounds(settings: AuthFileSettings) -> tuple[int, int, float]:
    """The limits of the verification pool."""
    return settings.verify_at_once, settings.verify_waiting, settings.failure_pause_s


def _unused_hooks(settings: AuthFileSettings) -> set[str]:
    """The hooks that a plugin with these settings does not need; they are left out, so that they cost nothing."""
    hooks = set()
    if settings.password_file is None:
        hooks.add("authenticate")
    if settings.password_file is None or not settings.disconnect_removed:
        hooks.add("connected")
    if settings.client_ids is None and not settings.client_ids_of:
        hooks.add("choose_server")
    if settings.acl_file is None:
        hooks |= {"authorize", "authorize_receive", "will_publishing"}
    return hooks
