"""Accounting of one session: what it holds counts for its user and for all users together."""

from __future__ import annotations

from kinmqtt.broker.runtime import Runtime
from kinmqtt.broker.session.patterns import Patterns
from kinmqtt.broker.turn.ports import Recipient
from kinmqtt_spi.values import Subscription, Will


class AccountHolder(Recipient):
    """Keeps the accounts of a session; they are exact between any two calls.

    Only this class changes subscriptions and the will. Queued messages are counted by
    :class:`~kinmqtt.broker.session.queue.SessionQueue`, messages in flight by the session.
    """

    __slots__ = (
        "_is_closed",
        "_large_inflight_bytes",
        "_offline_inflight_bytes",
        "_patterns",
        "_runtime",
        "_will",
        "account",
        "persistent",
        "queued_bytes",
        "subscription_bytes",
        "subscriptions",
        "will_bytes",
    )

    def __init__(self, runtime: Runtime, name: str, persistent: bool) -> None:
        """``name`` is the user's account; a ``persistent`` session outlives its connection."""
        self._runtime = runtime
        self.persistent = persistent
        """Whether the session outlives its connection, and so is in the stores."""
        self.account = runtime.accounts.enter(name)
        """The user's account, until the session ends."""
        self._is_closed = False
        self.subscriptions: dict[str, Subscription] = {}
        """By full filter. Changed only by :meth:`add_subscription` and :meth:`remove_subscription`."""
        self._patterns: Patterns | None = None
        # The patterns of the filters; ``None`` in most sessions, whose filters add no match steps.
        self.subscription_bytes = 0
        self._will: Will | None = None
        self.will_bytes = 0
        self.queued_bytes = 0
        """Bytes queued for the client, including the next two."""
        self._offline_inflight_bytes = 0
        """Bytes in flight to a disconnected client; nothing else limits their sum over all clients."""
        self._large_inflight_bytes = 0
        """Bytes of large messages in flight to a connected client; the window limits the small ones."""
        self._count_session(1)

    @property
    def will(self) -> Will | None:
        """The will, published after the connection is lost."""
        return self._will

    @will.setter
    def will(self, will: Will | None) -> None:
        self._will = will
        self._set_held(self.subscription_bytes, 0 if will is None else will.message.size_bytes)

    def add_subscription(self, subscription: Subscription) -> bool:
        """Add or replace a subscription; returns whether its filter is new."""
        full_filter = subscription.full_filter
        new = full_filter not in self.subscriptions
        self.subscriptions[full_filter] = subscription
        if new:
            self._set_held(self.subscription_bytes + subscription.size_bytes, self.will_bytes)
            if self._patterns is not None or subscription.share_group or "+" in subscription.filter:
                if self._patterns is None:
                    self._patterns = Patterns()
                self._patterns.add(subscription)
        return new

    def remove_subscription(self, full_filter: str) -> Subscription | None:
        """Remove a subscription and return it; ``None`` if there is none with this filter."""
        subscription = self.subscriptions.pop(full_filter, None)
        if subscription is not None:
            self._set_held(self.subscription_bytes - subscription.size_bytes, self.will_bytes)
            if self._patterns is not None:
                self._patterns.remove(subscription)
        return subscription

    def match_steps_with(self, subscription: Subscription) -> int:
        """Return the most steps that all filters together with ``subscription`` add to matching one message."""
        patterns = self._patterns
        if patterns is None:
            patterns = Patterns()
        return patterns.steps + patterns.added_by(subscription)

    def count_queued(self, more_bytes: int, more_messages: int = 0) -> None:
        """Add to what is held for the client, or subtract where a number is negative."""
        self.queued_bytes += more_bytes
        self._runtime.queued.messages += more_messages
        self.account.queued_bytes += more_bytes
        self._runtime.queued.size_bytes += more_bytes

    def count_for(self, name: str) -> None:
        """Move what the session holds to the account of the user with this name."""
        if name == self.account.name or self._is_closed:
            return
        before, self.account = self.account, self._runtime.accounts.enter(name)
        for account, sign in ((before, -1), (self.account, 1)):
            account.sessions += sign if self.persistent else 0
            account.subscription_bytes += sign * self.subscription_bytes
            account.will_bytes += sign * self.will_bytes
            account.queued_bytes += sign * self.queued_bytes
        self._runtime.accounts.leave(before)

    def close_account(self) -> None:
        """Remove the ended session from its account; later changes are not counted."""
        if self._is_closed:
            return
        self._count_offline_inflight(0)
        self._count_large_inflight(0)
        self._set_held(0, 0)
        self._count_session(-1)
        self._is_closed = True
        self._runtime.accounts.leave(self.account)

    def _set_held(self, subscription_bytes: int, will_bytes: int) -> None:
        if self._is_closed:
            return
        for account in (self.account, self._runtime.accounts.all):
            account.subscription_bytes += subscription_bytes - self.subscription_bytes
            account.will_bytes += will_bytes - self.will_bytes
        self.subscription_bytes = subscription_bytes
        self.will_bytes = will_bytes

    def _count_session(self, one: int) -> None:
        if self.persistent:
            self.account.sessions += one
            self._runtime.accounts.all.sessions += one

    def _count_offline_inflight(self, size_bytes: int) -> None:
        """Set the bytes in flight to a disconnected client; they count as queued."""
        if not self._is_closed:
            self.count_queued(size_bytes - self._offline_inflight_bytes)
            self._offline_inflight_bytes = size_bytes

    def _count_large_inflight(self, size_bytes: int) -> None:
        """Set the bytes of large messages in flight to a connected client; they count as queued."""
        if not self._is_closed:
            self.count_queued(size_bytes - self._large_inflight_bytes)
            self._large_inflight_bytes = size_bytes
