"""Accounts of the resources that clients hold: for each user, and for all users together.

A user with many client ids is one user. Each user has a share of the total (``limits.user_share``), so that one can't
take it all. A client without a verified user name counts by its address.
"""

from __future__ import annotations


class Account:
    """The resources that one user, or all users together, hold."""

    __slots__ = ("name", "queued_bytes", "sessions", "subscription_bytes", "users", "will_bytes")

    def __init__(self, name: str) -> None:
        self.name = name
        """The user's :attr:`~kinmqtt_spi.values.Client.quota_key`."""
        self.users = 0
        """The number of sessions of any kind; the account is closed with the last of them."""
        self.sessions = 0
        """The number of persistent sessions."""
        self.subscription_bytes = 0
        self.will_bytes = 0
        self.queued_bytes = 0
        """Bytes queued for clients, and in flight to disconnected ones."""


class Accounts:
    """The accounts of all users with a session on this node."""

    __slots__ = ("_by_name", "all")

    def __init__(self) -> None:
        self.all = Account("")
        """All users together; :class:`~kinmqtt.broker.runtime.QueueTotals` counts their queues."""
        self._by_name: dict[str, Account] = {}

    def of(self, name: str) -> Account | None:
        """Return a user's account; ``None`` if the user has no session."""
        return self._by_name.get(name)

    def enter(self, name: str) -> Account:
        """Count a session for a user; returns the account."""
        account = self._by_name.get(name)
        if account is None:
            account = self._by_name[name] = Account(name)
        account.users += 1
        return account

    def leave(self, account: Account) -> None:
        """Uncount a session that has already subtracted its resources; closes the account with the last one."""
        account.users -= 1
        if not account.users:
            del self._by_name[account.name]

    def __len__(self) -> int:
        return len(self._by_name)
