"""What is fuzzed: bytes from a peer, through framing and codec, and through a live connection of a whole broker.

Nothing may come of them but packets, and :class:`RemoteError` with a reason code that MQTT knows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from core_harness.house import House, MemoryLink
from kinmqtt.broker.connection.connection import Connection
from kinmqtt.broker.handlers.table import HANDLERS
from kinmqtt.mqtt.codec import decode, encode
from kinmqtt.mqtt.errors import RemoteError
from kinmqtt.mqtt.framing import Framer
from kinmqtt.mqtt.packets import V5, V31, V311, Connect, Publish, Subscribe, SubscribeRequest
from kinmqtt_spi.properties import Properties
from kinmqtt_spi.values import Address

VERSIONS: Final = (V31, V311, V5)

INPUTS_A_HOUSE: Final = 300
"""Then a new broker is made: sessions and retained messages pile up, and slow everything down."""


def codec(version: int) -> Callable[[bytes], None]:
    """Framing in two pieces, and decoding; what was decoded can be encoded again, and says the same."""

    def run(data: bytes) -> None:
        if not data:
            return
        cut = data[0]
        framer = Framer(1 << 20)
        frames = [*framer.feed(data[1 : 1 + cut]), *framer.feed(data[1 + cut :])]
        for frame, body in frames:
            try:
                packet = decode(frame, body, version)
            except RemoteError as error:
                assert error.reason is not None
                continue
            if isinstance(packet, Publish) and not packet.topic:
                continue  # An alias stands for its topic, and is resolved before the message is sent on.
            again = encode(packet, version)
            assert encode(decode(again, _body(again), version), version) == again

    return run


def _body(frame: bytes) -> int:
    offset = 1
    while frame[offset] & 0x80:
        offset += 1
    return offset + 1


class Machine:
    """A broker with somebody in it who must not notice anything."""

    def __init__(self, version: int) -> None:
        self._open_house()
        properties = Properties(session_expiry_interval=30) if version == V5 else Properties()
        connect = Connect(
            version=version,
            client_id="fuzz",
            clean_start=False,
            keep_alive=60,
            will=None,
            username=None,
            password=None,
            properties=properties,
        )
        subscribe = Subscribe(1, (SubscribeRequest("#", 2),))
        self._hello = encode(connect, version) + encode(subscribe, version)

    def _open_house(self) -> None:
        self._house = House(max_packet_bytes=1 << 16, max_connect_bytes=1 << 14)
        self._witness = self._house.connect("witness", V5).subscribe("witness")
        self._listener = self._house.broker.listeners["tcp:1883"]
        self._inputs = 0

    def __call__(self, data: bytes) -> None:
        """Send the bytes: behind a CONNECT and SUBSCRIBE, or alone; in two pieces."""
        if len(data) < 2:
            return
        self._inputs += 1
        if self._inputs > INPUTS_A_HOUSE:
            self._open_house()
        house = self._house
        link = MemoryLink(self._listener, Address("192.0.2.9", 9))
        connection = Connection(house.broker.services, HANDLERS, link)
        connection.opened()
        prefix = self._hello if data[0] & 1 else b""
        cut = data[1]
        for piece in (prefix + data[2 : 2 + cut], data[2 + cut :]):
            if piece and not link.closed:
                connection.receive(piece)
            house.settle()
            link.written.clear()
        if data[0] & 2:
            house.clock.advance(1)
        connection.lost("fuzz")
        house.settle()
        self._check()

    def _check(self) -> None:
        """Nobody else is hurt: the witness still gets its messages, and has no other."""
        witness = self._witness
        witness.packets.clear()
        witness.publish("witness", b"still here")
        assert [payload for _, payload, _ in witness.messages][-1:] == [b"still here"]
        assert not witness.closed
        assert len(self._house.broker.connections) == 1


def targets() -> dict[str, Callable[[bytes], None]]:
    """Every target, by name."""
    made: dict[str, Callable[[bytes], None]] = {f"codec-{version}": codec(version) for version in VERSIONS}
    return made | {f"machine-{version}": Machine(version) for version in VERSIONS}
