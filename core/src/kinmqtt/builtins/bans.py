"""Bans clients, users and addresses, permanently or until a given time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from kinmqtt.networks import Network, is_within, parse_network
from kinmqtt_spi import Decision, Reject, deny, hookimpl
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.settings import setting

if TYPE_CHECKING:
    from kinmqtt_spi.services.authentication import ConnectRequest, Redirect
    from kinmqtt_spi.services.plugin import Context
    from kinmqtt_spi.values import Address, Client

_BANNED = ReasonCode.BANNED


def _moment(text: str) -> float:
    """Parse an ISO 8601 time to seconds since the epoch; without a time zone it is UTC."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a time; write for example 2027-01-31T12:00:00Z") from None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def _check_moment(instance: object, attribute: Any, value: str | None) -> None:
    if value is not None:
        _moment(value)


def _check_network(instance: object, attribute: Any, value: str | None) -> None:
    if value is not None:
        parse_network(value)


@frozen(slots=True)
class BanSettings:
    """A ban. A client must match all given conditions."""

    client_id: str | None = setting(None, help="this client id")
    username: str | None = setting(None, help="this user name")
    address: str | None = setting(
        None, help="this address or network, such as 192.0.2.0/24", validator=_check_network
    )
    until: str | None = setting(
        None, help="a time such as 2027-01-31T12:00:00Z; default: permanent", validator=_check_moment
    )
    why: str = setting("banned", help="the reason for the client and the log")

    def __attrs_post_init__(self) -> None:
        if self.client_id is None and self.username is None and self.address is None:
            raise ValueError("give a client_id, a username or an address: this entry would ban all clients")


@frozen(slots=True)
class BansSettings:
    """``[plugins.bans]``."""

    entries: tuple[BanSettings, ...] = setting((), help="the bans")


@frozen(slots=True)
class _Ban:
    client_id: str | None
    username: str | None
    network: Network | None = field(default=None)
    until: float | None = None
    why: str = "banned"

    def fits(self, now: float, host: str, client_id: str | None, username: str | None) -> bool:
        if self.until is not None and now >= self.until:
            return False
        if self.client_id is not None and self.client_id != client_id:
            return False
        if self.username is not None and self.username != username:
            return False
        return self.network is None or is_within(host, (self.network,))

    @property
    def of_address_only(self) -> bool:
        return self.client_id is None and self.username is None


class Bans:
    """Refuses banned clients: addresses and CONNECT's names before authentication, verified names after it."""

    def __init__(self) -> None:
        self._bans: tuple[_Ban, ...] = ()
        self._context: Context | None = None

    @hookimpl
    def settings_class(self) -> type[BansSettings]:
        """Return the class of the settings."""
        return BansSettings

    @hookimpl
    def configure(self, context: Context) -> None:
        """Read the bans."""
        self._context = context
        self._take(context.settings)

    @hookimpl
    def reload(self, settings: BansSettings) -> Sequence[str]:
        """Use new bans for clients that connect from now on."""
        self._take(settings)
        return ()

    @hookimpl
    def connection_opened(self, address: Address) -> Decision | None:
        """Refuse a banned address before any byte is read."""
        ban = self._find(address.host, None, None, address_only=True)
        return None if ban is None else deny(_BANNED, ban.why)

    @hookimpl
    def connect_received(self, request: ConnectRequest) -> Reject | None:
        """Refuse a banned client or user by the names in CONNECT."""
        ban = self._find(request.address.host, request.client_id, request.username)
        return None if ban is None else Reject(_BANNED, ban.why)

    @hookimpl
    def choose_server(self, client: Client, redirect: Redirect | None) -> Reject | None:
        """Refuse a banned client or user by the names that the authenticator verified."""
        ban = self._find(client.address.host, client.client_id, client.username)
        return None if ban is None else Reject(_BANNED, ban.why)

    def _find(
        self, host: str, client_id: str | None, username: str | None, address_only: bool = False
    ) -> _Ban | None:
        if not self._bans or self._context is None:
            return None
        now = self._context.clock.now()
        return next(
            (
                ban
                for ban in self._bans
                if (ban.of_address_only or not address_only) and ban.fits(now, host, client_id, username)
            ),
            None,
        )

    def _take(self, settings: BansSettings) -> None:
        self._bans = tuple(
            _Ban(
                entry.client_id,
                entry.username,
                None if entry.address is None else parse_network(entry.address),
                None if entry.until is None else _moment(entry.until),
                entry.why,
            )
            for entry in settings.entries
        )
