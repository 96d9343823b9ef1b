"""An enhanced authentication under way, and what it may be repeated with (section 4.12)."""

from __future__ import annotations

from attrs import define

from kinmqtt.mqtt.packets import Connect
from kinmqtt_spi.services.authentication import ConnectRequest


@define(slots=True)
class Authentication:
    """What is known of the exchange; it stays for re-authentication."""

    method: str
    request: ConnectRequest
    packet: Connect
    state: object = None
    """What the plugin handed over with its last step."""
