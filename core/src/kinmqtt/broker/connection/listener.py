"""Listeners: each has its own limits and authenticators and counts its connections."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from kinmqtt.settings import LimitSettings, ListenerSettings

if TYPE_CHECKING:
    from kinmqtt.hooks.dispatch import Decide
    from kinmqtt.hooks.registry import Hooks
    from kinmqtt_spi.services.authentication import ConnectRequest, ExchangeStep


@frozen(slots=True)
class ListenerPlan:
    """A listener as configured."""

    name: str
    """The name of its settings table, or its endpoint as configured."""
    is_local: bool
    """Whether it is reachable from this machine only."""
    settings: ListenerSettings
    place: str = ""
    """Where it is configured: file, line and key, or the option."""


class Listener:
    """A listener of a running broker."""

    __slots__ = ("_own", "arriving", "authenticate", "connections", "exchange", "limits", "name")

    def __init__(
        self, plan: ListenerPlan, limits: LimitSettings, hooks: Hooks, authenticators: tuple[str, ...] | None
    ) -> None:
        """``authenticators`` are the plugins that authenticate clients of this listener; ``None`` for all."""
        self.name = plan.name
        self._own = plan.settings.limits
        self.limits = self._own.over(limits)
        self.connections = 0
        self.arriving = 0
        """Connections in a TLS handshake or before a proxy's header."""
        self.authenticate: Decide[[ConnectRequest]] = hooks.authenticate
        self.exchange: Decide[[ExchangeStep]] = hooks.exchange
        if authenticators is not None:
            self.authenticate = hooks.authenticate.among(authenticators)
            self.exchange = hooks.exchange.among(authenticators)

    @property
    def is_full(self) -> bool:
        """Whether the listener's own connection limit is reached."""
        limit = self._own.max_connections
        return limit is not None and self.connections + self.arriving >= limit

    def limit(self, limits: LimitSettings) -> None:
        """Set new broker limits; the listener's own limits override them."""
        self.limits = self._own.over(limits)
