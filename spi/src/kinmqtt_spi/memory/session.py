"""Sessions in memory: the owner of each client id, and its stored session."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, TypeAlias

from attrs import evolve

from kinmqtt_spi.errors import Fenced
from kinmqtt_spi.memory._deadlines import Deadlines
from kinmqtt_spi.services.session import (
    Claim,
    Claimant,
    ClearWill,
    DiscardSession,
    OpenSession,
    ReleaseSession,
    RemoveSubscriptions,
    ResumeSession,
    SaveSubscriptions,
    SessionPage,
    SessionStore,
    SessionWrite,
    StoredSession,
)
from kinmqtt_spi.values import Maybe, NodeIdentity, Subscription

_COMPACT_ABOVE: Final = 1024

_NONE: Final[dict[str, Subscription]] = {}
"""The subscriptions of a record without a session. It is shared and never written to."""


class _Record:
    """The state of one client id: its epoch, its owner, and its session if one is stored."""

    __slots__ = ("claimant", "epoch", "owner", "serial", "session", "subscriptions")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.owner: NodeIdentity | None = None
        self.claimant: Claimant | None = None
        """The client for which the owner has claimed it; ``None`` after a claim that named no user."""
        self.session: StoredSession | None = None
        """Without its subscriptions, so that saving one does not copy the others."""
        self.subscriptions: dict[str, Subscription] = _NONE
        self.serial = 0
        """The session's place in iteration, from its opening until it is discarded; 0 without a session."""

    def is_anothers(self, claimant: Claimant) -> bool:
        """Tell whether the client id belongs to another user than the claimant."""
        if self.session is not None:
            return not claimant.may_use(self.session)
        return self.owner is not None and self.claimant is not None and self.claimant.username != claimant.username

    def whole(self) -> StoredSession:
        """Return the stored session with its subscriptions."""
        assert self.session is not None
        return evolve(self.session, subscriptions=tuple(self.subscriptions.values()))


_Handler: TypeAlias = Callable[[_Record, Any], None]


