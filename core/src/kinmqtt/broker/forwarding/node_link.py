"""The messages of a turn for one other node, gathered into batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import mypyc_attr

from kinmqtt.broker.forwarding.batch_format import (
    AGAIN,
    ONE_TOPIC,
    PLAIN,
    V5_PACKETS,
    GroupKey,
    RunHead,
    batch_head,
    write_run,
)
from kinmqtt.broker.message.message_ids import MessageIds
from kinmqtt.broker.message.publication import Publication
from kinmqtt.broker.message.ticket import Ticket
from kinmqtt.broker.turn.turn_buffer import TurnBuffer
from kinmqtt.mqtt.packets import V5
from kinmqtt_spi.properties import NO_PROPERTIES
from kinmqtt_spi.values import NodeIdentity, Publisher

BATCH_BYTES: Final = 64 << 10
"""A batch that has reached this size is sent, and another one begun."""

_PACKET_ID: Final = b"\x00\x01"
"""The packet identifier of a packet that this node writes; the other node ignores it."""


@mypyc_attr(acyclic=True, free_list_len=1)
class Forwarded:
    """A message for another node that awaits its answer."""

    __slots__ = ("again", "clients", "elections", "groups", "plain", "publication", "searching", "ticket")

    def __init__(
        self,
        publication: Publication,
        ticket: Ticket,
        plain: bool,
        groups: tuple[GroupKey, ...] = (),
        clients: tuple[str, ...] = (),
        again: bool = False,
        elections: int = 0,
        searching: bool = False,
    ) -> None:
        self.publication = publication
        self.ticket = ticket
        self.plain = plain
        """Whether it is for all subscribers whose subscription is not shared."""
        self.groups = groups
        """The shared subscriptions that it is for."""
        self.clients = clients
        """The clients whose sessions it is for, whatever they have subscribed to."""
        self.again = again
        """Whether a node that got it before has not answered."""
        self.elections = elections
        """How often a node was elected that had no member of the shared subscription."""
        self.searching = searching
        """Whether it asks for a client's session: the node may not have it."""


SendPushed = Callable[[bytes, int], object]
"""Takes a batch and the number of its messages."""
SendAssured = Callable[[bytes, list[Forwarded]], object]
FailAssured = Callable[[list[Forwarded], Exception], object]


class PushBuffer(TurnBuffer):
    """The QoS 0 messages of a turn for one node."""

    __slots__ = (
        "_heads",
        "_ids",
        "_is_v5",
        "_publisher",
        "_run_bytes",
        "_send",
        "_starts",
        "_topic",
        "_version",
        "node",
        "routes_version",
    )

    def __init__(self, node: NodeIdentity, ids: MessageIds, send: SendPushed) -> None:
        super().__init__()
        self.node = node
        self._ids = ids
        self._send = send
        self._heads: list[RunHead] = []
        self._starts: list[int] = []
        """For each run the position of its first packet."""
        self.routes_version = 0
        """The version of the node's routes."""
        self._version = 0
        """What it was when the first of the messages was noted."""
        self._publisher: Publisher | None = None
        """The publisher of the last run, if it may be continued."""
        self._is_v5 = False
        self._topic: str | None = None
        """The topic of all packets of the last run, if they have one."""
        self._run_bytes = 0

    @property
    def name(self) -> str:
        """The node's name, for log lines."""
        return f"node {self.node.name}"

    def note(self, packet: bytes, publisher: Publisher, is_v5: bool, topic: str | None) -> None:
        """Note the run of a packet that the caller appends: for subscribers that are not in a shared subscription.

        ``topic`` is that of a packet without RETAIN and properties; the same object for the same topic.
        """
        if publisher is self._publisher and is_v5 is self._is_v5 and self._run_bytes < BATCH_BYTES:
            self._run_bytes += len(packet)
            if topic is not self._topic and self._topic is not None:
                self._topic = None
                self._heads[-1].flags &= ~ONE_TOPIC
            return
        self._publisher = publisher
        self._is_v5 = is_v5
        self._topic = topic
        flags = PLAIN | V5_PACKETS if is_v5 else PLAIN
        self._begin(RunHead(flags if topic is None else flags | ONE_TOPIC, publisher, 0, 0, 0), packet)

    def note_apart(self, packet: bytes, head: RunHead) -> None:
        """Note a packet that the caller appends as a run of its own."""
        self._publisher = None
        self._begin(head, packet)

    def _begin(self, head: RunHead, packet: bytes) -> None:
        if not self._heads:
            self._version = self.routes_version
        self._heads.append(head)
        self._starts.append(len(self.packets))
        self._run_bytes = len(packet)

    def flush(self) -> None:
        """Send the turn's messages to the node."""
        packets, self.packets = self.packets, []
        heads, self._heads = self._heads, []
        starts, self._starts = self._starts, []
        self._publisher = None
        pieces = [batch_head(self._version)]
        size_bytes = messages = 0
        starts.append(len(packets))
        for number, head in enumerate(heads):
            run = packets[starts[number] : starts[number + 1]]
            head.uid = self._ids.uid
            head.counter = self._ids.reserve(len(run))
            size_bytes += write_run(head, run, pieces)
            messages += len(run)
            if size_bytes >= BATCH_BYTES:
                self._send(b"".join(pieces), messages)
                pieces = [batch_head(self._version)]
                size_bytes = messages = 0
        if messages:
            self._send(b"".join(pieces), messages)


