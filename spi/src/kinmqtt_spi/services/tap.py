"""Tap: a plugin sees messages while the broker routes them, before their publishers are acknowledged.

A tap is called for each message that its filters match, once, in the turn in which the message is routed to the
subscribers of its topic. What the call publishes, puts into an outbox, delivers or persists is committed with the
message, and its publisher's PUBACK waits for that. Topics that no tap matches pay nothing.

What the call publishes or delivers gets a message id of its own, even if it was made with
:meth:`~kinmqtt_spi.values.Message.replace`: nodes and consumers remove repetitions by the id. What it puts into an
outbox keeps the id if its topic, payload and properties are those of the message.

A tap sees a message on the node that received it from its publisher, and on no other. It does not see what is
published below ``$SYS``, and no retained message because of a new tap.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, TypeAlias

from kinmqtt_spi.values import Message

MAX_NESTED: Final = 8
"""How deep messages that taps publish may nest: a message beyond that is dropped, and counted."""

MAX_MADE: Final = 10_000
"""How many messages taps may publish because of one, those of nested calls included; further ones are dropped."""

TapHandler: TypeAlias = Callable[[Message], object]
"""Called with each message, in the reactor thread. It answers at once: an awaitable that it returns is a failure, and
never awaited. Anything else that it returns is ignored.

If it raises, that is counted and logged, and the message goes on; what was published or put in before stays.
"""


PayloadTest: TypeAlias = Callable[[bytes], object]
"""Called with a message's payload; a true answer shows the message to the tap's handler.

Of what is left out no :class:`~kinmqtt_spi.values.Message` is made: that costs less than a handler that looks and
returns. If it raises, that is counted and logged as a failure of the handler, and the message is left out.
"""


class Tap(ABC):
    """What a plugin sees of the messages that pass, see :meth:`kinmqtt_spi.services.plugin.Context.tap`."""

    @abstractmethod
    def close(self) -> None:
        """See no further message. A second call does nothing."""
