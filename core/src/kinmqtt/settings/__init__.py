"""The broker's own sections of the settings file: ``[broker]``, ``[limits]`` and ``[listeners.NAME]``."""

from kinmqtt.settings.broker import DEFAULT_ENDPOINT, BrokerSettings, EventLoop
from kinmqtt.settings.limits import NEVER_EXPIRES, WATERMARKS, LimitSettings
from kinmqtt.settings.listeners import (
    ListenerLimitSettings,
    ListenerSettings,
    TlsSettings,
    WebSocketSettings,
    from_text,
)

__all__ = [
    "DEFAULT_ENDPOINT",
    "NEVER_EXPIRES",
    "WATERMARKS",
    "BrokerSettings",
    "EventLoop",
    "LimitSettings",
    "ListenerLimitSettings",
    "ListenerSettings",
    "TlsSettings",
    "WebSocketSettings",
    "from_text",
]
