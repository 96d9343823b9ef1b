"""Calls of plugins that concern other nodes: deliveries to a client, closed connections, and what a plugin tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from twisted.logger import Logger

from kinmqtt.broker.forwarding.single_message import read_message, write_message
from kinmqtt.broker.message.names import check_made_message
from kinmqtt.broker.message.publication import Publication
from kinmqtt.hooks.awaitables import resolve, run
from kinmqtt_spi.errors import MalformedBatch, NodeGone, ServiceUnavailable
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.plugin import MAX_TOLD_BYTES, DeliveryResult
from kinmqtt_spi.values import Maybe, Message, NodeIdentity

if TYPE_CHECKING:
    from kinmqtt.broker.forwarding.forwarder import Forwarder
    from kinmqtt.broker.forwarding.node_link import NodeLink
    from kinmqtt.broker.message.ticket import Ticket
    from kinmqtt.broker.ownership.sessions import Sessions
    from kinmqtt.broker.routing.publisher import MessagePublisher
    from kinmqtt.broker.runtime import Runtime

log = Logger("kinmqtt.cluster")

DELIVER: Final = "deliver"
DISCONNECT: Final = "disconnect"
TELL: Final = "tell"
WHERE: Final = "where"
"""The names of the questions that this module asks and answers."""

ANSWER_LIMIT_S: Final = 5.0

TELL_LIMIT_S: Final = 30.0

MAX_UNTOLD_BYTES: Final = 1 << 20
"""How much of what plugins tell may be under way to one node; more is dropped and counted."""

TOLD_OBJECT_BYTES: Final = 4096
"""What a message that a plugin tells takes besides its bytes: the objects that wait for the answer."""

_RESULTS: Final[Mapping[bytes, DeliveryResult]] = {
    b"\0": DeliveryResult.NO_SESSION,
    b"\1": DeliveryResult.TAKEN,
    b"\2": DeliveryResult.REFUSED,
}
_WRITTEN: Final = {result: written for written, result in _RESULTS.items()}


class Calls:
    """Makes calls that may concern a client of another node, and answers those of other nodes."""

    def __init__(
        self, runtime: Runtime, forwarder: Forwarder, sessions: Sessions, publisher: MessagePublisher
    ) -> None:
        self._runtime = runtime
        self._forwarder = forwarder
        self._sessions = sessions
        self._publisher = publisher
        self._under_way: dict[int, int] = {}
        """By node uid: the bytes of what plugins tell that it has not received yet."""
        self.answers: Mapping[str, Callable[[NodeIdentity, bytes], Maybe[bytes]]] = {
            DELIVER: self._delivered,
            DISCONNECT: self._disconnected,
            TELL: self._told,
            WHERE: self._where,
        }
        """What answers the questions of other nodes, by name."""

    # Messages for one client

    def deliver(self, client_id: str, message: Message, ticket: Ticket | None = None) -> Maybe[DeliveryResult]:
        """Deliver a message to one session, whatever its subscriptions, on the node that has it.

        Where another node has it, ``ticket`` waits for its answer.
        """
        result = self._deliver_here(client_id, message)
        if result is not DeliveryResult.NO_SESSION or self._forwarder.is_alone:
            return result
        if ticket is None:
            return run(self._deliver_elsewhere(client_id, message))
        ticket.expect()
        return run(self._deliver_and_settle(client_id, message, ticket))

    async def _deliver_and_settle(self, client_id: str, message: Message, ticket: Ticket) -> DeliveryResult:
        try:
            result = await self._deliver_elsewhere(client_id, message)
            await self._runtime.turn.committed()  # The session may be here by now.
        except BaseException as error:
            reason = getattr(error, "reason", None)
            ticket.failure = reason if isinstance(reason, ReasonCode) else ReasonCode.SERVER_UNAVAILABLE
            raise
        finally:
            ticket.settle()
        return result

    def _deliver_here(self, client_id: str, message: Message) -> DeliveryResult:
        session = self._sessions.get(client_id)
        if session is None:
            return DeliveryResult.NO_SESSION
        taken = self._publisher.deliver(session, message)
        return DeliveryResult.TAKEN if taken else DeliveryResult.REFUSED

    async def _deliver_elsewhere(self, client_id: str, message: Message) -> DeliveryResult:
        """Ask one node after the other until one has the session: at most one of them does."""
        check_made_message(self._runtime.limits, message)
        publication = Publication.of(self._publisher.completed(message))
        question = write_message(publication, self._runtime.now(), (client_id,))
        for link in self._forwarder.links():
            answer = await self._ask(link, DELIVER, question)
            result = DeliveryResult.NO_SESSION if answer is None else _RESULTS.get(answer)
            if result is None:
                raise ServiceUnavailable(f"node {link.node.name} gave an unknown answer")
            if result is not DeliveryResult.NO_SESSION:
                return result
        if self._forwarder.awaits_adoption:
            raise ServiceUnavailable(
                f"the session of {client_id!r} may be that of a node which is gone", ReasonCode.SERVER_BUSY
            )
        # It may have come here meanwhile.
        await self._sessions.settled(client_id)
        return self._deliver_here(client_id, message)

    async def _ask(self, link: NodeLink, question: str, data: bytes) -> bytes | None:
        """Return a node's answer; ``None`` if it is gone."""
        try:
            return await resolve(self._forwarder.backend.ask(link.node, question, data, ANSWER_LIMIT_S))
        except NodeGone:
            return None

    def _delivered(self, origin: NodeIdentity, data: bytes) -> Maybe[bytes]:
        client_id, message = self._read_delivery(data)
        return run(self._deliver_settled(client_id, message))

    def _read_delivery(self, data: bytes) -> tuple[str, Message]:
        head, publication = read_message(data, self._runtime.now())
        if len(head.clients) != 1:
            raise MalformedBatch("a delivery to a client has one client")
        return head.clients[0], publication.message

    async def _deliver_settled(self, client_id: str, message: Message) -> bytes:
        """Deliver after the claims of the session that are under way; answer once it is committed."""
        await self._sessions.settled(client_id)
        result = self._deliver_here(client_id, message)
        if result is DeliveryResult.TAKEN:
            await self._runtime.turn.committed()
        return _WRITTEN[result]

    # Connections

    def disconnect(self, client_id: str, reason: ReasonCode, text: str) -> Maybe[bool]:
        """Close a client's connection, on whichever node it is; ``False`` if it has none."""
        if self._disconnect_here(client_id, reason, text):
            return True
        if self._forwarder.is_alone:
            return False
        return run(self._disconnect_elsewhere(client_id, reason, text))

    def _disconnect_here(self, client_id: str, reason: ReasonCode, text: str) -> bool:
        session = self._sessions.get(client_id)
        if session is None or session.connection is None:
            return False
        session.connection.fail(reason, text)
        return True

    async def _disconnect_elsewhere(self, client_id: str, reason: ReasonCode, text: str) -> bool:
        question = reason.to_bytes(1, "big") + _text(client_id) + _text(text)
        unanswered: ServiceUnavailable | None = None
        for link in self._forwarder.links():
            try:
                if await self._ask(link, DISCONNECT, question) == b"\1":
                    return True
            except ServiceUnavailable as error:
                unanswered = error
        if unanswered is not None:
            raise unanswered
        return self._disconnect_here(client_id, reason, text)

    def _disconnected(self, origin: NodeIdentity, data: bytes) -> bytes:
        client_id, rest = _cut_text(data[1:])
        text, rest = _cut_text(rest)
        try:
            reason = ReasonCode(data[0])
        except ValueError:
            raise MalformedBatch(f"{data[0]:#x} is no reason code") from None
        if rest or reason < 0x80 or "\0" in text + client_id:
            raise MalformedBatch("a disconnect that can't be read")
        self._runtime.turn.touch()
        return b"\1" if self._disconnect_here(client_id, reason, text) else b"\0"

    def _where(self, origin: NodeIdentity, data: bytes) -> bytes:
        """Return a session's epoch and whether it is connected; nothing if this node does not have it."""
        try:
            session = self._sessions.get(data.decode())
        except UnicodeDecodeError as error:
            raise MalformedBatch(f"a client id that can't be read: {error}") from None
        if session is None:
            return b""
        return session.epoch.to_bytes(8, "big") + (b"\0" if session.connection is None else b"\1")

    # What plugins tell

    def tell_others(self, plugin: str, data: bytes) -> None:
        """Tell a plugin's instances on the other nodes something; dropped where too much is under way."""
        if len(data) > MAX_TOLD_BYTES:
            raise ValueError(f"{len(data)} bytes can't be told: at most {MAX_TOLD_BYTES} can")
        question = _text(plugin) + data
        size_bytes = len(question) + TOLD_OBJECT_BYTES
        for link in self._forwarder.links():
            waiting = self._under_way.get(link.node.uid, 0)
            if waiting + size_bytes > MAX_UNTOLD_BYTES:
                self._drop(plugin, link.node, "too much is under way")
                continue
            self._under_way[link.node.uid] = waiting + size_bytes
            run(self._tell(plugin, link.node, question))

    async def _tell(self, plugin: str, node: NodeIdentity, question: bytes) -> None:
        try:
            await resolve(self._forwarder.backend.ask(node, TELL, question, TELL_LIMIT_S))
        except NodeGone:
            pass
        except ServiceUnavailable as error:
            self._drop(plugin, node, str(error))
        finally:
            left = self._under_way[node.uid] - len(question) - TOLD_OBJECT_BYTES
            if left:
                self._under_way[node.uid] = left
            else:
                del self._under_way[node.uid]

    def _drop(self, plugin: str, node: NodeIdentity, why: str) -> None:
        self._runtime.statistics.untold.value += 1
        if self._runtime.log_lines.may("cluster"):
            log.warn("plugin {plugin}: node {node} was not told: {why}", plugin=plugin, node=node.name, why=why)

    def _told(self, origin: NodeIdentity, data: bytes) -> bytes:
        plugin, told = _cut_text(data)
        self._runtime.hooks.told.to(plugin, origin, told)
        return b""


def _text(value: str) -> bytes:
    encoded = value.encode()
    return len(encoded).to_bytes(2, "big") + encoded


def _cut_text(data: bytes) -> tuple[str, bytes]:
    """Return the text at the beginning of some bytes, and the rest. Raises :class:`MalformedBatch`."""
    end = 2 + int.from_bytes(data[:2], "big")
    try:
        if len(data) < max(end, 2):
            raise ValueError("cut off")
        return data[2:end].decode(), data[end:]
    except ValueError as error:
        raise MalformedBatch(f"a text that can't be read: {error}") from None
