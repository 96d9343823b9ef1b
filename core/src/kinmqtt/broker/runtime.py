"""What every part of the broker works with, made once by the composition root."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from attrs import define, field

from kinmqtt.broker.batch import Stores
from kinmqtt.broker.hooks import Hooks
from kinmqtt.broker.settings import BrokerSettings, LimitSettings
from kinmqtt.broker.statistics import Statistics
from kinmqtt.broker.turn import Turn
from kinmqtt_spi.services.plugin import Clock
from kinmqtt_spi.values import Message, MessageId, NodeIdentity


@define(slots=True)
class Tally:
    """What waits for all clients together."""

    messages: int = 0
    size_bytes: int = 0


@define(slots=True)
class Runtime:
    """The settings, services and helpers that sessions, connections and the router share."""

    settings: BrokerSettings
    limits: LimitSettings
    node: NodeIdentity
    clock: Clock
    hooks: Hooks
    statistics: Statistics
    stores: Stores
    turn: Turn
    random_hex: Callable[[int], str]
    """That many random bytes, in hexadecimal."""
    waiting: Tally = field(factory=Tally, init=False)
    _counter: Callable[[], int] = field(factory=lambda: count(1).__next__, init=False, repr=False)

    def mint(self) -> MessageId:
        """A new message id."""
        return MessageId(self.node.uid, self._counter())

    def drop(self, client_id: str, message: Message, why: str) -> None:
        """Count, and tell, that a message does not reach a client."""
        self.statistics.dropped[why].value += 1
        if self.hooks.dropped.active:
            self.hooks.dropped(client_id, message, why)