class MemorySessionStore(SessionStore):
    """Holds sessions in dicts; every write is committed when :meth:`apply` returns.

    The epoch of a client id without owner and session is remembered, in about 200 bytes. At most
    ``remembered_epochs`` of these are remembered one by one. The oldest ones above that number are merged into one
    floor, above which every unknown client id starts. So epochs never go back, but they skip numbers after that many
    client ids. ``floor`` is its initial value.
    """

    def __init__(self, *, remembered_epochs: int = 10_000, floor: int = 0) -> None:
        self._records: dict[str, _Record] = {}
        self._past_epochs: OrderedDict[str, int] = OrderedDict()
        self._max_past_epochs = remembered_epochs
        self._floor = floor
        self._expiry = Deadlines()
        self._wills = Deadlines()
        self._owned: dict[int, dict[str, None]] = {}
        self._order: list[int] = []
        """Serials in increasing order. Those of discarded sessions stay until they are half of it."""
        self._by_serial: dict[int, str] = {}
        self._serial = 0
        self._subscriptions = self._subscription_bytes = 0
        self._handlers: Mapping[type[SessionWrite], _Handler] = {
            OpenSession: self._open,
            ResumeSession: self._resume,
            SaveSubscriptions: self._save,
            RemoveSubscriptions: self._unsubscribe,
            ClearWill: self._clear_will,
            ReleaseSession: self._release,
            DiscardSession: self._discard,
        }

    def claim(self, client_id: str, node: NodeIdentity, above: int = 0) -> Claim:
        record = self._record(client_id)
        before = record.epoch
        record.epoch = max(before, above) + 1
        record.claimant = None
        previous = record.owner
        self._own(client_id, record, node)
        self._settle(client_id, record)
        skipped = before if record.epoch > before + 1 else None
        return Claim(record.epoch, previous, None if record.session is None else record.whole(), skipped)

    def claim_for(
        self, client_id: str, node: NodeIdentity, claimant: Claimant, above: int = 0
    ) -> Maybe[Claim | None]:
        record = self._records.get(client_id)
        if record is not None and record.is_anothers(claimant):
            return None
        claim = self.claim(client_id, node, above)
        record = self._records.get(client_id)
        if record is not None:
            record.claimant = claimant
        return claim

    def release(self, client_id: str, epoch: int) -> None:
        record = self._records.get(client_id)
        if record is not None and record.session is None and record.epoch == epoch:
            self._own(client_id, record, None)
            self._settle(client_id, record)

    def apply(self, writes: Sequence[SessionWrite]) -> None:
        fenced: set[str] = set()
        for write in writes:
            record = self._records.get(write.client_id)
            height = self._past_epochs.get(write.client_id, self._floor) if record is None else record.epoch
            if write.epoch < height:
                fenced.add(write.client_id)
                continue
            if record is None:
                record = self._record(write.client_id)
            record.epoch = write.epoch
            self._handlers[type(write)](record, write)
            self._settle(write.client_id, record)
        if fenced:
            raise Fenced(fenced)

    def take_fenced(self, writes: list[SessionWrite]) -> set[str]:
        """Remove the writes that would be refused from a batch, and return their client ids."""
        heights: dict[str, int] = {}
        good: list[SessionWrite] = []
        fenced: set[str] = set()
        for write in writes:
            client_id = write.client_id
            height = heights.get(client_id)
            if height is None:
                record = self._records.get(client_id)
                height = self._past_epochs.get(client_id, self._floor) if record is None else record.epoch
            if write.epoch < height:
                fenced.add(client_id)
            else:
                heights[client_id] = write.epoch
                good.append(write)
        if fenced:
            writes[:] = good
        return fenced

    def expired(self, now: float, limit: int) -> Sequence[tuple[int, StoredSession]]:
        return self._held(self._expiry.due(now, limit))

    def due_wills(self, now: float, limit: int) -> Sequence[tuple[int, StoredSession]]:
        return self._held(self._wills.due(now, limit))

    def iterate(self, cursor: object = None, limit: int = 1000) -> SessionPage:
        """See :meth:`SessionStore.iterate`. A session that stays is seen once, whatever else changes."""
        first = bisect_right(self._order, cursor) if isinstance(cursor, int) else 0
        serials: list[int] = []
        for place in range(first, len(self._order)):
            if self._order[place] in self._by_serial:
                serials.append(self._order[place])
                if len(serials) > limit:
                    break
        page = self._held([self._by_serial[serial] for serial in serials[:limit]])
        return SessionPage(tuple(page), serials[limit - 1] if len(serials) > limit else None)

    def owned_by(self, node: NodeIdentity, limit: int) -> Sequence[str]:
        return tuple(islice(self._owned.get(node.uid, ()), limit))

    def count(self) -> int:
        return len(self._by_serial)

    def subscriptions(self) -> tuple[int, int]:
        """Return the number and the size in bytes of all subscriptions."""
        return self._subscriptions, self._subscription_bytes

    def raise_epoch(self, client_id: str, epoch: int) -> None:
        """Raise a stored session's epoch to that of a claim in an earlier process."""
        record = self._records.get(client_id)
        if record is not None:
            record.epoch = max(record.epoch, epoch)

    def load_from(self, other: MemorySessionStore, floor: int) -> None:
        """Copy the sessions of another store into this one, which must be empty. No session has an owner.

        Epochs of clients without a session start above ``floor``.
        """
        cursor: object = None
        while True:
            page = other.iterate(cursor)
            MemorySessionStore.apply(self, [OpenSession(epoch, stored) for epoch, stored in page.sessions])
            cursor = page.cursor
            if cursor is None:
                break
        self._floor = max(self._floor, floor)

    def _open(self, record: _Record, write: OpenSession) -> None:
        session = write.session
        record.session = evolve(session, subscriptions=())
        self._remove_subscriptions(record, tuple(record.subscriptions))
        record.subscriptions = {}
        self._add_subscriptions(record, session.subscriptions)
        if not record.serial:
            self._serial += 1
            record.serial = self._serial
            self._order.append(record.serial)
            self._by_serial[record.serial] = session.client_id

    def _resume(self, record: _Record, write: ResumeSession) -> None:
        if record.session is not None:
            record.session = evolve(
                record.session,
                expiry_s=write.expiry_s,
                will=write.will,
                username=write.username,
                protocol_version=write.protocol_version,
                expires_at=None,
                will_due_at=None,
                username_unverified=write.username_unverified,
            )

    def _save(self, record: _Record, write: SaveSubscriptions) -> None:
        if record.session is not None:
            self._add_subscriptions(record, write.subscriptions)

    def _unsubscribe(self, record: _Record, write: RemoveSubscriptions) -> None:
        if record.session is not None:
            self._remove_subscriptions(record, write.filters)

    def _add_subscriptions(self, record: _Record, subscriptions: Sequence[Subscription]) -> None:
        for each in subscriptions:
            full_filter = each.full_filter
            if full_filter not in record.subscriptions:
                self._subscriptions += 1
                self._subscription_bytes += each.size_bytes
            record.subscriptions[full_filter] = each

    def _remove_subscriptions(self, record: _Record, full_filters: Sequence[str]) -> None:
        for full_filter in full_filters:
            gone = record.subscriptions.pop(full_filter, None)
            if gone is not None:
                self._subscriptions -= 1
                self._subscription_bytes -= gone.size_bytes

    def _clear_will(self, record: _Record, write: ClearWill) -> None:
        if record.session is not None:
            record.session = evolve(record.session, will=None, will_due_at=None)

    def _release(self, record: _Record, write: ReleaseSession) -> None:
        self._own(write.client_id, record, None)
        if record.session is not None:
            record.session = evolve(record.session, expires_at=write.expires_at, will_due_at=write.will_due_at)

    def _discard(self, record: _Record, write: DiscardSession) -> None:
        self._own(write.client_id, record, None)
        self._forget(record)

    def _record(self, client_id: str) -> _Record:
        record = self._records.get(client_id)
        if record is None:
            record = self._records[client_id] = _Record(self._past_epochs.pop(client_id, self._floor))
        return record

    def _own(self, client_id: str, record: _Record, owner: NodeIdentity | None) -> None:
        if record.owner is not None:
            self._owned.get(record.owner.uid, {}).pop(client_id, None)
        record.owner = owner
        if owner is not None and record.session is not None:
            self._owned.setdefault(owner.uid, {})[client_id] = None

    def _settle(self, client_id: str, record: _Record) -> None:
        """Update the indexes after a record has changed; reduce an empty record to its epoch."""
        session = record.session
        released = session is not None and record.owner is None
        self._expiry.set(client_id, session.expires_at if session is not None and released else None)
        self._wills.set(client_id, session.will_due_at if session is not None and released else None)
        self._own(client_id, record, record.owner)
        if session is None and record.owner is None:
            del self._records[client_id]
            self._past_epochs[client_id] = record.epoch
            if len(self._past_epochs) > self._max_past_epochs:
                self._floor = max(self._floor, self._past_epochs.popitem(last=False)[1])

    def _forget(self, record: _Record) -> None:
        record.session = None
        self._remove_subscriptions(record, tuple(record.subscriptions))
        record.subscriptions = _NONE
        if record.serial:
            del self._by_serial[record.serial]
            record.serial = 0
            if len(self._order) > max(_COMPACT_ABOVE, 2 * len(self._by_serial)):
                self._order = list(self._by_serial)

    def _held(self, client_ids: Sequence[str]) -> list[tuple[int, StoredSession]]:
        records = [self._records[client_id] for client_id in client_ids]
        return [(record.epoch, record.whole()) for record in records]
