"""SCRAM-SHA-256 (RFC 5802, RFC 7677) as an MQTT 5 authentication method (section 4.12)."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

from kinmqtt.builtins.saslprep import prepared
from kinmqtt_spi import Decision, deny, hookimpl
from kinmqtt_spi.errors import NotConfigured
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authentication import Continue, Identity, allow_as
from kinmqtt_spi.settings import setting

if TYPE_CHECKING:
    from kinmqtt_spi.services.authentication import ExchangeStep
    from kinmqtt_spi.services.plugin import Context

METHOD: Final = "SCRAM-SHA-256"
ITERATIONS: Final = 4096
"""The minimum of RFC 7677; secrets that are made elsewhere may have more."""

_SECRET: Final = re.compile(r"SCRAM-SHA-256\$(\d+):([A-Za-z0-9+/=]+)\$([A-Za-z0-9+/=]+):([A-Za-z0-9+/=]+)")
_FIRST: Final = re.compile(
    r"(?P<header>(?:n|y),(?:a=(?P<authzid>[^,]+))?,)"
    r"(?P<bare>n=(?P<user>(?:[^,=]|=2C|=3D)+),r=(?P<nonce>[!-+\--~]+))(?:,.*)?"
)
"""A client-first message (RFC 5802 section 7). In a name "," is written =2C and "=" is =3D; no other "=" occurs."""

_FINAL: Final = re.compile(
    r"(?P<without>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>[!-+\--~]+)(?:,[^,]*)*),p=(?P<proof>[A-Za-z0-9+/=]+)"
)


@frozen(slots=True)
class Secret:
    """A server's secret for a password: it can check a proof, but not make one."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    @classmethod
    def of(cls, password: str, salt: bytes, iterations: int = ITERATIONS) -> Secret:
        """Derive the secret of a password; raise ``ValueError`` if SASLprep forbids the password."""
        salted = hashlib.pbkdf2_hmac("sha256", prepared(password).encode(), salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", "sha256")
        return cls(
            iterations, salt, hashlib.sha256(client_key).digest(), hmac.digest(salted, b"Server Key", "sha256")
        )

    @classmethod
    def parse(cls, text: str) -> Secret:
        """Parse ``SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>``, PostgreSQL's format."""
        match = _SECRET.fullmatch(text)
        if match is None:
            raise ValueError("expected SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>")
        if not int(match[1]):
            raise ValueError("the number of iterations must be at least 1")
        parts = {}
        for part, text, size in (("salt", match[2], None), ("StoredKey", match[3], 32), ("ServerKey", match[4], 32)):
            try:
                parts[part] = b64decode(text, validate=True)
            except Base64Error:
                raise ValueError(f"its {part} is not base64") from None
            if size is not None and len(parts[part]) != size:
                raise ValueError(f"its {part} has {len(parts[part])} bytes instead of {size}")
        return cls(int(match[1]), *parts.values())

    def __str__(self) -> str:
        salt, stored, server = (b64encode(part).decode() for part in (self.salt, self.stored_key, self.server_key))
        return f"{METHOD}${self.iterations}:{salt}${stored}:{server}"


def _check_secrets(instance: object, attribute: Any, value: dict[str, str]) -> None:
    for user, secret in value.items():
        try:
            _check_name(user)
            Secret.parse(secret)
        except ValueError as error:
            raise ValueError(f"user {user!r}: {error}") from None


def _check_name(user: str) -> None:
    """Raise ``ValueError`` for a name with which no client could authenticate.

    The settings must have the normalized name, which bans, access control lists and limits see.
    """
    name = prepared(user)
    if not name:
        raise ValueError("the name is empty after SASLprep")
    if name != user:
        raise ValueError(f"write {name!r}, the name after SASLprep, under which the client is known")


@frozen(slots=True)
class ScramSettings:
    """``[plugins.scram]``."""

    users: dict[str, str] = setting(
        factory=dict,
        help="user name to SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>, PostgreSQL's format",
        secret=True,
        validator=_check_secrets,
    )


@frozen(slots=True)
class _Pending:
    """The state between the client's two messages."""

    user: str
    """The name after SASLprep, under which the secret was found; only this is the client's name."""
    secret: Secret
    known: bool
    nonce: str
    header: str
    so_far: str
    """Client-first-bare and server-first, which both proofs cover."""
    expected: str | None
    """The client's current user name, if it re-authenticates."""


class Scram:
    """The server's side of SCRAM-SHA-256, without channel binding."""

    def __init__(self, random_bytes: Callable[[int], bytes] = secrets.token_bytes) -> None:
        self._random = random_bytes
        self._secrets: dict[str, Secret] = {}
        self._disguise = random_bytes(32)

    @hookimpl
    def settings_class(self) -> type[ScramSettings]:
        """Return the class of the settings."""
        return ScramSettings

    @hookimpl
    def configure(self, context: Context) -> None:
        """Read the users."""
        if not context.settings.users:
            raise NotConfigured("there are no users")
        self._take(context.settings)

    @hookimpl
    def reload(self, settings: ScramSettings) -> Sequence[str]:
        """Use new users; connected clients stay. Raises, and keeps the old users, if there are none."""
        if not settings.users:
            raise NotConfigured("there are no users")
        self._take(settings)
        return ()

    @hookimpl
    def exchange(self, step: ExchangeStep) -> Decision | Continue | None:
        """Handle one of the client's two messages; abstain from other methods, and without users."""
        if step.method != METHOD or not self._secrets:
            return None
        try:
            text = (step.data or b"").decode()
            if isinstance(step.state, _Pending):
                return self._second(text, step.state)
            return self._first(text, step.request.username if step.reauthentication else None)
        except (UnicodeDecodeError, Base64Error, ValueError):
            return deny(ReasonCode.NOT_AUTHORIZED, "not a SCRAM message")

    def _first(self, text: str, expected: str | None) -> Decision | Continue:
        match = _FIRST.fullmatch(text)
        if match is None or match["authzid"] is not None:
            return deny(ReasonCode.NOT_AUTHORIZED, "not a SCRAM client-first message without channel binding")
        try:
            user = prepared(match["user"].replace("=2C", ",").replace("=3D", "="))
        except ValueError as error:
            return deny(ReasonCode.NOT_AUTHORIZED, f"the SCRAM user name is refused: {error}")
        if not user:
            return deny(ReasonCode.NOT_AUTHORIZED, "the SCRAM user name is refused: it is empty after SASLprep")
        secret = self._secrets.get(user)
        known = secret is not None
        if secret is None:
            secret = self._pretended(user)
        nonce = match["nonce"] + self._nonce()
        answer = f"r={nonce},s={b64encode(secret.salt).decode()},i={secret.iterations}"
        pending = _Pending(user, secret, known, nonce, match["header"], f"{match['bare']},{answer}", expected)
        return Continue(answer.encode(), pending)

    def _second(self, text: str, pending: _Pending) -> Decision:
        match = _FINAL.fullmatch(text)
        if match is None or match["nonce"] != pending.nonce:
            return deny(ReasonCode.NOT_AUTHORIZED, "not the expected SCRAM client-final message")
        if b64decode(match["binding"]) != pending.header.encode():
            return deny(ReasonCode.NOT_AUTHORIZED, "the channel binding differs from that of the first message")
        covered = f"{pending.so_far},{match['without']}".encode()
        signature = hmac.digest(pending.secret.stored_key, covered, "sha256")
        proof = b64decode(match["proof"])
        if len(proof) != len(signature):
            return deny(ReasonCode.NOT_AUTHORIZED, "authentication failed")
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        right = hmac.compare_digest(hashlib.sha256(client_key).digest(), pending.secret.stored_key)
        if not (right and pending.known):
            return deny(ReasonCode.NOT_AUTHORIZED, "authentication failed")
        if pending.expected not in (None, pending.user):
            return deny(ReasonCode.NOT_AUTHORIZED, "re-authentication must be for the same user")
        verifier = b64encode(hmac.digest(pending.secret.server_key, covered, "sha256"))
        return allow_as(Identity(username=pending.user), data=b"v=" + verifier)

    def _pretended(self, user: str) -> Secret:
        """Return a secret for an unknown user, always with the same salt, so that clients can't probe for names."""
        salt = hmac.digest(self._disguise, user.encode(), "sha256")[:16]
        return Secret(ITERATIONS, salt, b"\0" * 32, b"\0" * 32)

    def _nonce(self) -> str:
        return b64encode(self._random(18)).decode()

    def _take(self, settings: ScramSettings) -> None:
        self._secrets = {user: Secret.parse(secret) for user, secret in settings.users.items()}