class AssuredBuffer(TurnBuffer):
    """The messages of a turn for one node that it must answer."""

    __slots__ = (
        "_clients",
        "_fail",
        "_flags",
        "_heads",
        "_last",
        "_messages",
        "_now",
        "_own_uid",
        "_run_bytes",
        "_send",
        "_starts",
        "_times",
        "_version",
        "node",
        "routes_version",
    )

    def __init__(
        self, node: NodeIdentity, own_uid: int, now: Callable[[], float], send: SendAssured, fail: FailAssured
    ) -> None:
        """``now`` returns the time in seconds since the epoch; ``fail`` gets messages that could not be written."""
        super().__init__()
        self._own_uid = own_uid
        self.node = node
        self._now = now
        self._send = send
        self._fail = fail
        self._messages: list[Forwarded] = []
        self._heads: list[RunHead] = []
        self._starts: list[int] = []
        """For each run the position of its first message."""
        self._times: list[float] = []
        """For each run when its messages were received."""
        self.routes_version = 0
        """The version of the node's routes."""
        self._version = 0
        """What it was when the first of the messages was noted."""
        self._last: Publication | None = None
        """The last message, if its run may be continued."""
        self._flags = 0
        """The flags of the last run."""
        self._clients: tuple[str, ...] = ()
        """The clients of the last run."""
        self._run_bytes = 0

    @property
    def name(self) -> str:
        """The node's name, for log lines."""
        return f"node {self.node.name}"

    def note(self, message: Forwarded, flags: int, packet: bytes) -> None:
        """Note the message of a packet that the caller appends."""
        if message.plain:
            flags |= PLAIN
        if message.again:
            flags |= AGAIN
        publication = message.publication
        counter = publication.counter
        last = self._last
        clients = message.clients
        if (
            last is not None
            and not message.groups
            and clients is self._clients
            and flags == self._flags
            and last.publisher is publication.publisher
            and last.received_at == publication.received_at
            and last.counter + 1 == counter
            and last.uid == publication.uid
            and self._run_bytes < BATCH_BYTES
        ):
            self._run_bytes += len(packet)
        else:
            if not self._heads:
                self._version = self.routes_version
            if publication.uid != self._own_uid:
                self._version = 0  # A node that is gone had kept it, and may have sent it.
            head = RunHead(flags, publication.publisher, publication.uid, counter, 0, message.groups, clients)
            self._heads.append(head)
            self._starts.append(len(self._messages))
            self._times.append(publication.received_at)
            self._flags = flags
            self._clients = clients
            self._run_bytes = len(packet)
        self._last = None if message.groups else publication
        self._messages.append(message)

    def flush(self) -> None:
        """Send the turn's messages to the node."""
        packets, self.packets = self.packets, []
        messages, self._messages = self._messages, []
        heads, self._heads = self._heads, []
        starts, self._starts = self._starts, []
        times, self._times = self._times, []
        self._last = None
        pieces = [batch_head(self._version)]
        size_bytes = first = 0
        starts.append(len(messages))
        try:
            now = self._now()
            for number, head in enumerate(heads):
                end = starts[number + 1]
                head.age_ms = int(max(0.0, now - times[number]) * 1000)
                size_bytes += write_run(head, packets[starts[number] : end], pieces)
                if size_bytes >= BATCH_BYTES or end == len(messages):
                    batch, unsent = b"".join(pieces), first
                    pieces = [batch_head(self._version)]
                    size_bytes = 0
                    first = end
                    self._send(batch, messages[unsent:end])
        except Exception as error:
            # Nobody would ever settle them.
            self._fail(messages[first:], error)


class NodeLink:
    """The way to one other node."""

    __slots__ = ("assured", "is_full", "is_gone", "node", "number", "push")

    def __init__(self, node: NodeIdentity, number: int, push: PushBuffer, assured: AssuredBuffer) -> None:
        """``number`` is the node's in the route table."""
        self.node = node
        self.number = number
        self.push = push
        self.assured = assured
        self.is_full = False
        """Whether the link has no credit: those who publish to it are not read from."""
        self.is_gone = False


class LinkRoute:
    """A node with subscribers of a topic."""

    __slots__ = ("assured", "clients", "link")

    def __init__(self, link: NodeLink | None, assured: bool, clients: tuple[str, ...] = ()) -> None:
        self.link = link
        """``None`` only for ``clients`` whose node is not known yet."""
        self.assured = assured
        """Whether one of them was granted more than QoS 0."""
        self.clients = clients
        """If not empty: it is for the sessions of these clients only, which have moved to that node."""


def packet_of(publication: Publication) -> tuple[bytes, int]:
    """Return a message's packet as it came, or a new one without its topic alias, and the flag of its version."""
    publish = publication.publish
    version = publication.frame_version
    properties = publish.properties
    if version and (properties is NO_PROPERTIES or properties.topic_alias is None):
        return publish.frame, V5_PACKETS if version == V5 else 0
    head, tail = publication.encode(V5, publish.qos, publish.retain, NO_PROPERTIES)
    return (head + _PACKET_ID + tail if publish.qos else head + tail), V5_PACKETS
