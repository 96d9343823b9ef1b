"""The network connection of paho's client: an asyncio transport in the place of its socket.

paho connects, encrypts and resolves names in the calling thread, reads the parts of each packet with calls of their
own and writes each packet with another. Its client takes any object with ``recv`` and ``send``, as it does for
WebSockets. So asyncio connects and encrypts, and many packets are read and written at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

from paho.mqtt.client import Client
from paho.mqtt.enums import MQTTErrorCode, MQTTProtocolVersion

from kinmqtt_bridge_mqtt.receiving import read_publish

PACKET_IDS: Final = 65_535

CLOSE_LIMIT_S: Final = 1.0
"""How long what is written may take once the connection is closed; after that it is cut."""

LONGEST_LENGTH: Final = 4
"""The most bytes that the length of a packet takes."""


class Wire(asyncio.Protocol):
    """A transport with the methods of a socket that paho uses. It hands over whole packets only."""

    def __init__(self, max_packet_bytes: int) -> None:
        self._max_packet_bytes = max_packet_bytes
        self._transport: asyncio.Transport | None = None
        self._cut: asyncio.TimerHandle | None = None
        self._data = b""
        self._start = 0
        """Where the next byte is that paho reads."""
        self._end = 0
        """Where the packet ends that paho may read."""
        self._out: list[bytes] = []
        self._is_paused = False
        self._writable: asyncio.Event = asyncio.Event()
        self._writable.set()
        self.on_packet: Callable[[], object] = lambda: None
        """Called with each packet; reads it with :meth:`recv`."""
        self.on_lost: Callable[[str], object] = self._note_loss
        """Called when the connection is lost."""
        self.lost: str | None = None
        """Why the connection was lost before anybody wanted to hear of it."""

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        # uvloop's transports are no instances of asyncio's classes.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Hand over the packets that are complete."""
        self._data = self._data[self._start :] + data if self._start < len(self._data) else data
        self._start = self._end = 0
        self._hand_over()

    def eof_received(self) -> None:
        """Let the transport close; :meth:`connection_lost` follows."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Report it."""
        self._transport = None
        if self._cut is not None:
            self._cut.cancel()
        self._writable.set()
        self.on_lost("the far broker closed the connection" if exc is None else str(exc) or type(exc).__name__)

    def pause_writing(self) -> None:
        """Let :meth:`drained` wait."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Let :meth:`drained` go on."""
        self._writable.set()

    async def drained(self) -> None:
        """Wait until there is room for more that is written."""
        if not self._writable.is_set():
            await self._writable.wait()

    def pause(self) -> None:
        """Hand over no further packet, and read none."""
        if not self._is_paused:
            self._is_paused = True
            if self._transport is not None:
                self._transport.pause_reading()

    @property
    def is_paused(self) -> bool:
        """Whether :meth:`pause` was called last."""
        return self._is_paused

    def resume(self) -> None:
        """Go on after :meth:`pause`."""
        if self._is_paused:
            self._is_paused = False
            self._hand_over()
            if not self._is_paused and self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()

    def flush(self) -> None:
        """Write what was sent since the last call."""
        if self._out and self._transport is not None:
            self._transport.write(b"".join(self._out))
        self._out.clear()

    def abort(self) -> None:
        """Close at once, and report nothing."""
        self.on_packet = lambda: None
        self.on_lost = lambda why: None
        transport, self._transport = self._transport, None
        self._writable.set()
        if transport is not None:
            transport.abort()

    def _hand_over(self) -> None:
        while not self._is_paused:
            end = self._packet_end()
            if end is None or end > len(self._data):
                return
            self._end = end
            self.on_packet()
            self._start = end

    def _packet_end(self) -> int | None:
        """Return where the packet at the start ends, once its length is there."""
        data, start = self._data, self._start
        length = shift = 0
        for place in range(start + 1, min(start + 1 + LONGEST_LENGTH, len(data))):
            byte = data[place]
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                end = place + 1 + length
                if end - start > self._max_packet_bytes:
                    self._broken(f"a packet of {end - start} bytes, and max_packet_bytes is {self._max_packet_bytes}")
                    return None
                return end
        if len(data) > start + LONGEST_LENGTH:
            self._broken("it sent what is no packet of MQTT")
        return None

    def _note_loss(self, why: str) -> None:
        self.lost = why

    def _broken(self, why: str) -> None:
        lost = self.on_lost
        self.abort()
        lost(why)

    # paho's side

    def recv(self, size: int) -> bytes:
        """Return bytes of the packet that is handed over."""
        start = self._start
        if start >= self._end:
            raise BlockingIOError
        data = self._data[start : min(start + size, self._end)]
        self._start = start + len(data)
        return data

    def send(self, data: bytes | bytearray) -> int:
        """Take bytes for the next :meth:`flush`."""
        self._out.append(bytes(data))
        return len(data)

    def close(self) -> None:
        """Close, after what is written, in :data:`CLOSE_LIMIT_S` at the latest."""
        self.flush()
        self.on_packet = lambda: None
        transport, self._transport = self._transport, None
        if transport is not None and not transport.is_closing():
            transport.close()
            if transport.get_write_buffer_size():
                # A far broker that stands still and reads nothing would keep it for ever.
                self._cut = asyncio.get_running_loop().call_later(CLOSE_LIMIT_S, transport.abort)

    def setblocking(self, blocking: bool) -> None:
        """Does nothing: it never blocks."""

    def fileno(self) -> int:
        """Return no file descriptor: it belongs to asyncio."""
        return -1


class WiredClient(Client):
    """paho's client on a :class:`Wire`."""

    wire: Wire

    def _create_socket(self) -> Any:
        # paho has no public way to give it a connection; tests see to it that this one goes on working.
        return self.wire

    def _mid_generate(self) -> int:
        # paho numbers messages of QoS 0, too, and tells of them as of those that are acknowledged.
        for _ in range(PACKET_IDS):
            mid: int = super()._mid_generate()
            if mid not in self._out_messages:
                break
        return mid

    def _handle_publish(self) -> MQTTErrorCode:
        received = self._in_packet
        is_v5 = self._protocol == MQTTProtocolVersion.MQTTv5
        message = read_publish(received["command"], received["packet"], is_v5)
        self._handle_on_message(message)
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def ack(self, mid: int, qos: int) -> MQTTErrorCode:
        """Acknowledge a message that is published here; one of QoS 2 by PUBREC, which paho would send at once."""
        return self._send_pubrec(mid) if qos == 2 else super().ack(mid, qos)

    def _handle_pubrel(self) -> MQTTErrorCode:
        # Also for one that an earlier connection has acknowledged.
        return self._send_pubcomp(int.from_bytes(self._in_packet["packet"][:2], "big"))
