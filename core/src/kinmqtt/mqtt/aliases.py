"""Topic aliases that the broker uses towards a client (section 3.3.2.3.4)."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

WORTHWHILE_BYTES: Final = 4
"""A topic no longer than this is shorter than the property that would stand for it."""


class OutgoingAliases:
    """The topics for which one connection's client knows a number; the one used longest ago makes way."""

    __slots__ = ("_maximum", "_numbers")

    def __init__(self, maximum: int) -> None:
        """``maximum`` is the client's Topic Alias Maximum (section 3.1.2.11.5), or less."""
        self._maximum = maximum
        self._numbers: OrderedDict[str, int] = OrderedDict()

    def use(self, topic: str) -> tuple[str, int] | None:
        """What a PUBLISH carries as topic and as alias; ``None`` where an alias is not worth it.

        The packet must be the next to go out, or be followed by :meth:`forget`.
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
        """A packet that was to tell the client of a number does not go out: send the topic whole the next time.

        The number stays with the topic's place, so that none is given twice.
        """
        number = self._numbers.pop(topic, None)
        if number is not None:
            self._numbers[f"\0{number}"] = number
            self._numbers.move_to_end(f"\0{number}", last=False)
