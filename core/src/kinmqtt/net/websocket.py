"""WebSocket (RFC 6455) below MQTT (section 6): wsproto does the handshake, this module the frames.

MQTT treats a WebSocket as a stream: packets and frames need not align (MQTT-6.0.0-2). So messages are never
assembled: the payload of each binary frame is unmasked and passed on as it arrives, without a buffer for the frame.
General libraries assemble messages.
"""

from __future__ import annotations

from base64 import b64decode
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from wsproto.connection import ConnectionType
from wsproto.events import AcceptConnection, Request
from wsproto.handshake import H11Handshake
from wsproto.utilities import RemoteProtocolError

from kinmqtt.net.protocol import MqttFactory, MqttProtocol, SharedBounds, log
from kinmqtt.origins import refusal
from kinmqtt.settings import WebSocketSettings

if TYPE_CHECKING:
    from kinmqtt.broker.broker import Broker
    from kinmqtt.broker.connection.listener import Listener
    from kinmqtt.settings import ListenerSettings

SUBPROTOCOLS: Final = ("mqtt", "mqttv3.1")
"""The subprotocol names for MQTT (MQTT-6.0.0-3), and for MQTT 3.1."""

HANDSHAKE_LIMIT_BYTES: Final = 16 << 10
CONTROL_LIMIT_BYTES: Final = 125
JOINED_BYTES: Final = 16 << 10
"""Size from which a payload is not copied to join it with the frame's header."""


class Opcode(IntEnum):
    """The types of frames (RFC 6455 section 5.2)."""

    CONTINUATION = 0x0
    TEXT = 0x1
    BINARY = 0x2
    CLOSE = 0x8
    PING = 0x9
    PONG = 0xA


class CloseCode(IntEnum):
    """The reasons for closing a WebSocket (RFC 6455 section 7.4.1)."""

    NORMAL = 1000
    PROTOCOL_ERROR = 1002
    UNSUPPORTED_DATA = 1003
    INVALID_DATA = 1007


class FrameError(Exception):
    """The peer violated the WebSocket protocol."""

    def __init__(self, code: CloseCode, text: str) -> None:
        super().__init__(text)
        self.code = code


def frame_header(opcode: Opcode, size: int) -> bytes:
    """Return the header of an unfragmented, unmasked frame."""
    first = 0x80 | opcode
    if size < 126:
        return bytes((first, size))
    if size < 1 << 16:
        return bytes((first, 126)) + size.to_bytes(2, "big")
    return bytes((first, 127)) + size.to_bytes(8, "big")


