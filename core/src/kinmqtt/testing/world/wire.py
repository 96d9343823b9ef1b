"""A client's network connection to a node: ordered and reliable until it is lost, with a delay both ways."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from kinmqtt.broker.connection.connection import Connection
from kinmqtt.broker.handlers.table import HANDLERS
from kinmqtt.mqtt.codec import decode, encode
from kinmqtt.mqtt.framing import Framer
from kinmqtt.mqtt.packets import V5, Packet
from kinmqtt.testing.harness import MemoryLink
from kinmqtt.testing.world.node import Node
from kinmqtt.testing.world.schedule import Schedule
from kinmqtt_spi.values import Address


class End(Protocol):
    """The client's side."""

    def received(self, wire: Wire, packet: Packet) -> None:
        """Take a packet."""

    def lost(self, wire: Wire) -> None:
        """The connection was lost."""


class Wire:
    """One connection."""

    def __init__(self, schedule: Schedule, node: Node, end: End, delay_s: float, number: int) -> None:
        self.node = node
        self._schedule = schedule
        self._end = end
        self._delay_s = delay_s
        self._framer = Framer()
        self._is_open = True
        self._arrived: deque[bytes] = deque()
        """What the broker does not read yet."""
        broker = node.harness.broker
        self.link = MemoryLink(broker.listeners["tcp:1883"], Address("192.0.2.1", 1024 + number % 60_000))
        self.connection = Connection(broker.services, HANDLERS, self.link)
        node.wires.append(self)
        node.clock.run(self.connection.opened)

    def send(self, packet: Packet) -> None:
        """Send a packet to the broker."""
        data = encode(packet, V5)
        self._schedule.later(self._delay_s, lambda: self._arrive(data))

    def _arrive(self, data: bytes) -> None:
        if self._is_open and self.node.is_alive:
            self._arrived.append(data)
            self.node.clock.run(self._read)

    def _read(self) -> None:
        while self._arrived and self.link.reading and not self.link.closed:
            self.connection.receive(self._arrived.popleft())

    def collect(self) -> None:
        """Take what the broker has written, and let it read on."""
        if not self._is_open:
            return
        link = self.link
        if link.written:
            data = bytes(link.written)
            link.written.clear()
            self._schedule.later(self._delay_s, lambda: self._deliver(data))
        if link.closed:
            self._close()
            self.connection.lost("Connection was closed.")
            self._tell(self._delay_s)
        elif self._arrived:
            self._read()

    def _deliver(self, data: bytes) -> None:
        for frame, body in self._framer.feed(data):
            self._end.received(self, decode(frame, body, V5))

    def drop(self) -> None:
        """Lose the connection, as the client does when it goes away."""
        if self._is_open:
            self._close()
            self.node.clock.run(self._lose)
            self._tell(0.0)

    def _lose(self) -> None:
        # Behind what came before: a process that stood still reads that first.
        self.link.closed = True
        self.connection.lost("Connection was lost.")

    def node_ended(self) -> None:
        """The broker's process is over."""
        if self._is_open:
            self._is_open = False
            self._tell(self._delay_s)

    def _close(self) -> None:
        self._is_open = False
        self.node.wires.remove(self)

    def _tell(self, delay_s: float) -> None:
        lost: Callable[[], object] = lambda: self._end.lost(self)  # noqa: E731
        self._schedule.later(delay_s, lost)
