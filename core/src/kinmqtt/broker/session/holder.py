"""What one session holds of what all clients share, counted for its user and for all together."""

from __future__ import annotations

from kinmqtt.broker.runtime import Runtime
from kinmqtt.broker.session.patterns import Patterns
from kinmqtt.broker.turn.ports import Recipient
from kinmqtt_spi.values import Subscription, Will


class Holder(Recipient):
    """The account-keeping of a session: it is right at every moment between two calls.

    Subscriptions and the will change here and nowhere else. What is queued is counted by what waits for the client
    (:class:`~kinmqtt.broker.session.queue.SessionQueue`) and by the session.
    """

    __slots__ = (
        "_away_bytes",
        "_is_over",
        "_large_bytes",
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
        """``name`` is that of the user's account; ``persistent`` says whether the session outlives its connection."""
        self._runtime = runtime
        self.persistent = persistent
        """Whether the session outlives its connection, and so lives in the stores."""
        self.account = runtime.accounts.enter(name)
        """The user's: it is left when the session ends."""
        self._is_over = False
        self.subscriptions: dict[str, Subscription] = {}
        """By filter, as the client wrote it. Changed by :meth:`add_subscription` and :meth:`remove_subscription`."""
        self._patterns: Patterns | None = None
        # Those of the filters; absent in most sessions, whose filters add nothing to a match.
        self.subscription_bytes = 0
        self._will: Will | None = None
        self.will_bytes = 0
        self.queued_bytes = 0
        """What waits for the client, and what of the next two is counted with it."""
        self._away_bytes = 0
        """What is in flight to a client that is away: nothing else bounds how much that is, of all together."""
        self._large_bytes = 0
        """What is in flight in large messages to a client that is there: the window bounds how much others are."""
        self._count_session(1)

    @property
    def will(self) -> Will | None:
        """What is to be published when the client is gone."""
        return self._will

    @will.setter
    def will(self, will: Will | None) -> None:
        self._will = will
        self._hold(self.subscription_bytes, 0 if will is None else will.message.size_bytes)

    def add_subscription(self, subscription: Subscription) -> bool:
        """The client has a subscription; ``True`` if it had none with that filter."""
        full_filter = subscription.full_filter
        new = full_filter not in self.subscriptions
        self.subscriptions[full_filter] = subscription
        if new:
            self._hold(self.subscription_bytes + subscription.size_bytes, self.will_bytes)
            if self._patterns is not None or subscription.share_group or "+" in subscription.filter:
                if self._patterns is None:
                    self._patterns = Patterns()
                self._patterns.add(subscription)
        return new

    def remove_subscription(self, full_filter: str) -> Subscription | None:
        """The client has a subscription no more; ``None`` if it had none with that filter."""
        subscription = self.subscriptions.pop(full_filter, None)
        if subscription is not None:
            self._hold(self.subscription_bytes - subscription.size_bytes, self.will_bytes)
            if self._patterns is not None:
                self._patterns.remove(subscription)
        return subscription

    def match_steps_with(self, subscription: Subscription) -> int:
        """What all filters add to matching one message, at most, with one more of them."""
        patterns = self._patterns
        if patterns is None:
            patterns = Patterns()
        return patterns.steps + patterns.added_by(subscription)

    def count_queued(self, more_bytes: int) -> None:
        """So much more, or less, is held for the client."""
        self.queued_bytes += more_bytes
        self.account.queued_bytes += more_bytes
        self._runtime.queued.size_bytes += more_bytes

    def count_for(self, name: str) -> None:
        """From now on what the session holds counts for the user of this name."""
        if name == self.account.name or self._is_over:
            return
        before, self.account = self.account, self._runtime.accounts.enter(name)
        for account, sign in ((before, -1), (self.account, 1)):
            account.sessions += sign if self.persistent else 0
            account.subscription_bytes += sign * self.subscription_bytes
            account.will_bytes += sign * self.will_bytes
            account.queued_bytes += sign * self.queued_bytes
        self._runtime.accounts.leave(before)

    def close_account(self) -> None:
        """The session is over, and holds nothing; whatever is done with it from here on counts nowhere."""
        if self._is_over:
            return
        self._count_away(0)
        self._count_large(0)
        self._hold(0, 0)
        self._count_session(-1)
        self._is_over = True
        self._runtime.accounts.leave(self.account)

    def _hold(self, subscription_bytes: int, will_bytes: int) -> None:
        if self._is_over:
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

    def _count_away(self, size_bytes: int) -> None:
        """Count what is in flight among what waits for all clients together, while the client is away."""
        if not self._is_over:
            self.count_queued(size_bytes - self._away_bytes)
            self._away_bytes = size_bytes

    def _count_large(self, size_bytes: int) -> None:
        """Count large messages in flight among what waits for all clients together."""
        if not self._is_over:
            self.count_queued(size_bytes - self._large_bytes)
            self._large_bytes = size_bytes
