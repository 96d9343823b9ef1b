"""A small MQTT 5 client that blocks: for tests that ask thousands of questions and want nothing but the answers.

    with SmallClient(port, "c", "user", b"password") as client:
        assert client.connack == 0
        client.subscribe("a/#")
        client.publish("a/b", b"hello")
        assert client.received() == [("a/b", b"hello")]

What a broker sends is in order, so that the answer to a PINGREQ tells that everything before it is here: nobody waits
for what may not come.
"""

from __future__ import annotations

import socket
from types import TracebackType

LIMIT_S = 20.0

_CONNECT, _PUBLISH, _SUBSCRIBE, _PINGREQ, _DISCONNECT = 0x10, 0x30, 0x82, 0xC0, 0xE0
_CONNACK, _PUBACK, _SUBACK, _PINGRESP = 0x20, 0x40, 0x90, 0xD0
_DISCONNECT_WITH_WILL = 0x04


class SmallClient:
    """One connection; ``connack`` is the reason code it was answered with, -1 where it was just closed."""

    def __init__(
        self,
        port: int,
        client_id: str,
        username: str | None = None,
        password: bytes | None = None,
        *,
        will: tuple[str, bytes] | None = None,
        source: str = "127.0.0.1",
    ) -> None:
        """``source`` is the address that it connects from."""
        self._socket = socket.create_connection(("127.0.0.1", port), LIMIT_S, (source, 0))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._read = self._socket.makefile("rb")
        self._messages: list[tuple[str, bytes]] = []
        flags, body = 0x02, _text(client_id)
        if will is not None:
            flags |= 0x04
            body += b"\0" + _text(will[0]) + _data(will[1])
        if username is not None:
            flags |= 0x80
            body += _text(username)
        if password is not None:
            flags |= 0x40
            body += _data(password)
        self._send(_CONNECT, _text("MQTT") + bytes([5, flags, 0, 0]) + b"\0" + body)
        answer = self._until(_CONNACK)
        self.connack = -1 if answer is None else answer[1]

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> int:
        """Publish with QoS 1; the reason code of the PUBACK, -1 where the connection was closed."""
        self._send(_PUBLISH | 2 | retain, _text(topic) + b"\0\1" + b"\0" + payload)
        answer = self._until(_PUBACK)
        if answer is None:
            return -1
        return answer[2] if len(answer) > 2 else 0

    def subscribe(self, filter: str) -> int:
        """Subscribe with QoS 0; the code of the SUBACK, -1 where the connection was closed."""
        self._send(_SUBSCRIBE, b"\0\1" + b"\0" + _text(filter) + b"\0")
        answer = self._until(_SUBACK)
        return -1 if answer is None else answer[-1]

    def received(self) -> list[tuple[str, bytes]]:
        """Everything that came since this was asked last, up to what the broker has sent by now."""
        self._send(_PINGREQ, b"")
        self._until(_PINGRESP)
        messages, self._messages = self._messages, []
        return messages

    def leave_with_will(self) -> None:
        """Disconnect so that the will is published, and wait until the broker has closed the connection."""
        self._send(_DISCONNECT, bytes([_DISCONNECT_WITH_WILL, 0]))
        self.wait_for_end()

    def wait_for_end(self) -> None:
        """Wait until the broker has closed the connection."""
        self._until(-1)

    def close(self) -> None:
        """Disconnect; harmless where the connection is closed already."""
        try:
            self._send(_DISCONNECT, b"")
        except OSError:
            pass
        self._read.close()
        self._socket.close()

    def __enter__(self) -> SmallClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send(self, first: int, body: bytes) -> None:
        self._socket.sendall(bytes([first]) + _length(len(body)) + body)

    def _until(self, wanted: int) -> bytes | None:
        """The body of the next packet of a type, with messages put aside; ``None`` at the connection's end."""
        while True:
            try:
                first = self._read.read(1)
            except ConnectionResetError:
                return None
            if not first:
                return None
            body = self._read.read(self._length())
            if first[0] & 0xF0 == _PUBLISH:
                self._messages.append(_message(first[0], body))
            elif first[0] == wanted:
                return body

    def _length(self) -> int:
        length = shift = 0
        while True:
            byte = self._read.read(1)[0]
            length |= (byte & 0x7F) << shift
            if byte < 0x80:
                return length
            shift += 7


def _message(first: int, body: bytes) -> tuple[str, bytes]:
    end = 2 + int.from_bytes(body[:2], "big")
    topic = body[2:end].decode()
    start = end + (2 if first & 0x06 else 0)
    # The length of the properties: none of a test's is longer than one byte can say.
    return topic, body[start + 1 + body[start] :]


def _text(text: str) -> bytes:
    return _data(text.encode())


def _data(data: bytes) -> bytes:
    return len(data).to_bytes(2, "big") + data


def _length(length: int) -> bytes:
    encoded = b""
    while length > 0x7F:
        encoded += bytes([length & 0x7F | 0x80])
        length >>= 7
    return encoded + bytes([length])
