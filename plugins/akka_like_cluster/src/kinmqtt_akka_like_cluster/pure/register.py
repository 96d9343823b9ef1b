"""The register of client ids, where each broker has stores of its own: which member owns which client id.

Each client id has one member that keeps its entry: the one with the highest random weight among those that are UP
(Thaler and Ravishankar, "Using Name-Based Mappings to Increase Hit Rates", IEEE/ACM Transactions on Networking 6,
1998). When the members change, some client ids get another one, which reads from all members what they own before it
answers.

A claim goes through that member: it lets one node at a time claim a client id. Ownership itself is with the owners,
so a register that is lost is read again from them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Set
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

from attrs import define, frozen

from kinmqtt_akka_like_cluster.pure.registrars import View, registrar_of

MAX_CLAIMS_OF_ID: Final = 64
"""How many claims of one client id wait at most: clients that share one make each other's wait long."""

MAX_CLAIMS: Final = 100_000
"""The most claims that wait or are under way at one member."""


class Entry(NamedTuple):
    """Who owns a client id. Of two entries the higher one holds."""

    epoch: int
    uid: int


@frozen(slots=True)
class Granted:
    """A claim may begin; ``owner`` is the uid of the node that owns the client id until now, or ``None``."""

    uid: int
    number: int
    owner: int | None
    epoch: int


@frozen(slots=True)
class Elsewhere:
    """A claim must be made again, at the member that keeps the entry now."""

    uid: int
    number: int


@frozen(slots=True)
class Outdated:
    """A node has a session that another one owns."""

    uid: int
    client_id: str


Effect: TypeAlias = Granted | Elsewhere | Outdated


@define(slots=True)
class _Claim:
    uid: int
    number: int
    is_answered: bool = False
    owner: int | None = None
    """The owner that it was granted with; ``None`` if another member granted it."""


