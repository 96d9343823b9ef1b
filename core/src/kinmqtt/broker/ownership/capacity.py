"""Checks the limits on persistent sessions and on wills."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinmqtt.broker.accounts import Account

if TYPE_CHECKING:
    from kinmqtt.broker.ownership.opening import Opening
    from kinmqtt.broker.runtime import Runtime
    from kinmqtt.broker.session.session import Session


class CapacityExceeded(Exception):
    """A client requests more than its limits allow: a further persistent session, or one more will."""


class MemoryShort(Exception):
    """Memory is short, and the client requests a new persistent session."""


class Capacity:
    """Checks a CONNECT against the limits of its user and of all users together."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def check_memory(self, opening: Opening, is_stored: bool) -> None:
        """Raise :class:`MemoryShort` where overload forbids a new persistent session."""
        runtime = self._runtime
        if opening.expiry_s and not is_stored and runtime.refuses:
            runtime.statistics.overload_refused["session"].value += 1
            raise MemoryShort

    def check(self, opening: Opening, is_stored: bool, before: Session | None) -> None:
        """Raise :class:`CapacityExceeded` where a limit on persistent sessions or on wills would be exceeded.

        ``is_stored`` says whether the session store has the session already. The will of the session ``before``,
        which the CONNECT takes over or resumes, frees its bytes.
        """
        if opening.expiry_s and not is_stored:
            self._check_sessions(opening)
        if opening.will is not None:
            self._check_wills(opening, opening.will.message.size_bytes - (0 if before is None else before.will_bytes))

    def _check_sessions(self, opening: Opening) -> None:
        runtime = self._runtime
        limits = runtime.limits
        if runtime.stores.session.count() + runtime.turn.batch.opened >= limits.max_sessions:
            raise CapacityExceeded("there are too many sessions (limits.max_sessions)")
        if self._account(opening).sessions >= limits.share_of(limits.max_sessions):
            raise CapacityExceeded("its user has too many sessions (limits.user_share of limits.max_sessions)")

    def _check_wills(self, opening: Opening, more_bytes: int) -> None:
        if more_bytes <= 0:
            return
        limits = self._runtime.limits
        if self._runtime.accounts.all.will_bytes + more_bytes > limits.max_all_will_bytes:
            raise CapacityExceeded("all wills together take too much (limits.max_all_will_bytes)")
        if self._account(opening).will_bytes + more_bytes > limits.share_of(limits.max_all_will_bytes):
            raise CapacityExceeded("its user's wills take too much (limits.user_share of limits.max_all_will_bytes)")

    def _account(self, opening: Opening) -> Account:
        return self._runtime.accounts.of(opening.client.quota_key) or Account("")