def unmask(data: bytes, mask: bytes, offset: int) -> bytes:
    """Unmask a part of a payload that starts at ``offset`` bytes."""
    if not data:
        return data
    turned = mask[offset % 4 :] + mask[: offset % 4]
    key = (turned * (len(data) // 4 + 1))[: len(data)]
    return (int.from_bytes(data, "big") ^ int.from_bytes(key, "big")).to_bytes(len(data), "big")


def _answer_to_close(payload: bytes) -> CloseCode:
    """Return the close code that answers a client's Close frame (RFC 6455 sections 5.5.1, 7.4.2 and 8.1)."""
    if not payload:
        return CloseCode.NORMAL
    code = int.from_bytes(payload[:2], "big")
    if len(payload) == 1 or not (1000 <= code < 5000) or code in _NEVER_SENT or 1016 <= code < 3000:
        return CloseCode.PROTOCOL_ERROR
    try:
        payload[2:].decode()
    except UnicodeDecodeError:
        return CloseCode.INVALID_DATA
    return CloseCode.NORMAL


_NEVER_SENT: Final = (1004, 1005, 1006, 1015)
"""Close codes that must not be sent."""


class FrameReader:
    """Parses a client's frames as they arrive."""

    __slots__ = ("_control", "_fragmented", "_header", "_left", "_mask", "_offset", "_opcode", "error")

    def __init__(self) -> None:
        self.error: FrameError | None = None
        """The first violation; nothing is read after it."""
        self._header = b""
        self._left = 0
        self._offset = 0
        self._mask = b""
        self._opcode: Opcode | None = None
        self._control = b""
        self._fragmented = False

    def feed(self, data: bytes) -> list[tuple[Opcode, bytes]]:
        """Return the parts of the binary stream and the complete control frames, in order, up to a violation."""
        events: list[tuple[Opcode, bytes]] = []
        try:
            while data and self.error is None:
                if self._opcode is None:
                    data = self._begin(self._header + data)
                    if self._opcode is None:
                        break
                part, data = data[: self._left], data[self._left :]
                self._take(part, events)
        except FrameError as error:
            self.error = error
        return events

    def _begin(self, data: bytes) -> bytes:
        """Parse a header, or store it if it is incomplete."""
        self._header = b""
        if len(data) < 2:
            self._header = data
            return b""
        first, second = data[0], data[1]
        size = second & 0x7F
        longer = {126: 2, 127: 8}.get(size, 0)
        end = 2 + longer + 4
        if not second & 0x80:
            raise FrameError(CloseCode.PROTOCOL_ERROR, "a client's frame is not masked")
        opcode = self._check(first, size)
        if len(data) < end:
            self._header = data
            return b""
        if opcode < Opcode.CLOSE:
            self._fragmented = not first & 0x80
        if longer:
            size = int.from_bytes(data[2 : 2 + longer], "big")
            if size >> 63:
                raise FrameError(CloseCode.PROTOCOL_ERROR, "a frame's length has its highest bit set")
        self._mask = data[end - 4 : end]
        self._opcode = opcode
        self._left = size
        self._offset = 0
        self._control = b""
        return data[end:]

    def _check(self, first: int, size: int) -> Opcode:
        if first & 0x70:
            raise FrameError(CloseCode.PROTOCOL_ERROR, "a reserved bit is set")
        try:
            opcode = Opcode(first & 0x0F)
        except ValueError:
            raise FrameError(CloseCode.PROTOCOL_ERROR, "an unknown opcode") from None
        final = bool(first & 0x80)
        if opcode >= Opcode.CLOSE:
            if not final or size > CONTROL_LIMIT_BYTES:
                raise FrameError(CloseCode.PROTOCOL_ERROR, "a control frame is fragmented or too long")
            return opcode
        if opcode is Opcode.TEXT:
            raise FrameError(CloseCode.UNSUPPORTED_DATA, "MQTT needs binary frames [MQTT-6.0.0-1]")
        if (opcode is Opcode.CONTINUATION) != self._fragmented:
            raise FrameError(CloseCode.PROTOCOL_ERROR, "a fragment out of order")
        return opcode

    def _take(self, part: bytes, events: list[tuple[Opcode, bytes]]) -> None:
        opcode = self._opcode
        if opcode is None:
            return
        payload = unmask(part, self._mask, self._offset)
        self._offset += len(part)
        self._left -= len(part)
        if opcode < Opcode.CLOSE:
            if payload:
                events.append((Opcode.BINARY, payload))
        else:
            self._control += payload
        if not self._left:
            if opcode >= Opcode.CLOSE:
                events.append((opcode, self._control))
            self._opcode = None


class WebSocketMqttProtocol(MqttProtocol):
    """One network connection with MQTT inside WebSocket."""

    def __init__(self, broker: Broker, listener: Listener, settings: ListenerSettings, bounds: SharedBounds) -> None:
        super().__init__(broker, listener, settings, bounds)
        self._websocket = settings.websocket or WebSocketSettings()
        self._handshake: H11Handshake | None = H11Handshake(ConnectionType.SERVER)
        self._head = b""
        self._reader = FrameReader()
        self._close_sent = False
        self._ping: bytes | None = None
        """The last PING that is not answered yet."""

    def dataReceived(self, data: bytes) -> None:
        """Handle received data: the handshake, then frames."""
        if self._close_sent:
            self.forget(data)
            return
        connection = self.introduced()
        if self._handshake is not None:
            data = self._shake_hands(self._handshake, data)
            connection.held_beneath(len(self._head))
            if not data:
                return
        for opcode, payload in self._reader.feed(data):
            if opcode is Opcode.BINARY:
                connection.receive(payload)
            elif opcode is Opcode.PING:
                self._answer(payload)
            elif opcode is Opcode.CLOSE:
                self._send_close(_answer_to_close(payload), linger=False)
                return
        if self._reader.error is not None:
            self._send_close(self._reader.error.code, linger=True)

    def _answer(self, ping: bytes) -> None:
        """Answer a PING now, or, if the client does not read, only the last one later (section 5.5.3)."""
        if self.ready:
            self._send(Opcode.PONG, ping)
        else:
            self._ping = ping

    def resumeProducing(self) -> None:
        """Answer a pending PING after all written data has been sent."""
        ping, self._ping = self._ping, None
        super().resumeProducing()
        if ping is not None and not self._closing:
            self._answer(ping)

    def write(self, data: bytes) -> None:
        """Send MQTT packets, any number of them in one frame."""
        if self._handshake is None:
            self._send(Opcode.BINARY, data)

    def close(self, linger: bool = False) -> None:
        """Close when all written data has been sent."""
        self._send_close(CloseCode.NORMAL, linger)

    def _send(self, opcode: Opcode, payload: bytes) -> None:
        if self._close_sent:
            return
        header = frame_header(opcode, len(payload))
        if len(payload) < JOINED_BYTES:
            super().write(header + payload)
        else:
            super().write(header)
            super().write(payload)

    def _send_close(self, code: CloseCode, linger: bool) -> None:
        """Send a Close frame and close the connection (RFC 6455 section 7.1.2)."""
        if self._handshake is None:
            self._send(Opcode.CLOSE, code.to_bytes(2, "big"))
        self._close_sent = True
        super().close(linger)

    def _shake_hands(self, handshake: H11Handshake, data: bytes) -> bytes:
        """Answer the upgrade request; return the data after it, which belongs to frames."""
        self._head += data
        head, end, rest = self._head.partition(b"\r\n\r\n")
        if len(head) > HANDSHAKE_LIMIT_BYTES:
            self._reject(b"431 Request Header Fields Too Large")
        if not end or self._close_sent:
            return b""
        self._head = b""
        try:
            handshake.receive_data(head + end)
            request = next((event for event in handshake.events() if isinstance(event, Request)), None)
        except (RemoteProtocolError, UnicodeError):
            request = None
        if request is None or not _is_sound(head):
            self._reject(b"400 Bad Request")
            return b""
        refused = self._refused(request)
        if refused is not None:
            self._reject(*refused)
            return b""
        chosen = next((name for name in SUBPROTOCOLS if name in request.subprotocols), None)
        if chosen is None:
            # The client wants another protocol [MQTT-6.0.0-3].
            self._reject(b"400 Bad Request", "it offers no MQTT subprotocol")
            return b""
        super().write(handshake.send(AcceptConnection(subprotocol=chosen)))
        self._handshake = None
        return rest

    def _refused(self, request: Request) -> tuple[bytes, str] | None:
        """Return the status and the reason if the listener refuses the request; otherwise ``None``."""
        path = self._websocket.path
        if path is not None and request.target.partition("?")[0] != path:
            return b"404 Not Found", f"only {path} is served"
        found = [value.decode("latin-1") for name, value in request.extra_headers if name.lower() == b"origin"]
        why = refusal(self._websocket.origins, found, request.host)
        return None if why is None else (b"403 Forbidden", why)

    def _reject(self, status: bytes, why: str = "") -> None:
        log.info(
            "a request of {address} to {listener} is refused: {status}{why}",
            address=self.address,
            listener=self.listener.name,
            status=status.decode(),
            why=f": {why}" if why else "",
        )
        self._head = b""
        super().write(b"HTTP/1.1 " + status + b"\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        self._close_sent = True
        super().close(linger=True)


def _is_sound(head: bytes) -> bool:
    """Check what wsproto does not: HTTP/1.1 and a key of 16 bytes (RFC 6455 section 4.2.1)."""
    first, *lines = head.split(b"\r\n")
    if not first.endswith(b" HTTP/1.1"):
        return False
    keys = [value.strip() for name, _, value in (line.partition(b":") for line in lines) if name.lower() == _KEY]
    try:
        return len(keys) == 1 and len(b64decode(keys[0], validate=True)) == 16
    except ValueError:
        return False


_KEY: Final = b"sec-websocket-key"


class WebSocketMqttFactory(MqttFactory):
    """Makes a protocol for each WebSocket connection of one listener."""

    protocol_class = WebSocketMqttProtocol
