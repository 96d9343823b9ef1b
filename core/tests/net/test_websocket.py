"""WebSocket under MQTT: the frames by themselves, and a protocol before a transport of the test's making."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.logger import formatEvent, globalLogPublisher
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Pong, RejectConnection, Request
from wsproto.events import Ping as WsPing

from core_harness.house import House
from core_harness.transports import CONNACK, CONNECT, PING, PONG, BufferTransport
from kinmqtt.net.websocket import (
    HANDSHAKE_LIMIT_BYTES,
    CloseCode,
    FrameReader,
    Opcode,
    WebSocketMqttFactory,
    frame_header,
    unmask,
)
from kinmqtt.settings import ListenerSettings, WebSocketSettings


def masked(
    opcode: int, payload: bytes, *, final: bool = True, mask: bytes = b"\x01\x02\x03\x04", bits: int = 0
) -> bytes:
    """A client's frame."""
    header = bytearray(frame_header(Opcode.BINARY, len(payload)))
    header[0] = (0x80 if final else 0) | bits | opcode
    header[1] |= 0x80
    return bytes(header) + mask + unmask(payload, mask, 0)


# Frames


@given(st.lists(st.binary(max_size=300), max_size=5), st.binary(min_size=4, max_size=4), st.integers(1, 400))
def test_the_stream_is_what_the_frames_carry(payloads: list[bytes], mask: bytes, piece: int) -> None:
    """However the bytes are cut: frames and packets need not align [MQTT-6.0.0-2]."""
    data = b"".join(masked(Opcode.BINARY, payload, mask=mask) for payload in payloads)
    reader = FrameReader()

    events = [event for start in range(0, len(data), piece) for event in reader.feed(data[start : start + piece])]

    assert reader.error is None
    assert all(opcode is Opcode.BINARY for opcode, _ in events)
    assert b"".join(payload for _, payload in events) == b"".join(payloads)


@given(st.binary(max_size=70_000), st.binary(min_size=4, max_size=4), st.integers(0, 9))
def test_masking_is_the_rfcs(data: bytes, mask: bytes, offset: int) -> None:
    """RFC 6455 section 5.3, byte by byte."""
    assert unmask(data, mask, offset) == bytes(b ^ mask[(offset + i) % 4] for i, b in enumerate(data))


@given(
    st.lists(st.tuples(st.binary(max_size=80), st.booleans(), st.binary(max_size=20)), max_size=4), st.integers(1, 50)
)
def test_control_frames_come_whole_between_fragments(parts: list[tuple[bytes, bool, bytes]], piece: int) -> None:
    """A PING may stand between the fragments of a message, and is not part of it (section 5.4)."""
    data = b""
    for position, (payload, ping, ping_payload) in enumerate(parts):
        opcode = Opcode.CONTINUATION if position else Opcode.BINARY
        data += masked(opcode, payload, final=position == len(parts) - 1)
        data += masked(Opcode.PING, ping_payload) if ping else b""
    reader = FrameReader()

    events = [event for start in range(0, len(data), piece) for event in reader.feed(data[start : start + piece])]

    assert reader.error is None
    assert [payload for opcode, payload in events if opcode is Opcode.PING] == [p for _, ping, p in parts if ping]
    assert b"".join(payload for opcode, payload in events if opcode is Opcode.BINARY) == b"".join(
        p for p, _, _ in parts
    )


WRONG = [
    (b"\x82\x01x", CloseCode.PROTOCOL_ERROR),
    (masked(Opcode.TEXT, b"x"), CloseCode.UNSUPPORTED_DATA),
    (masked(Opcode.CONTINUATION, b"x"), CloseCode.PROTOCOL_ERROR),
    # What is in it may be the beginning of a packet: MQTT has nothing against it.
    (masked(Opcode.BINARY, b"\x10", final=False) + masked(Opcode.BINARY, b"x"), CloseCode.PROTOCOL_ERROR),
    (masked(0x3, b"x"), CloseCode.PROTOCOL_ERROR),
    (masked(0xB, b"x"), CloseCode.PROTOCOL_ERROR),
    (masked(Opcode.BINARY, b"x", bits=0x40), CloseCode.PROTOCOL_ERROR),
    (masked(Opcode.PING, b"x", final=False), CloseCode.PROTOCOL_ERROR),
    (masked(Opcode.PING, b"x" * 126), CloseCode.PROTOCOL_ERROR),
    (b"\x82\xff" + b"\xff" * 8 + b"abcd", CloseCode.PROTOCOL_ERROR),
]