class Register:
    """The entries that one member keeps, and the claims that go through it."""

    def __init__(self, own: int) -> None:
        """``own``: the uid of this member."""
        self._own = own
        self.view: View = ()
        self.round = 0
        """Rises with each change of the view; what is read for an earlier one is ignored."""
        self._owners: dict[str, Entry] = {}
        self._floor = 0
        """The highest epoch of an entry that was forgotten."""
        self._claims: dict[str, deque[_Claim]] = {}
        """By client id; the first one is under way, if it was answered."""
        self._count = 0
        self._unsure: dict[int, set[tuple[str, int]]] = {}
        """By uid of an unread member: its claims from before the view changed, but for those that it still lists."""
        self._members: Set[int] = frozenset()
        self._views: list[View] = []
        """The last view for which everything was read, and those since; empty before the first."""
        self.unread: set[int] = set()
        """The members whose client ids are to be read, this one included."""

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._owners)

    @property
    def claims(self) -> int:
        """The number of claims that wait or are under way."""
        return self._count

    # Members

    def change(self, view: View, members: Set[int]) -> list[Effect]:
        """Take the members that are UP, and all that may own client ids: they are not gone, and have started."""
        gone = self._members - members
        self._members = members
        self.unread -= gone
        is_new = view != self.view
        if is_new:
            self.view = view
            self.round += 1
            self.unread = set(members) if self._own in view else set()
            self._views = [*self._views, view] if self._views else []
        effects = self._forget_claims(gone)
        if is_new:
            self._unsure = {}
            for client_id, line in self._claims.items():
                for each in line:
                    self._unsure.setdefault(each.uid, set()).add((client_id, each.number))
        return [*effects, *self._check_settled()]

    def _forget_claims(self, gone: Set[int]) -> list[Effect]:
        """Forget the claims of nodes that are gone, and send those elsewhere whose entries are kept there now."""
        effects: list[Effect] = []
        for client_id, line in list(self._claims.items()):
            if registrar_of(client_id, self.view) == self._own:
                kept = deque(each for each in line if each.uid not in gone)
            else:
                effects += [Elsewhere(each.uid, each.number) for each in line if not each.is_answered]
                kept = deque()
            if len(kept) != len(line):
                self._count -= len(line) - len(kept)
                self._put(client_id, kept)
                effects += self._grant(client_id)
        return effects

    def _check_settled(self) -> list[Effect]:
        if self.unread and self.unread & self._newcomers:
            return []
        if not self.unread:
            self._views = [self.view]
        return [effect for client_id in list(self._claims) for effect in self._grant(client_id)]

    @property
    def _newcomers(self) -> Set[int]:
        return self._members - set(self._views[0]) if self._views else self._members

    def tidy(self, after: int, limit: int) -> int:
        """Forget entries that others keep now, or of owners that are gone: ``limit`` of them, from a number on.

        Returns the number to go on with; 0 at the end.
        """
        looked = list(islice(self._owners.items(), after, after + limit))
        gone = [
            client_id
            for client_id, entry in looked
            if entry.uid not in self._members or registrar_of(client_id, self.view) != self._own
        ]
        for client_id in gone:
            self._forget(client_id)
        return after + limit - len(gone) if len(looked) == limit else 0

    # What members own

    def read(
        self, uid: int, round: int, owned: Iterable[tuple[str, int]], claims: Iterable[tuple[str, int]] | None
    ) -> list[Effect]:
        """Take client ids that a member owns, with their epochs, and its claims, with their numbers.

        ``claims`` are all that it has asked for or that are under way; ``None`` for all but a member's first page.
        """
        if round != self.round or uid not in self.unread:
            return []
        effects: list[Effect] = []
        for client_id, number in claims or ():
            if registrar_of(client_id, self.view) == self._own and not self._has(client_id, uid, number):
                self._add(client_id, _Claim(uid, number, is_answered=True))
        if claims is not None and uid in self._unsure:
            self._unsure[uid].difference_update(claims)
        for client_id, epoch in owned:
            effects += self.register(uid, client_id, epoch)
        return effects

    def has_read(self, uid: int, round: int) -> list[Effect]:
        """Note that all of a member's client ids are known."""
        if round != self.round or uid not in self.unread:
            return []
        self.unread.discard(uid)
        effects: list[Effect] = []
        for client_id, number in self._unsure.pop(uid, ()):
            # It has ended while another member kept the entry, which was told. What it left behind is known by now.
            effects += [Elsewhere(uid, number), *self.end(uid, number, client_id)]
        return [*effects, *self._check_settled()]

    def register(self, uid: int, client_id: str, epoch: int, *, unasked: bool = False) -> list[Effect]:
        """Note that a node owns a client id; ``unasked``: its former owner could not be asked for the session."""
        if registrar_of(client_id, self.view) != self._own or uid not in self._members:
            return []
        entry = Entry(epoch, uid)
        known = self._owners.get(client_id)
        if known is None or known.uid not in self._members or known.uid == uid:
            self._owners[client_id] = entry if known is None or known.uid != uid else max(known, entry)
            return []
        if entry < known:
            return [Outdated(uid, client_id)]
        self._owners[client_id] = entry
        return [] if not unasked and self._is_moving(client_id, known.uid, uid) else [Outdated(known.uid, client_id)]

    def _is_moving(self, client_id: str, former: int, uid: int) -> bool:
        """Tell whether a session is handed off, or about to be, within a claim that knows its former owner."""
        line = self._claims.get(client_id)
        return bool(line) and line is not None and line[0].owner == former and line[0].uid in (uid, former)

    def release(self, uid: int, client_id: str, epoch: int) -> None:
        """Note that a node has nothing of a client id any more."""
        known = self._owners.get(client_id)
        if known is not None and known.uid == uid and known.epoch <= epoch:
            self._forget(client_id)

    def _forget(self, client_id: str) -> None:
        self._floor = max(self._floor, self._owners.pop(client_id).epoch)

    def owner(self, client_id: str) -> Entry | None:
        """Return the entry of a client id."""
        entry = self._owners.get(client_id)
        return None if entry is None or entry.uid not in self._members else entry

    # Claims

    def locate(self, uid: int, number: int, client_id: str) -> list[Effect]:
        """Begin a claim of a node; it is granted when earlier ones have ended, and all that is needed was read."""
        if registrar_of(client_id, self.view) != self._own or uid not in self._members or self._count >= MAX_CLAIMS:
            return [Elsewhere(uid, number)]
        # It may have been read from its node before it arrived. It only waits: those that are answered come first.
        self._remove(client_id, uid, number)
        if len(self._claims.get(client_id, ())) >= MAX_CLAIMS_OF_ID:
            return [Elsewhere(uid, number)]
        self._add(client_id, _Claim(uid, number))
        return self._grant(client_id)

    def end(self, uid: int, number: int, client_id: str) -> list[Effect]:
        """End a claim, under way or not."""
        self._remove(client_id, uid, number)
        return self._grant(client_id)

    def _remove(self, client_id: str, uid: int, number: int) -> None:
        line = self._claims.get(client_id, deque())
        kept = deque(each for each in line if (each.uid, each.number) != (uid, number))
        if len(kept) != len(line):
            self._count -= len(line) - len(kept)
            self._put(client_id, kept)

    def _grant(self, client_id: str) -> list[Effect]:
        line = self._claims.get(client_id)
        if not line or line[0].is_answered or not self._knows(client_id):
            return []
        first = line[0]
        entry = self._owners.get(client_id, Entry(0, 0))
        owner = entry.uid if entry.uid in self._members else None
        first.is_answered, first.owner = True, owner
        return [Granted(first.uid, first.number, owner, max(entry.epoch, self._floor))]

    def _knows(self, client_id: str) -> bool:
        """Tell whether the entry of a client id is known, or that there is none."""
        if not self.unread:
            return True
        if not self._views or self.unread & self._newcomers:
            return False
        # Its entry was kept here all the time.
        return all(registrar_of(client_id, view) == self._own for view in self._views)

    def _has(self, client_id: str, uid: int, number: int) -> bool:
        return any((each.uid, each.number) == (uid, number) for each in self._claims.get(client_id, ()))

    def _add(self, client_id: str, claim: _Claim) -> None:
        line = self._claims.get(client_id)
        if line is None:
            self._claims[client_id] = deque((claim,))
        elif claim.is_answered:
            # Another member has let it begin: those that wait here come later.
            answered = sum(each.is_answered for each in line)
            line.insert(answered, claim)
        else:
            line.append(claim)
        self._count += 1

    def _put(self, client_id: str, line: deque[_Claim]) -> None:
        if line:
            self._claims[client_id] = line
        else:
            del self._claims[client_id]
