"""An MQTT client of bytes and packets over a real socket, for tests that need to see what exactly is sent."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from kinmqtt.mqtt.codec import decode, encode
from kinmqtt.mqtt.framing import Framer
from kinmqtt.mqtt.packets import (
    V5,
    V311,
    Connack,
    Connect,
    Packet,
    Pingreq,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    SubscribeRequest,
)
from kinmqtt_spi.properties import NO_PROPERTIES, Properties

P = TypeVar("P")

TIME_LIMIT_S = 20.0


class Wire:
    """One connection. It answers nothing by itself, and every wait for the broker has a time limit."""

    def __init__(self, port: int, version: int = V311, *, receive_buffer: int | None = None) -> None:
        self.version = version
        self.socket = socket.socket()
        self.socket.settimeout(TIME_LIMIT_S)
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.connect(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._framer = Framer()
        self._arrived: list[Packet] = []

    def send_bytes(self, data: bytes) -> Wire:
        """Send bytes as they are; a broker that has closed by then is no error of the client's."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass
        return self

    def send(self, packet: Packet) -> Wire:
        """Send a packet."""
        return self.send_bytes(encode(packet, self.version))

    def receive(self) -> Packet | None:
        """The next packet; ``None`` once the broker has closed."""
        while not self._arrived:
            try:
                data = self.socket.recv(65_536)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._arrived += [decode(frame, body, self.version) for frame, body in self._framer.feed(data)]
        return self._arrived.pop(0)

    def expect(self, packet_class: type[P]) -> P:
        """The next packet, which must be of that class."""
        packet = self.receive()
        assert isinstance(packet, packet_class), f"{packet!r} came instead of {packet_class.__name__}"
        return packet

    def rest(self) -> list[Packet]:
        """Every packet until the broker closes."""
        return list(iter(self.receive, None))

    def connect(
        self,
        client_id: str = "",
        *,
        clean_start: bool = True,
        keep_alive: int = 0,
        properties: Properties = NO_PROPERTIES,
        **fields: Any,
    ) -> Connack:
        """Send CONNECT and return what the broker answers."""
        fields = {"will": None, "username": None, "password": None} | fields
        self.send(
            Connect(
                version=self.version,
                client_id=client_id,
                clean_start=clean_start,
                keep_alive=keep_alive,
                properties=properties,
                **fields,
            )
        )
        return self.expect(Connack)

    def subscribe(self, filter: str, qos: int = 0, packet_id: int = 1) -> Suback:
        """Subscribe to one filter and return what the broker answers."""
        self.send(Subscribe(packet_id, (SubscribeRequest(filter, qos),)))
        return self.expect(Suback)

    def publish(self, topic: str, payload: bytes, qos: int = 0, **more: Any) -> Wire:
        """Send a PUBLISH."""
        return self.send(Publish.build(topic, payload, qos=qos, **more))

    def ping(self) -> Wire:
        """Go to the broker and back: what was sent before has been dealt with."""
        self.send(Pingreq())
        self.expect(Pingresp)
        return self

    def close(self) -> None:
        """Close in good order, without a DISCONNECT."""
        self.socket.close()

    def reset(self) -> None:
        """Close with a TCP reset, as the system of a killed client may."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


@contextmanager
def wire(port: int, client_id: str | None = None, version: int = V5, **options: Any) -> Iterator[Wire]:
    """A connection that is closed at the end; connected as ``client_id`` where that is given."""
    client = Wire(port, version, receive_buffer=options.pop("receive_buffer", None))
    try:
        if client_id is not None:
            client.connect(client_id, **options)
        yield client
    finally:
        client.close()