@pytest.mark.parametrize(("data", "code"), WRONG)
def test_a_broken_rule_ends_it(data: bytes, code: CloseCode) -> None:
    """With the code of section 7.4.1; what came before counts, and nothing that comes after."""
    reader = FrameReader()

    before = reader.feed(masked(Opcode.BINARY, b"before") + data + masked(Opcode.BINARY, b"after"))

    assert before[0] == (Opcode.BINARY, b"before")
    assert reader.error is not None
    assert reader.error.code is code
    assert reader.feed(masked(Opcode.BINARY, b"later")) == []


# The protocol


class Browser:
    """A WebSocket client of wsproto's on a broker in memory."""

    def __init__(self, settings: WebSocketSettings = WebSocketSettings()) -> None:  # noqa: B008
        listener = ListenerSettings(endpoint="1883", websocket=settings)
        self.house = House(listeners={"web": listener})
        self.transport = BufferTransport()
        factory = WebSocketMqttFactory(self.house.broker, self.house.broker.listeners["web"], listener)
        self.protocol = factory.buildProtocol(None)
        self.protocol.makeConnection(self.transport)  # type: ignore[no-untyped-call]
        self.ws = WSConnection(ConnectionType.CLIENT)

    def shake(self, subprotocols: list[str] | None = None, path: str = "/mqtt", **headers: str) -> list[object]:
        """The handshake; what it came to."""
        extra = [(name.encode(), value.encode()) for name, value in headers.items()]
        offered = ["mqtt"] if subprotocols is None else subprotocols
        request = Request(host="localhost", target=path, subprotocols=offered, extra_headers=extra)
        return self.send(self.ws.send(request))

    def send(self, data: bytes) -> list[object]:
        """Send bytes; the WebSocket events that came back."""
        self.protocol.dataReceived(data)
        self.house.settle()
        answer, self.transport.written = self.transport.written, b""
        if answer:  # To wsproto, nothing means that the connection is closed.
            self.ws.receive_data(answer)
        return list(self.ws.events())

    def mqtt(self, data: bytes) -> list[object]:
        """Send MQTT bytes in one frame."""
        return self.send(self.ws.send(BytesMessage(data)))


def _binary(events: list[object]) -> bytes:
    return b"".join(bytes(event.data) for event in events if isinstance(event, BytesMessage))


@pytest.mark.parametrize(
    ("offered", "chosen"), [(["mqtt"], "mqtt"), (["mqttv3.1"], "mqttv3.1"), (["x", "mqttv3.1", "mqtt"], "mqtt")]
)
def test_the_subprotocol_is_mqtt(offered: list[str], chosen: str) -> None:
    """[MQTT-6.0.0-3], and the name that clients of MQTT 3.1 have for it."""
    [accepted] = Browser().shake(offered)

    assert isinstance(accepted, AcceptConnection)
    assert accepted.subprotocol == chosen


def test_mqtt_goes_in_binary_frames() -> None:
    """[MQTT-6.0.0-1]; several packets of a turn in one frame."""
    browser = Browser()
    browser.shake()

    assert _binary(browser.mqtt(CONNECT)) == CONNACK
    events = browser.mqtt(PING + PING)
    assert _binary(events) == PONG + PONG
    assert len(events) == 1


def test_what_comes_with_the_handshake_is_read() -> None:
    """A client need not wait for the answer before it sends its first frame."""
    browser = Browser()
    request = browser.ws.send(Request(host="localhost", target="/", subprotocols=["mqtt"]))

    events = browser.send(request + masked(Opcode.BINARY, CONNECT))

    assert _binary(events) == CONNACK


