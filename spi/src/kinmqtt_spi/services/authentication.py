"""Authentication: who a client is, and whether it is accepted (sections 3.1 and 4.12)."""

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
    """The fields of CONNECT, and properties of the client's connection."""

    client_id: str
    """Empty if the broker is to assign a client id (section 3.1.3.1)."""
    username: str | None = None
    """The user name in CONNECT, or that of the certificate if the listener takes user names from certificates."""
    username_verified: bool = field(default=False, kw_only=True)
    """Whether the user name comes from a certificate that TLS has verified, not from CONNECT."""
    password: bytes | None = field(default=None, repr=_secret)
    """The password in CONNECT. It is not shown in a ``repr``."""
    address: Address = Address("")
    """Where it connects from: ``host`` and ``port``."""
    listener: str = ""
    """The name of the listener that accepted the connection."""
    protocol_version: int = 4
    """The protocol level of CONNECT: 3 (MQTT 3.1), 4 (3.1.1) or 5."""
    clean_start: bool = True
    """Whether the client requests a new session; in MQTT 3 the flag is called Clean Session."""
    keep_alive_s: int = 0
    """The requested keep alive, in seconds; 0 for none."""
    certificate_subject: str | None = None
    """The subject of a verified client certificate (RFC 4514), if the client has sent one."""
    properties: Properties = field(default=NO_PROPERTIES, repr=False)
    """The properties of an MQTT 5 CONNECT."""


@frozen(slots=True)
class Identity:
    """The identity that an authenticator gives to a client it accepts."""

    username: str | None = None
    """Replaces the user name of CONNECT. ``None`` keeps that one, which the authenticator has then verified."""
    client_id: str | None = None
    """Replaces the client id of CONNECT if it is not ``None``; an MQTT 5 client gets it in CONNACK."""
    attributes: Mapping[str, str] = NO_ATTRIBUTES
    """``Client.attributes``, for authorizers and limiters."""
    expires_at: float | None = None
    """Seconds since the epoch, UTC, at which the client is disconnected and must authenticate again."""
    anonymous: bool = field(default=False, kw_only=True)
    """Whether no user name was verified: that of CONNECT is ignored, and ``Client.username`` is ``None``."""

    def __attrs_post_init__(self) -> None:
        if self.anonymous and self.username is not None:
            raise ValueError("an anonymous identity has no user name")

    def username_of(self, request: ConnectRequest) -> str | None:
        """Return the user name of a client with this identity; ``None`` for an anonymous one."""
        if self.anonymous:
            return None
        return request.username if self.username is None else self.username


@frozen(slots=True)
class Authenticated(Decision):
    """ALLOW with an identity: an answer of ``authenticate`` and of ``exchange``."""

    identity: Identity = Identity()
    data: bytes | None = field(default=None, repr=_secret)
    """The last authentication data of an exchange, sent with the CONNACK or AUTH packet."""


def allow_as(identity: Identity = Identity(), *, data: bytes | None = None) -> Authenticated:
    """Accept the client with ``identity``."""
    return Authenticated(Verdict.ALLOW, identity=identity, data=data)


ALLOW_ANONYMOUS: Final = allow_as(Identity(anonymous=True))
"""Accepts the client and ignores its user name, which was not verified."""


@frozen(slots=True)
class Continue:
    """An answer of ``exchange`` that requests the client's next step with this data."""

    data: bytes | None = field(default=None, repr=_secret)
    state: object = None
    """State of the mechanism, passed back with the client's next step."""


@frozen(slots=True)
class ExchangeStep:
    """One step of enhanced authentication or re-authentication (section 4.12)."""

    method: str
    data: bytes | None = field(repr=_secret)
    state: object
    """``None`` in the first step, then the state of the last :class:`Continue`."""
    request: ConnectRequest
    reauthentication: bool = False


@frozen(slots=True)
class Redirect:
    """Send the client to another server (section 4.11)."""

    server_reference: str
    """The other servers, as in section 4.11: space-separated names, each with an optional port."""
    permanent: bool = False

    @property
    def reason(self) -> ReasonCode:
        """0x9D for a permanent move, else 0x9C."""
        return ReasonCode.SERVER_MOVED if self.permanent else ReasonCode.USE_ANOTHER_SERVER
