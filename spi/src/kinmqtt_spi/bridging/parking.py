"""Parks poison messages in an outbox of their own."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeAlias

from attrs import evolve

from kinmqtt_spi.services.outbox import Accepted, Outbox
from kinmqtt_spi.values import Message

REASON_PROPERTY: Final = "kinmqtt-poison"
"""The user property of a parked message with the sink's reason."""

MAX_REASON: Final = 1000
"""The most characters of a reason that are stored."""

_UNFIT: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""Characters that a user property should not or must not have."""

AfterCommit: TypeAlias = Callable[[Callable[[], None], Callable[[], None]], None]
"""``after_commit(done, failed)`` calls ``done`` after this turn's writes so far are committed, or ``failed`` if they
are not; either in a later turn or at once."""


def unparked(message: Message) -> Message:
    """Return a parked message without the reason, for another attempt. It still does not expire."""
    *others, last = message.properties.user_property or (("", ""),)
    if last[0] != REASON_PROPERTY:
        return message
    properties = message.properties.without("user_property")
    return message.replace(properties=properties.replace(user_property=tuple(others)) if others else properties)


class NotParked(Exception):
    """The outbox of parked messages has refused a message."""


class Parking:
    """Puts messages into a second outbox, and reports when they are committed there.

    The outbox writes with the turn, and ``after_commit`` reports the commit of that turn. The original is
    acknowledged only then, in a later turn: a crash between the two parks the message twice, and loses it never.
    """

    __slots__ = ("_after_commit", "_outbox")

    def __init__(self, outbox: Outbox, after_commit: AfterCommit) -> None:
        self._outbox = outbox
        self._after_commit = after_commit

    def park(self, message: Message, why: str, done: Callable[[], None], failed: Callable[[], None]) -> None:
        """Park a message; ``done`` is called when it is committed, ``failed`` if it was not.

        Raises :class:`NotParked` if the outbox refuses it. A parked message does not expire.
        """
        reason = _UNFIT.sub(" ", why)[:MAX_REASON]
        properties = message.properties.without("message_expiry_interval")
        parked = evolve(
            message.replace(
                properties=properties.replace(user_property=(*properties.user_property, (REASON_PROPERTY, reason)))
            ),
            expires_at=None,
        )
        try:
            accepted = self._outbox.put(parked)
        except ValueError as error:
            raise NotParked(str(error)) from error
        if accepted is Accepted.REFUSED:
            raise NotParked("the outbox of parked messages is full")
        self._after_commit(done, failed)

    def count(self) -> int:
        """Return the number of parked messages."""
        figures = self._outbox.figures()
        return figures.queued + figures.inflight