def test_the_handshake_may_dribble() -> None:
    """Byte by byte."""
    browser = Browser()
    request = browser.ws.send(Request(host="localhost", target="/", subprotocols=["mqtt"]))

    events = [event for byte in request for event in browser.send(bytes((byte,)))]

    assert isinstance(events[0], AcceptConnection)


def test_a_ping_is_answered() -> None:
    """With what it carried (RFC 6455 section 5.5.3), before CONNECT too."""
    browser = Browser()
    browser.shake()

    [pong] = browser.send(browser.ws.send(WsPing(b"are you there")))

    assert isinstance(pong, Pong)
    assert bytes(pong.payload) == b"are you there"


def test_pings_of_a_client_that_does_not_read_are_not_queued() -> None:
    """Only the last of them is answered, when the client reads again (RFC 6455 section 5.5.3)."""
    browser = Browser()
    browser.shake()
    browser.protocol.pauseProducing()

    early = [browser.send(browser.ws.send(WsPing(b"%d" % number))) for number in range(100)]
    browser.protocol.resumeProducing()
    later = browser.send(b"")
    browser.protocol.pauseProducing()
    browser.protocol.resumeProducing()

    assert early == [[]] * 100
    assert [bytes(event.payload) for event in later if isinstance(event, Pong)] == [b"99"]
    assert len(later) == 1
    assert browser.transport.written == b""


def test_a_client_that_reads_gets_each_ping_answered() -> None:
    """In order, several of one read among them, and again after a time in which it did not read."""
    browser = Browser()
    browser.shake()
    browser.protocol.pauseProducing()
    browser.protocol.resumeProducing()

    events = browser.send(b"".join(browser.ws.send(WsPing(b"%d" % number)) for number in range(5)))

    assert [bytes(event.payload) for event in events if isinstance(event, Pong)] == [b"0", b"1", b"2", b"3", b"4"]


def test_a_ping_is_not_answered_behind_a_close() -> None:
    """Nothing is sent behind a Close frame (RFC 6455 section 5.5.1)."""
    browser = Browser()
    browser.shake()
    browser.protocol.pauseProducing()
    browser.send(browser.ws.send(WsPing(b"late")))

    [closed] = browser.send(masked(Opcode.CLOSE, b"\x03\xe8"))
    browser.protocol.resumeProducing()

    assert isinstance(closed, CloseConnection)
    assert browser.transport.written == b""


def test_a_close_is_answered() -> None:
    """And the client's will stands: there was no DISCONNECT."""
    browser = Browser()
    browser.shake()
    browser.mqtt(CONNECT)

    [closed] = browser.send(browser.ws.send(CloseConnection(1000)))

    assert isinstance(closed, CloseConnection)
    assert "close" in browser.transport.calls


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b"", CloseCode.NORMAL),
        (b"\x03", CloseCode.PROTOCOL_ERROR),
        *[
            (code.to_bytes(2, "big"), CloseCode.PROTOCOL_ERROR)
            for code in (0, 999, 1004, 1005, 1006, 1015, 1016, 2999, 5000)
        ],
        *[(code.to_bytes(2, "big"), CloseCode.NORMAL) for code in (1000, 1001, 3000, 4999)],
        (b"\x03\xe8bye \xc3\xa4", CloseCode.NORMAL),
        (b"\x03\xe8\xff", CloseCode.INVALID_DATA),
        (b"\x03\xe8bye \xc3", CloseCode.INVALID_DATA),
    ],
)
def test_a_close_is_answered_by_what_it_says(payload: bytes, code: CloseCode) -> None:
    """A code that no frame may carry, or a reason that is no UTF-8, is told (RFC 6455 sections 7.4 and 8.1)."""
    browser = Browser()
    browser.shake()

    [closed] = browser.send(masked(Opcode.CLOSE, payload))

    assert isinstance(closed, CloseConnection)
    assert closed.code == code
    assert "close" in browser.transport.calls


def test_the_broker_closes_in_websockets_way() -> None:
    """What the broker has to say goes out before the close frame."""
    browser = Browser()
    browser.shake()
    browser.mqtt(CONNECT)

    events = browser.mqtt(CONNECT)

    assert isinstance(events[-1], CloseConnection)
    assert "close" in browser.transport.calls


