"""Topic aliases that the broker sends to a client (section 3.3.2.3.4)."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

WORTHWHILE_BYTES: Final = 4
"""A topic up to this length is shorter than the alias property."""


class OutgoingAliases:
    """The topics to which one connection has assigned an alias; the least recently used one is replaced."""

    __slots__ = ("_maximum", "_numbers")

    def __init__(self, maximum: int) -> None:
        """``maximum`` is the client's Topic Alias Maximum (section 3.1.2.11.5), or less."""
        self._maximum = maximum
        self._numbers: OrderedDict[str, int] = OrderedDict()

    def use(self, topic: str) -> tuple[str, int] | None:
        """Return the topic and the alias for a PUBLISH; ``None`` if an alias does not pay.

        The packet must be sent next; otherwise call :meth:`forget`.
        """
        if len(topic) <= WORTHWHILE_BYTES:
            return None
        number = self._numbers.get(topic)
        if number is not None:
            self._numbers.move_to_end(topic)
            return "", number
        number = len(self._numbers) + 1
        if number > self._maximum:
            _, number = self._numbers.popitem(last=False)
        self._numbers[topic] = number
        return topic, number

    def forget(self, topic: str) -> None:
        """Drop an alias because its packet was not sent; the topic is sent in full the next time.

        The number stays reserved for the topic, so that it is not assigned twice.
        """
        number = self._numbers.pop(topic, None)
        if number is not None:
            self._numbers[f"\0{number}"] = number
            self._numbers.move_to_end(f"\0{number}", last=False)
