"""The state of an enhanced authentication, kept for re-authentication (section 4.12)."""

from __future__ import annotations

from attrs import define

from kinmqtt.mqtt.packets import Connect
from kinmqtt_spi.services.authentication import ConnectRequest


@define(slots=True)
class Authentication:
    """An authentication exchange; kept after it succeeds, for re-authentication."""

    method: str
    request: ConnectRequest
    packet: Connect
    state: object = None
    """The plugin's state, from its last :class:`Continue`."""
