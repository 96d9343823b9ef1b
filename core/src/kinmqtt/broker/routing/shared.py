"""Delivers a message to one member of a shared subscription (section 4.8.2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from kinmqtt.broker.message.publication import Publication
from kinmqtt.broker.routing.deliver import deliver, deliver_after_commit
from kinmqtt.broker.routing.groups import Group
from kinmqtt.broker.routing.target import Target
from kinmqtt.broker.session.receive_rights import is_allowed
from kinmqtt_spi.services.subscription import Subscriber

if TYPE_CHECKING:
    from kinmqtt.broker.runtime import Runtime
    from kinmqtt.broker.session.session import Session

Rights: TypeAlias = dict[str, bool] | None
"""By client id: whether members may receive the current message; ``None`` where there is no authorizer."""


class SharedDelivery:
    """Chooses the member of a group that gets a message, and delivers to it.

    Members take turns, or plugins choose (hook ``choose_member``). A member that may not receive the message, whose
    queue is full or that is ending is skipped.
    """

    __slots__ = ("_runtime", "_session_of")

    def __init__(self, runtime: Runtime, session_of: Callable[[str], Session | None]) -> None:
        self._runtime = runtime
        self._session_of = session_of

    def is_connected(self, client_id: str) -> bool:
        """Return whether a client has a session here with a connection."""
        session = self._session_of(client_id)
        return session is not None and session.connection is not None

    def deliver_to_group(self, group: Group, publication: Publication, after_commit: bool) -> bool:
        """Deliver to the next member, or to another where its queue is full or refuses, or it may not receive.

        Returns ``False`` if a queue refused. If no member may receive the message, one drop is counted, for the
        member whose turn it was.
        """
        hooks = self._runtime.hooks
        rights: Rights = {} if hooks.authorize_receive.active else None
        if hooks.choose_member.active:
            accepted = self._to_chosen(group, tuple(group.members.values()), publication, after_commit, rights)
            return self._count_denied(publication, rights) if accepted is None else accepted
        candidates = group.candidates
        if not candidates:
            return True
        member = candidates[group.turn % len(candidates)]
        refused_by: str | None = None
        session = self._session_of(member.client_id)
        if session is not None and (rights is None or self._may_receive(session, publication, rights)):
            alone = len(group.members) == 1
            if alone or not (session.ending or (publication.publish.qos and session.has_no_capacity)):
                if self._deliver(group.target(member, session), publication, after_commit):
                    group.turn += 1
                    return True
                refused_by = member.client_id
        return self._to_others(group, publication, after_commit, rights, refused_by)

    def _to_others(
        self, group: Group, publication: Publication, after_commit: bool, rights: Rights, refused_by: str | None
    ) -> bool:
        """Deliver to another member than the one whose queue has refused.

        It is apart from :meth:`deliver_to_group` because a function with a closure costs each of its calls more.
        """
        accepted = self._to_next(group, lambda client_id: client_id != refused_by, publication, after_commit, rights)
        if accepted is not None:
            return accepted
        return refused_by is None and self._count_denied(publication, rights)

    def _count_denied(self, publication: Publication, rights: Rights) -> bool:
        """Count a drop if no member may receive the message; it counts as delivered."""
        denied = next((client_id for client_id, right in (rights or {}).items() if not right), None)
        if denied is not None:
            self._runtime.drop(denied, publication.message, "not_authorized")
        return True

    def deliver_to_another(self, group: Group, client_id: str, publication: Publication, connected: bool) -> bool:
        """Deliver to a member other than ``client_id``, with this turn's commit; ``False`` if no member accepts.

        With ``connected`` only connected members are eligible.
        """

        def is_eligible(other: str) -> bool:
            return other != client_id and not self._is_ending(other) and (not connected or self.is_connected(other))

        rights: Rights = {} if self._runtime.hooks.authorize_receive.active else None
        if self._runtime.hooks.choose_member.active:
            others = tuple(member for member in group.members.values() if is_eligible(member.client_id))
            return self._to_chosen(group, others, publication, True, rights) is True
        return self._to_next(group, is_eligible, publication, True, rights) is True

    def _to_next(
        self,
        group: Group,
        is_eligible: Callable[[str], bool],
        publication: Publication,
        after_commit: bool,
        rights: Rights,
    ) -> bool | None:
        """Deliver to the next eligible member with capacity.

        Returns whether a member accepted the message; ``None`` if no member is eligible.
        """
        turn = group.turn
        group.turn = turn + 1
        accepted: bool | None = None
        full: Target | None = None
        for number, member in enumerate(group.members_from(turn)):
            session = self._session_of(member.client_id)
            if session is None or not is_eligible(member.client_id):
                continue
            if rights is not None and not self._may_receive(session, publication, rights):
                continue
            target = group.target(member, session)
            if session.ending or (publication.publish.qos and session.has_no_capacity):
                full = target
            elif self._deliver(target, publication, after_commit):
                # Count the skipped members' turns too: else the member after them would get two messages a round.
                group.turn = turn + number + 1
                return True
            accepted = False
        if full is not None:
            # All queues are full: the overflow policy of the last one applies.
            accepted = self._deliver(full, publication, after_commit)
        return accepted

    def _to_chosen(
        self,
        group: Group,
        members: tuple[Subscriber, ...],
        publication: Publication,
        after_commit: bool,
        rights: Rights,
    ) -> bool | None:
        """Deliver to the member that plugins choose; where its queue is full or refuses, they choose again.

        Returns whether a member accepted the message; ``None`` if no member is eligible.
        """
        accepted: bool | None = None
        full: Target | None = None
        while members:
            member = self._choose(group, members, publication, rights)
            if member is None:
                break
            session = self._session_of(member.client_id)
            if session is not None:
                target = group.target(member, session)
                if session.ending or (publication.publish.qos and session.has_no_capacity):
                    full = target
                elif self._deliver(target, publication, after_commit):
                    return True
                accepted = False
            members = tuple(other for other in members if other.client_id != member.client_id)
        if full is not None:
            accepted = self._deliver(full, publication, after_commit)
        return accepted

    def _choose(
        self, group: Group, members: tuple[Subscriber, ...], publication: Publication, rights: Rights
    ) -> Subscriber | None:
        """Return the member that plugins choose among the connected members, or among all if none is connected.

        With ``rights``, plugins see only members that may receive the message; ``None`` if there are none.
        """
        if len(members) == len(group.members):
            candidates = group.candidates
        else:
            candidates = tuple(m for m in members if self.is_connected(m.client_id)) or members
        if rights is not None:
            allowed = self._allowed(candidates, publication, rights)
            if not allowed and len(candidates) < len(members):
                allowed = self._allowed(members, publication, rights)
            if not allowed:
                return None
            candidates = allowed
        chosen = self._runtime.hooks.choose_member(group.name, group.filter, candidates, publication.message)
        if chosen is not None:
            return chosen
        turn = group.turn
        group.turn = turn + 1
        return candidates[turn % len(candidates)]

    def _allowed(
        self, members: tuple[Subscriber, ...], publication: Publication, rights: dict[str, bool]
    ) -> tuple[Subscriber, ...]:
        """Return the members that may receive a message, and those without a session here, which are not checked."""
        allowed = []
        for member in members:
            session = self._session_of(member.client_id)
            if session is None or self._may_receive(session, publication, rights):
                allowed.append(member)
        return tuple(allowed)

    def _may_receive(self, session: Session, publication: Publication, rights: dict[str, bool]) -> bool:
        """Return whether a member may receive a message; checked once per message, then cached in ``rights``."""
        right = rights.get(session.client_id)
        if right is None:
            right = rights[session.client_id] = is_allowed(self._runtime, session, publication.stored)
        return right

    def _deliver(self, target: Target, publication: Publication, after_commit: bool) -> bool:
        """Deliver to a member that may receive the message; ``False`` if its queue refused."""
        if after_commit:
            return deliver_after_commit(self._runtime, target, publication, True)
        return deliver(self._runtime, target, publication, False, True)

    def _is_ending(self, client_id: str) -> bool:
        session = self._session_of(client_id)
        return session is not None and session.ending
