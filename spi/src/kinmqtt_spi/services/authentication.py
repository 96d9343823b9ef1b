"""Authentication: who a client is, and whether it may come in (sections 3.1 and 4.12)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from attrs import field, frozen

from kinmqtt_spi.properties import NO_PROPERTIES, Properties
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.values import NO_ATTRIBUTES, Address, Decision, Verdict


def _secret(value: bytes | None) -> str:
    return "None" if value is None else f"<{len(value)} bytes>"


@frozen(slots=True)
class ConnectRequest:
    """What a client says of itself in CONNECT, and what its connection says of it."""

    client_id: str
    """Empty where the client leaves the choice to the broker (section 3.1.3.1)."""
    username: str | None = None
    """As the client says; where its listener takes the user name from certificates, as its certificate says."""
    username_verified: bool = field(default=False, kw_only=True)
    """Whether the user name is the certificate's, which TLS has verified, and not what the client says."""
    password: bytes | None = field(default=None, repr=_secret)
    """Never shown in a ``repr``."""
    address: Address = Address("")
    """Where it connects from: ``host`` and ``port``."""
    listener: str = ""
    """The name of the listener it came to."""
    protocol_version: int = 4
    """The protocol level of CONNECT: 3 (MQTT 3.1), 4 (3.1.1) or 5."""
    clean_start: bool = True
    """Whether it asks for a new session; in MQTT 3 the flag is called Clean Session."""
    keep_alive_s: int = 0
    """As asked for; 0 for none."""
    certificate_subject: str | None = None
    """Whom a verified client certificate was issued to (RFC 4514), where it has shown one."""
    properties: Properties = field(default=NO_PROPERTIES, repr=False)
    """Those of an MQTT 5 CONNECT."""


@frozen(slots=True)
class Identity:
    """What an authenticator knows of a client it lets in."""

    username: str | None = None
    """Replaces the user name of CONNECT where it is not ``None``; left out, the authenticator has verified that."""
    client_id: str | None = None
    """Replaces the client id of CONNECT where it is not ``None``; an MQTT 5 client is told its new one."""
    attributes: Mapping[str, str] = NO_ATTRIBUTES
    """For authorizers and limiters: they find it in ``Client.attributes``."""
    expires_at: float | None = None
    """Seconds since the epoch, UTC, after which the client is disconnected and must come again."""
    anonymous: bool = field(default=False, kw_only=True)
    """Nobody has verified a user name: that of CONNECT is dropped, and ``Client.username`` is ``None``."""

    def __attrs_post_init__(self) -> None:
        if self.anonymous and self.username is not None:
            raise ValueError("an anonymous identity has no user name")

    def username_of(self, request: ConnectRequest) -> str | None:
        """The user name of a client that is let in under this identity; ``None`` for an anonymous one."""
        if self.anonymous:
            return None
        return request.username if self.username is None else self.username


@frozen(slots=True)
class Authenticated(Decision):
    """ALLOW with what the authenticator knows: the answer of ``authenticate`` and of ``exchange``."""

    identity: Identity = Identity()
    data: bytes | None = field(default=None, repr=_secret)
    """The last authentication data of an exchange, sent along with the CONNACK or AUTH packet."""


def allow_as(identity: Identity = Identity(), *, data: bytes | None = None) -> Authenticated:
    """Let the client in under ``identity``."""
    return Authenticated(Verdict.ALLOW, identity=identity, data=data)


ALLOW_ANONYMOUS: Final = allow_as(Identity(anonymous=True))
"""Let the client in, and drop the user name that it gives: nobody has verified it."""


@frozen(slots=True)
class Continue:
    """An answer of ``exchange`` that is not the last: ask the client for its next step with this data."""

    data: bytes | None = field(default=None, repr=_secret)
    state: object = None
    """Handed back with the client's next step; the mechanism's own."""


@frozen(slots=True)
class ExchangeStep:
    """One step of enhanced authentication or re-authentication (section 4.12)."""

    method: str
    data: bytes | None = field(repr=_secret)
    state: object
    """``None`` in the first step, then what the last :class:`Continue` held."""
    request: ConnectRequest
    reauthentication: bool = False


@frozen(slots=True)
class Redirect:
    """Send the client to another server (section 4.11)."""

    server_reference: str
    """Where to go, in the form of section 4.11: space-separated names, each with an optional port."""
    permanent: bool = False

    @property
    def reason(self) -> ReasonCode:
        """0x9D for a permanent move, else 0x9C."""
        return ReasonCode.SERVER_MOVED if self.permanent else ReasonCode.USE_ANOTHER_SERVER
