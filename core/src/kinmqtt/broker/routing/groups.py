"""Shared subscriptions: of the members of a group, each message goes to one (section 4.8.2)."""

from __future__ import annotations

from collections.abc import Iterator

from kinmqtt.broker.routing.target import Target, target_of
from kinmqtt.broker.session.session import Session
from kinmqtt_spi.services.subscription import Subscriber

GroupKey = tuple[str, str]
"""The group's name and its topic filter."""


class Group:
    """One shared subscription. All fan-outs of topics that match its filter share this object."""

    __slots__ = ("_candidates", "_connected", "_targets", "filter", "members", "name", "turn")

    def __init__(self, name: str, filter: str) -> None:
        self.name = name
        self.filter = filter
        self.members: dict[str, Subscriber] = {}
        """By client id, in the order in which they came."""
        self._connected: set[str] = set()
        self._candidates: tuple[Subscriber, ...] | None = None
        self._targets: dict[str, Target] = {}
        self.turn = 0
        """Counts the messages: members take turns."""

    def put(self, member: Subscriber, connected: bool) -> None:
        """Add a member, or replace its subscription."""
        client_id = member.client_id
        self.members[client_id] = member
        self._targets.pop(client_id, None)
        self._candidates = None
        if connected:
            self._connected.add(client_id)

    def remove(self, client_id: str) -> None:
        """Forget a member."""
        self.members.pop(client_id, None)
        self._targets.pop(client_id, None)
        self._connected.discard(client_id)
        self._candidates = None

    def came(self, client_id: str) -> None:
        """A member is connected."""
        self._connected.add(client_id)
        self._candidates = None

    def went(self, client_id: str) -> None:
        """A member is away."""
        self._connected.discard(client_id)
        self._candidates = None

    @property
    def candidates(self) -> tuple[Subscriber, ...]:
        """The members that are connected; where none is, all. Put together once for each change."""
        candidates = self._candidates
        if candidates is None:
            connected = self._connected
            if connected and len(connected) < len(self.members):
                candidates = tuple([member for id, member in self.members.items() if id in connected])
            else:
                candidates = tuple(self.members.values())
            self._candidates = candidates
        return candidates

    def in_turn(self, start: int) -> Iterator[Subscriber]:
        """All members: those that are connected first, beginning with the one whose turn ``start`` is."""
        candidates = self.candidates
        count = len(candidates)
        for number in range(count):
            yield candidates[(start + number) % count]
        if count < len(self.members):
            for client_id, member in tuple(self.members.items()):
                if client_id not in self._connected:
                    yield member

    def target(self, member: Subscriber, session: Session) -> Target:
        """What a member's subscription comes to."""
        target = self._targets.get(member.client_id)
        if target is None or target.session is not session:
            target = self._targets[member.client_id] = target_of(session, [member.subscription])
        return target
