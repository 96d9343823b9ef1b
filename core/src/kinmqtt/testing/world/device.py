"""A client of the world: it publishes, subscribes, keeps what MQTT lets it keep, and comes back after each loss."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random

from attrs import define, field

from kinmqtt.mqtt.packets import (
    V5,
    Connack,
    Connect,
    ConnectWill,
    DisconnectPacket,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscribeRequest,
)
from kinmqtt.testing.world.wire import Wire
from kinmqtt_spi.properties import Properties

SESSION_S = 3600
WINDOW = 8
"""How many of its messages a device has under way."""


@define
class Sent:
    """A message of a device that is not completed."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    is_released: bool = False
    """QoS 2: whether PUBREC has come."""


@define
class Got:
    """A message that a device has received."""

    topic: str
    payload: bytes
    qos: int
    time_s: float
    retained: bool


@define(eq=False)
class Device:
    """One client with a session that lasts; it is a :class:`~kinmqtt.testing.world.wire.End`."""

    client_id: str
    random: Random
    find_wire: Callable[[Device], Wire | None]
    """Makes a connection to some node; ``None`` if none accepts any."""
    later: Callable[[float, Callable[[], object]], object]
    time_s: Callable[[], float]
    report: Callable[[str], object]
    """Takes a line for the trace."""
    violated: Callable[[str], object]
    filters: tuple[tuple[str, int], ...] = ()
    will: ConnectWill | None = None
    wire: Wire | None = None
    is_online: bool = False
    """Whether CONNACK has come."""
    stays_away: bool = False
    has_session: bool = False
    is_subscribed: bool = False
    when_subscribed: Callable[[], object] | None = None
    """Called once, when the first SUBACK comes."""
    got: list[Got] = field(factory=list)
    acknowledged: dict[bytes, float] = field(factory=dict)
    """By payload: when PUBACK or PUBREC came, with success."""
    given_up: set[bytes] = field(factory=set)
    """Messages that were refused."""
    _backlog: deque[Sent] = field(factory=deque)
    _sent: dict[int, Sent] = field(factory=dict)
    _incoming: set[int] = field(factory=set)
    _last_id: int = 0

    # Connecting

    def connect(self) -> None:
        """Connect to some node, now or when one accepts."""
        if self.wire is not None or self.stays_away:
            return
        wire = self.find_wire(self)
        if wire is None:
            self.later(0.5, self.connect)
            return
        self.wire = wire
        self.report(f"{self.client_id} connects to {wire.node.name}")
        properties = Properties(session_expiry_interval=SESSION_S)
        wire.send(Connect(V5, self.client_id, clean_start=False, will=self.will, properties=properties))

    def drop(self) -> None:
        """Lose the connection."""
        if self.wire is not None:
            self.wire.drop()

    def leave(self) -> None:
        """Lose the connection and stay away: a will becomes due."""
        self.stays_away = True
        self.drop()

    def move(self) -> None:
        """Connect once more, maybe to another node, while the old connection is there."""
        self.wire = None
        self.is_online = False
        self.connect()

    def lost(self, wire: Wire) -> None:
        """The connection was lost."""
        if wire is not self.wire:
            return
        self.wire = None
        self.is_online = False
        self.later(self.random.uniform(0.05, 1.0), self.connect)

    def _welcome(self, wire: Wire, packet: Connack) -> None:
        if packet.reason.is_failure:
            self.report(f"{self.client_id} refused {packet.reason:d}")
            return  # The broker closes the connection.
        self.report(f"{self.client_id} online, session {packet.session_present:d}")
        self.is_online = True
        if not packet.session_present:
            if self.has_session:
                self.violated(f"C3: the session of {self.client_id} is lost")
            self._incoming.clear()
            self.is_subscribed = False
        self.has_session = True
        if self.filters and not self.is_subscribed:
            requests = tuple(SubscribeRequest(filter, qos) for filter, qos in self.filters)
            wire.send(Subscribe(0xFFFF, requests))
        for packet_id, sent in self._sent.items():
            if sent.is_released:
                wire.send(Pubrel(packet_id))
            else:
                self._send(wire, packet_id, sent, dup=packet.session_present)
        self._send_backlog()

    # Publishing

    def publish(self, topic: str, payload: bytes, qos: int, retain: bool = False) -> None:
        """Publish a message; one of QoS 0 is forgotten while there is no connection."""
        if qos:
            self._backlog.append(Sent(topic, payload, qos, retain))
            self._send_backlog()
        elif self.wire is not None and self.is_online:
            self.wire.send(Publish.build(topic, payload, qos=0, retain=retain))

    @property
    def unfinished(self) -> int:
        """The number of messages that are not completed."""
        return len(self._sent) + len(self._backlog)

    def _send_backlog(self) -> None:
        wire = self.wire
        while wire is not None and self.is_online and self._backlog and len(self._sent) < WINDOW:
            sent = self._backlog.popleft()
            self._last_id = self._last_id % 60_000 + 1
            self._sent[self._last_id] = sent
            self._send(wire, self._last_id, sent, dup=False)

    @staticmethod
    def _send(wire: Wire, packet_id: int, sent: Sent, dup: bool) -> None:
        wire.send(
            Publish.build(sent.topic, sent.payload, qos=sent.qos, retain=sent.retain, dup=dup, packet_id=packet_id)
        )

    def _answered(self, packet: Puback | Pubrec) -> None:
        sent = self._sent.get(packet.packet_id)
        if sent is None or sent.is_released:
            return
        self.report(f"{self.client_id} acknowledged {sent.payload.decode()} {packet.reason:d}")
        if packet.reason.is_failure:
            self.given_up.add(sent.payload)
        else:
            self.acknowledged[sent.payload] = self.time_s()
        if sent.qos == 2 and not packet.reason.is_failure:
            sent.is_released = True
            if self.wire is not None:
                self.wire.send(Pubrel(packet.packet_id))
        else:
            self._complete(packet.packet_id)

    def _complete(self, packet_id: int) -> None:
        self._sent.pop(packet_id, None)
        self._send_backlog()

    # Receiving

    def received(self, wire: Wire, packet: Packet) -> None:
        """Take a packet of the broker."""
        if wire is not self.wire:
            return
        if isinstance(packet, Connack):
            self._welcome(wire, packet)
        elif isinstance(packet, Publish):
            self._take(wire, packet)
        elif isinstance(packet, Puback | Pubrec):
            self._answered(packet)
        elif isinstance(packet, Pubcomp):
            self._complete(packet.packet_id)
        elif isinstance(packet, Pubrel):
            self._incoming.discard(packet.packet_id)
            wire.send(Pubcomp(packet.packet_id))
        elif isinstance(packet, Suback):
            self.is_subscribed = True
            self.report(f"{self.client_id} subscribed")
            call, self.when_subscribed = self.when_subscribed, None
            if call is not None:
                call()
        elif isinstance(packet, DisconnectPacket):
            self.report(f"{self.client_id} told {packet.reason:d}")

    def _take(self, wire: Wire, packet: Publish) -> None:
        if packet.qos == 2 and packet.packet_id in self._incoming:
            wire.send(Pubrec(packet.packet_id))
            return
        self.report(f"{self.client_id} got {packet.payload.decode()}")
        self.got.append(Got(packet.topic, packet.payload, packet.qos, self.time_s(), packet.retain))
        if packet.qos == 1:
            wire.send(Puback(packet.packet_id))
        elif packet.qos == 2:
            self._incoming.add(packet.packet_id)
            wire.send(Pubrec(packet.packet_id))
