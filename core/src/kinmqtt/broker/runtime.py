"""The settings, services and helpers shared by all parts of the broker."""

from __future__ import annotations

from collections.abc import Callable

from kinmqtt.broker.accounts import Accounts
from kinmqtt.broker.buffers import Buffers
from kinmqtt.broker.log_lines import LogLines
from kinmqtt.broker.message.message_ids import MessageIds
from kinmqtt.broker.rights import Rights
from kinmqtt.broker.slow_consumers import SlowConsumers
from kinmqtt.broker.statistics import Statistics
from kinmqtt.broker.turn.batch import Stores
from kinmqtt.broker.turn.slices import Slices
from kinmqtt.broker.turn.turn import Turn
from kinmqtt.broker.turn.turn_buffer import Discard
from kinmqtt.hooks.registry import Hooks
from kinmqtt.settings import BrokerSettings, LimitSettings
from kinmqtt_spi.services.plugin import Clock
from kinmqtt_spi.values import Message, NodeIdentity


class QueueTotals:
    """The queued messages of all clients."""

    __slots__ = ("messages", "size_bytes")

    def __init__(self) -> None:
        self.messages = 0
        self.size_bytes = 0


class Runtime:
    """The settings, services and helpers that sessions, connections and the router share."""

    __slots__ = (
        "accounts",
        "buffers",
        "clock",
        "congested",
        "hooks",
        "limits",
        "log_lines",
        "message_ids",
        "node",
        "notifies_acknowledged",
        "notifies_delivered",
        "notifies_published",
        "offline",
        "queued",
        "random_hex",
        "refuses",
        "rights",
        "settings",
        "slices",
        "slow_consumers",
        "statistics",
        "stores",
        "turn",
    )

    def __init__(
        self,
        settings: BrokerSettings,
        limits: LimitSettings,
        node: NodeIdentity,
        clock: Clock,
        hooks: Hooks,
        statistics: Statistics,
        stores: Stores,
        turn: Turn,
        buffers: Buffers,
        slices: Slices,
        random_hex: Callable[[int], str],
        rights: Rights,
    ) -> None:
        """``random_hex`` returns that many random bytes in hexadecimal."""
        self.settings = settings
        self.limits = limits
        self.node = node
        self.message_ids = MessageIds(node.uid)
        self.clock = clock
        self.hooks = hooks
        self.statistics = statistics
        self.stores = stores
        self.turn = turn
        self.buffers = buffers
        self.slices = slices
        self.random_hex = random_hex
        self.rights = rights
        # Copied from the hooks for a fast check per message: they do not change after binding.
        self.notifies_acknowledged = hooks.acknowledged.active
        """Whether a plugin implements the hook ``acknowledged``."""
        self.notifies_delivered = hooks.delivered.active
        self.notifies_published = hooks.published.active
        self.queued = QueueTotals()
        self.offline = Discard(statistics, "offline")
        """The buffer of sessions whose client is offline."""
        self.congested = Discard(statistics, "outbound_buffer_full")
        """The buffer of sessions whose client is congested."""
        self.log_lines = LogLines(clock)
        self.slow_consumers = SlowConsumers(self.now, self.log_lines)
        self.accounts = Accounts()
        self.refuses = False
        """Whether memory is so short that new subscriptions and persistent sessions are refused."""

    def now(self) -> float:
        """Returns the time of this turn, in seconds since the epoch; messages of one read have one time."""
        turn = self.turn
        if not turn.began_at:
            turn.began_at = self.clock.now()
        return turn.began_at

    def count_discarded(self) -> None:
        """Count this turn's discarded messages now, for counters read before its end."""
        self.offline.flush()
        self.congested.flush()

    def drop(self, client_id: str, message: Message, why: str) -> None:
        """Count a message dropped for a client, and notify plugins."""
        self.statistics.dropped[why].value += 1
        if self.hooks.dropped.active:
            self.hooks.dropped(client_id, message, why)
