"""The keys of a sink's messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kinmqtt_spi.bridging.calls import FAILURES
from kinmqtt_spi.bridging.failures import FailureLog, text_of
from kinmqtt_spi.services.bridge import publisher_key
from kinmqtt_spi.values import Message


class Keys:
    """Calls a plan's key function, which may raise anything."""

    __slots__ = ("_failures", "_key")

    def __init__(self, key: Callable[[Message], bytes], failures: FailureLog) -> None:
        self._key = key
        self._failures = failures

    def of(self, message: Message) -> bytes:
        """Return a message's key: the publisher's client id if the function fails, which is logged."""
        try:
            key: Any = self._key(message)
        except FAILURES as error:
            self._failures.problem("key", f"its key function raised {text_of(error)}; the client id is the key")
            return publisher_key(message)
        if isinstance(key, bytes):
            return key
        self._failures.problem("key", f"its key is a {type(key).__name__}, not bytes; the client id is the key")
        return publisher_key(message)
