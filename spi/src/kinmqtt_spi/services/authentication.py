"""Authentication: who a client is, and whether it may come in (sections 3.1 and 4.12)."""

from __future__ import annotations

from collections.abc import Mapping

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
    password: bytes | None = field(default=None, repr=_secret)
    address: Address = Address("")
    listener: str = ""
    protocol_version: int = 4
    clean_start: bool = True
    keep_alive_s: int = 0
    certificate_subject: str | None = None
    properties: Properties = field(default=NO_PROPERTIES, repr=False)


@frozen(slots=True)
class Identity:
    """What an authenticator knows of a client it lets in."""

    username: str | None = None
    """Replaces the user name of CONNECT where it is not ``None``."""
    client_id: str | None = None
    """Replaces the client id of CONNECT where it is not ``None``; an MQTT 5 client is told its new one."""
    attributes: Mapping[str, str] = NO_ATTRIBUTES
    expires_at: float | None = None
    """Seconds since the epoch, UTC, after which the client is disconnected and must come again."""


@frozen(slots=True)
class Authenticated(Decision):
    """ALLOW with what the authenticator knows: the answer of ``authenticate`` and of ``exchange``."""

    identity: Identity = Identity()
    data: bytes | None = field(default=None, repr=_secret)
    """The last authentication data of an exchange, sent along with the CONNACK or AUTH packet."""


def allow_as(identity: Identity = Identity(), *, data: bytes | None = None) -> Authenticated:
    """Let the client in under ``identity``."""
    return Authenticated(Verdict.ALLOW, identity=identity, data=data)


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