@pytest.mark.parametrize(("data", "code"), WRONG)
def test_a_broken_rule_is_answered_with_its_code(data: bytes, code: CloseCode) -> None:
    """And the connection is closed."""
    browser = Browser()
    browser.shake()

    events = browser.send(data)

    assert isinstance(events[-1], CloseConnection)
    assert events[-1].code == code


@pytest.mark.parametrize("subprotocols", [[], ["chat"]])
def test_another_subprotocol_is_refused(subprotocols: list[str]) -> None:
    """Such a client does not speak MQTT."""
    [rejected, *_] = Browser().shake(subprotocols)

    assert isinstance(rejected, RejectConnection)
    assert rejected.status_code == 400


def test_only_one_path_may_be_served() -> None:
    """With or without a query; all others are not found."""
    settings = WebSocketSettings(path="/mqtt")

    [served] = Browser(settings).shake(path="/mqtt?x=1")
    [rejected, *_] = Browser(settings).shake(path="/other")

    assert isinstance(served, AcceptConnection)
    assert isinstance(rejected, RejectConnection)
    assert rejected.status_code == 404


def test_pages_of_other_origins_may_be_refused() -> None:
    """A browser says where a script comes from; other clients say nothing."""
    settings = WebSocketSettings(origins=("https://example.org",))

    [known] = Browser(settings).shake(origin="https://example.org")
    [none] = Browser(settings).shake()
    [other, *_] = Browser(settings).shake(origin="https://evil.example")

    assert isinstance(known, AcceptConnection)
    assert isinstance(none, AcceptConnection)
    assert isinstance(other, RejectConnection)
    assert other.status_code == 403


@pytest.mark.parametrize(
    ("origin", "origins", "status"),
    [
        (None, None, None),
        ("https://localhost", None, None),
        ("http://localhost", None, None),
        ("http://localhost:3000", None, 403),
        ("https://evil.example", None, 403),
        ("null", None, 403),
        ("https://evil.example", ("*",), None),
        ("https://localhost", ("https://example.org",), 403),
    ],
)
def test_a_page_may_connect_to_the_host_it_comes_from(
    origin: str | None, origins: tuple[str, ...] | None, status: int | None
) -> None:
    """Where the settings say nothing; a client that says no origin is no browser (RFC 6455 section 10.2)."""
    browser = Browser(WebSocketSettings(origins=origins))

    headers: dict[str, Any] = {} if origin is None else {"origin": origin}
    event, *_ = browser.shake(**headers)

    assert isinstance(event, AcceptConnection if status is None else RejectConnection)
    assert status is None or (isinstance(event, RejectConnection) and event.status_code == status)


def test_two_origins_are_as_none_that_may() -> None:
    """Whoever adds one to a browser's can't choose which counts."""
    browser = Browser()
    extra = b"Origin: http://x\r\nOrigin: http://evil.example\r\n"
    browser.protocol.dataReceived(UPGRADE.replace(b"Host: x\r\n", b"Host: x\r\n" + extra))

    assert browser.transport.written.startswith(b"HTTP/1.1 403 ")


def test_the_log_says_why_a_page_is_refused() -> None:
    """With its origin, the host it asked for, and the setting that would let it in."""
    lines: list[str] = []
    observer: Any = lambda event: lines.append(formatEvent(event))  # noqa: E731
    globalLogPublisher.addObserver(observer)
    try:
        Browser().shake(origin="https://evil.example")
    finally:
        globalLogPublisher.removeObserver(observer)

    [line] = [line for line in lines if "is refused" in line]
    assert "403 Forbidden: a page of 'https://evil.example' is not of the host 'localhost'" in line
    assert "websocket.origins" in line


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
        b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x00\x00\x00\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 7\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n",
    ],
)
def test_what_is_no_upgrade_is_a_bad_request(request_bytes: bytes) -> None:
    """MQTT without WebSocket among it."""
    browser = Browser()
    browser.protocol.dataReceived(request_bytes)

    assert browser.transport.written.startswith(b"HTTP/1.1 400 ")
    assert "close" in browser.transport.calls


UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
)
KEY = b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"


@pytest.mark.parametrize("name", [b"Sec-WebSocket-Key", b"sec-websocket-key", b"SEC-WEBSOCKET-KEY"])
def test_an_upgrade_is_accepted(name: bytes) -> None:
    """The one that the faulty ones are made of, however its key's name is written (RFC 6455 section 4.2.1)."""
    browser = Browser()
    browser.protocol.dataReceived(UPGRADE.replace(b"Sec-WebSocket-Key", name))

    assert browser.transport.written.startswith(b"HTTP/1.1 101 ")


@pytest.mark.parametrize(
    ("part", "wrong"),
    [
        (b"HTTP/1.1", b"HTTP/1.0"),
        (KEY, b""),
        (KEY, KEY + KEY),
        (KEY, KEY + KEY.replace(b"Key: A", b"Key: B").lower()),
        (KEY, b"Sec-WebSocket-Key:\r\n"),
        (KEY, b"Sec-WebSocket-Key: AAAA\r\n"),
        (KEY, b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAAAA\r\n"),
        (KEY, b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA\r\n"),
        (KEY, b"Sec-WebSocket-Key: !!!!!!!!!!!!!!!!!!!!!!==\r\n"),
    ],
    ids=["HTTP/1.0", "none", "twice", "two", "empty", "3 bytes", "18 bytes", "no padding", "no base64"],
)
def test_a_faulty_upgrade_is_a_bad_request(part: bytes, wrong: bytes) -> None:
    """An older HTTP, and anything but one key of 16 bytes in base64 (RFC 6455 section 4.2.1)."""
    browser = Browser()
    browser.protocol.dataReceived(UPGRADE.replace(part, wrong))

    assert browser.transport.written.startswith(b"HTTP/1.1 400 ")
    assert "close" in browser.transport.calls


def test_a_handshake_without_end_is_refused() -> None:
    """Nothing grows without bound."""
    browser = Browser()
    browser.protocol.dataReceived(b"GET / HTTP/1.1\r\nX: " + b"x" * HANDSHAKE_LIMIT_BYTES)

    assert browser.transport.written.startswith(b"HTTP/1.1 431 ")
    assert "close" in browser.transport.calls


@given(st.binary(max_size=200))
def test_noise_is_no_internal_error(data: bytes) -> None:
    """Whatever a peer sends, before or after the handshake."""
    browser = Browser()
    browser.shake()
    browser.protocol.dataReceived(data)
    raw = Browser()
    raw.protocol.dataReceived(data)


def test_a_frame_of_any_length_needs_no_buffer() -> None:
    """A packet that is larger than it may be is refused by MQTT, however WebSocket cuts it."""
    browser = Browser()
    browser.shake()
    browser.mqtt(CONNECT)
    huge = masked(Opcode.BINARY, b"\x30\xff\xff\xff\x7f" + os.urandom(5))

    assert isinstance(browser.send(huge)[-1], CloseConnection)


def test_an_unfinished_handshake_counts() -> None:
    """What is held of one is among what clients may hold that are not accepted yet, and no longer when it is over."""
    browser = Browser()
    buffers = browser.house.broker.buffers
    browser.protocol.dataReceived(UPGRADE[:-2])
    unfinished = buffers.arriving

    browser.protocol.dataReceived(UPGRADE[-2:])

    assert unfinished == len(UPGRADE) - 2
    assert buffers.arriving == 0


def test_a_handshake_that_is_refused_holds_nothing() -> None:
    """Though the client may take a while to go."""
    browser = Browser()

    browser.protocol.dataReceived(b"GET / HTTP/1.1\r\nX: " + b"x" * 200_000)

    assert browser.house.broker.buffers.inbound == 0


def test_a_large_payload_is_not_copied_for_its_header() -> None:
    """The header goes out before it, and a client reads one frame."""
    browser = Browser()
    browser.shake()
    browser.mqtt(CONNECT)
    payload = b"p" * 20_000

    browser.protocol.write(payload)
    browser.ws.receive_data(browser.transport.written)

    assert _binary(list(browser.ws.events())) == payload
