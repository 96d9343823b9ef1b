"""The ways in: each listener has its own limits and authenticators, and counts who came in by it."""

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
    """A listener as the settings describe it, before there is a broker."""

    name: str
    """Its table's name, or its endpoint as the operator wrote it."""
    is_local: bool
    """Whether only this machine can reach it."""
    settings: ListenerSettings
    place: str = ""
    """Where it stands: file, line and key, or the option."""


class Listener:
    """What a running broker knows of one way in."""

    __slots__ = ("_own", "arriving", "authenticate", "connections", "exchange", "limits", "name")

    def __init__(
        self, plan: ListenerPlan, limits: LimitSettings, hooks: Hooks, authenticators: tuple[str, ...] | None
    ) -> None:
        """``authenticators`` are the plugins that are asked here; ``None`` for all."""
        self.name = plan.name
        self._own = plan.settings.limits
        self.limits = self._own.over(limits)
        self.connections = 0
        self.arriving = 0
        """Connections of which it is not known yet who is there."""
        self.authenticate: Decide[[ConnectRequest]] = hooks.authenticate
        self.exchange: Decide[[ExchangeStep]] = hooks.exchange
        if authenticators is not None:
            self.authenticate = hooks.authenticate.among(authenticators)
            self.exchange = hooks.exchange.among(authenticators)

    @property
    def is_full(self) -> bool:
        """Whether no further connection may come in here."""
        limit = self._own.max_connections
        return limit is not None and self.connections + self.arriving >= limit

    def limit(self, limits: LimitSettings) -> None:
        """Take new limits of the broker; the listener's own stand over them."""
        self.limits = self._own.over(limits)
