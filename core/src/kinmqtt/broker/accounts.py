"""What clients hold of what all of them share: each user, and all together.

A user who is let in under ever more client ids is one user. So that it takes from nobody else, each has a share of
what there is (``limits.user_share``). Whoever has no user name that was checked counts by its address.
"""

from __future__ import annotations


class Account:
    """What one user, or all users together, hold at present."""

    __slots__ = ("name", "queued_bytes", "sessions", "subscription_bytes", "users", "will_bytes")

    def __init__(self, name: str) -> None:
        self.name = name
        """The user's :attr:`~kinmqtt_spi.values.Client.quota_key`."""
        self.users = 0
        """Sessions that count here, of whatever kind: with the last of them the account is closed."""
        self.sessions = 0
        """Sessions that outlive their connection."""
        self.subscription_bytes = 0
        self.will_bytes = 0
        self.queued_bytes = 0
        """What waits for clients, and what is in flight to those that are away."""


class Accounts:
    """The accounts of all users who have a session here."""

    __slots__ = ("_by_name", "all")

    def __init__(self) -> None:
        self.all = Account("")
        """All users together; :class:`~kinmqtt.broker.runtime.QueueTotals` counts their queues."""
        self._by_name: dict[str, Account] = {}

    def of(self, name: str) -> Account | None:
        """A user's account; ``None`` where the user holds nothing."""
        return self._by_name.get(name)

    def enter(self, name: str) -> Account:
        """A session begins to count for a user."""
        account = self._by_name.get(name)
        if account is None:
            account = self._by_name[name] = Account(name)
        account.users += 1
        return account

    def leave(self, account: Account) -> None:
        """A session counts for that user no more, and has taken off what it had put there."""
        account.users -= 1
        if not account.users:
            del self._by_name[account.name]

    def __len__(self) -> int:
        return len(self._by_name)
