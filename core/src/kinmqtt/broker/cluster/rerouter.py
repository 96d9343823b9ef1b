"""Messages that a node could not take: they go to another member, after a session, or to who adopts sessions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from twisted.logger import Logger

from kinmqtt.broker.cluster.succession import HELD_LIMIT_S, LOOK_S
from kinmqtt.broker.forwarding.forwarder import Rerouting
from kinmqtt.broker.forwarding.node_link import Forwarded
from kinmqtt.broker.message.settled import settled
from kinmqtt.broker.message.ticket import Ticket
from kinmqtt.broker.turn.recovery import CommitFailed
from kinmqtt.hooks.awaitables import pause, resolve, run
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.values import NodeIdentity

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from kinmqtt.broker.forwarding.node_link import NodeLink
    from kinmqtt.broker.routing.groups import Group
    from kinmqtt.broker.services import Services

log = Logger("kinmqtt.forwarding")

MAX_ELECTIONS: Final = 120
"""How often a message of a shared subscription is given to another node because the last one had no member."""

NOBODY_AFTER: Final = 4
"""After so many looks at all nodes, one soon after the other, what none of them has is nowhere."""


class Rerouter(Rerouting):
    """Finds another way for messages, which keep their tickets: their publishers wait."""

    def __init__(self, services: Services, succeeded: Callable[[NodeIdentity], Coroutine[Any, Any, bool]]) -> None:
        """``succeeded`` waits until a node that is gone has left no session without owner; ``False`` if it has."""
        self._services = services
        self._runtime = services.runtime
        self._forwarder = services.forwarder
        self._router = services.router
        self._succeeded = succeeded
        self._orphaned: dict[NodeIdentity, list[Forwarded]] = {}
        """By node that is gone: messages that it has not answered."""
        self.held = 0
        """The number of messages that wait here."""

    def elect_again(self, message: Forwarded, group: tuple[str, str], node: NodeIdentity | None) -> None:
        self._runtime.statistics.rerouted["no_member"].value += 1
        self._begin(message, self._elect_again(message, group, node))

    def redirect(self, message: Forwarded, clients: Sequence[str], link: NodeLink | None) -> None:
        self._runtime.statistics.rerouted["moved"].value += len(clients)
        if link is not None and not link.is_gone:
            # If they have moved on, the node says so without naming another one, and they are looked for.
            self._forwarder.send_to_clients(link, message, tuple(clients))
            return
        for client_id in clients:
            self._begin(message, self._redirect(message, client_id))

    def node_gone(self, node: NodeIdentity, message: Forwarded) -> None:
        self._runtime.statistics.rerouted["node_gone"].value += 1
        message.ticket.expect()
        self.held += 1
        waiting = self._orphaned.get(node)
        if waiting is None:
            self._orphaned[node] = [message]
            run(self._after_adoption(node)).addErrback(self._log_failure)
        else:
            waiting.append(message)

    def _begin(self, message: Forwarded, work: Coroutine[Any, Any, None]) -> None:
        message.ticket.expect()
        self.held += 1
        run(self._finish(message, work)).addErrback(self._log_failure)

    async def _finish(self, message: Forwarded, work: Coroutine[Any, Any, None]) -> None:
        """Do the work; the message's publisher is sent away, without acknowledgement, if it fails."""
        try:
            await work
        except (CommitFailed, ServiceUnavailable) as error:
            message.ticket.failure = error.reason
        except BaseException:
            message.ticket.failure = ReasonCode.SERVER_UNAVAILABLE
            raise
        finally:
            self.held -= 1
            self._runtime.turn.touch()
            message.ticket.settle()

    @staticmethod
    def _log_failure(failure: Any) -> None:
        log.failure("a message could not be sent on", failure)

    async def _elect_again(
        self, message: Forwarded, key: tuple[str, str], refused_by: NodeIdentity | None = None
    ) -> None:
        """Elect another node than the one which had no member, until one has."""
        for number in range(message.elections, MAX_ELECTIONS):
            if number > message.elections:
                await pause(self._runtime.clock, LOOK_S)
            group = self._router.groups.get(key)
            if group is None:
                return
            if self._elect(message, group, number, refused_by):
                await self._runtime.turn.committed()
                return
            refused_by = None
            if number >= NOBODY_AFTER and self._knows_all:
                return  # Its members have moved away, and have left it.
        raise ServiceUnavailable(f"no node has a member of {key[0]!r}", ReasonCode.SERVER_BUSY)

    def _elect(self, message: Forwarded, group: Group, number: int, refused_by: NodeIdentity | None) -> bool:
        """Give a message to a node with members; ``False`` if none is known but the one that has none."""
        key = (group.name, group.filter)
        skipped = {link for link in group.nodes or () if link.node == refused_by}
        link = self._router.election.elect(group, skipped)
        if link is not None:
            again = Forwarded(message.publication, message.ticket, False, (key,), elections=number + 1)
            self._forwarder.send(link, again)
        elif group.members:
            if not self._router.deliver_to_group(key, message.publication):
                message.ticket.is_refused = True
        else:
            return False
        return True

    @property
    def _knows_all(self) -> bool:
        """Whether this node hears all others, and none that is gone has left sessions without owner."""
        members = self._forwarder.backend.members()
        return not self._forwarder.awaits_adoption and all(each.reachable for each in members)

    # A session that moved

    async def _redirect(self, message: Forwarded, client_id: str) -> None:
        """Ask all nodes, this one first, for the session of a client until one has it."""
        clock = self._runtime.clock
        deadline = clock.monotonic() + HELD_LIMIT_S
        looks = 0
        while not (found := await self._deliver_to_owner(message, client_id)):
            # A node that could not tell may have it.
            looks = looks + 1 if self._knows_all and found is not None else 0
            if looks > NOBODY_AFTER:
                if not await self._is_stored(client_id):
                    return  # The session has ended.
                # A node that is gone may have claimed it last: another one adopts it.
                looks = 0
            if clock.monotonic() >= deadline:
                raise ServiceUnavailable(f"no node has the session of {client_id!r}", ReasonCode.SERVER_BUSY)
            await pause(clock, LOOK_S)

    async def _is_stored(self, client_id: str) -> bool:
        """Tell whether a session is in the stores, though no node has it."""
        return await resolve(self._runtime.stores.session.is_stored(client_id))

    async def _deliver_to_owner(self, message: Forwarded, client_id: str) -> bool | None:
        """Deliver to the session of a client, wherever it is.

        Returns ``False`` if no node has it now, and ``None`` if one could not tell, or could not commit the message.
        """
        publication = message.publication
        session = await self._services.sessions.settled(client_id)
        if session is not None:
            resent = await self._services.resender.deliver_to_session(publication, session)
            message.ticket.is_refused |= not resent.accepted
            # It may have moved on meanwhile, and then it is looked for again.
            return None if resent.moved else True
        found: bool | None = False
        for link in self._forwarder.links():
            ticket = Ticket()
            self._forwarder.send(link, Forwarded(publication, ticket, False, (), (client_id,), True, searching=True))
            self._runtime.turn.touch()
            await settled(ticket)
            if ticket.failure is None and not ticket.is_elsewhere:
                message.ticket.is_refused |= ticket.is_refused
                return True
            if ticket.failure is not None:
                found = None
        return found

    # A node that is gone

    async def _after_adoption(self, node: NodeIdentity) -> None:
        """Route the messages again that a dead node has not answered, once its sessions have new owners."""
        adopted = False
        try:
            adopted = await self._succeeded(node)
        finally:
            by_publisher: dict[str, list[Forwarded]] = {}
            for message in self._orphaned.pop(node):
                by_publisher.setdefault(message.publication.publisher.client_id, []).append(message)
            for messages in by_publisher.values():
                run(self._in_order(node, messages, adopted)).addErrback(self._log_failure)

    async def _in_order(self, node: NodeIdentity, messages: list[Forwarded], adopted: bool) -> None:
        """Route the messages of one publisher again, one after the other (MQTT-4.6.0-6)."""
        for message in messages:
            try:
                await self._finish(message, self._route_again(message, adopted))
            except Exception:
                # It is settled, and the others wait.
                log.failure("a message for node {node} could not be sent on", node=node.name)

    async def _route_again(self, message: Forwarded, adopted: bool) -> None:
        if not adopted:
            raise ServiceUnavailable("the sessions of a node that is gone have no owner", ReasonCode.SERVER_BUSY)
        publication = message.publication
        if message.plain:
            await self._services.resender.route(publication)
        for client_id in message.clients:
            await self._redirect(message, client_id)
        for key in message.groups:
            await self._elect_again(message, key)
        await self._runtime.turn.committed()
