"""The PROXY protocol in front of MQTT."""

from __future__ import annotations

import socket
import struct
from typing import Any

import pytest
from harness import House
from transports import CONNACK, CONNECT, BufferTransport

from kinmqtt.broker.settings import ListenerLimitSettings, ListenerSettings
from kinmqtt.net.protocol import MqttFactory
from kinmqtt.net.proxy import ProxyFactory

V1 = b"PROXY TCP4 198.51.100.22 203.0.113.7 35646 1883\r\n"
V1_6 = b"PROXY TCP6 2001:db8::1 2001:db8::2 35646 1883\r\n"
V1_LONGEST_ADDRESS = "2001:0db8:ffff:ffff:ffff:ffff:ffff:ffff"
V1_LONGEST = b"PROXY TCP6 %b %b 65535 65535\r\n" % ((V1_LONGEST_ADDRESS.encode(),) * 2)
V2_SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"


def _v2(command: int, family: int, body: bytes) -> bytes:
    return V2_SIGNATURE + bytes((0x20 | command, family)) + struct.pack("!H", len(body)) + body


_ADDRESSES = socket.inet_aton("198.51.100.22") + socket.inet_aton("203.0.113.7") + struct.pack("!HH", 35646, 1883)
V2 = _v2(1, 0x11, _ADDRESSES)
V2_WITH_TLV = _v2(1, 0x11, _ADDRESSES + b"\x04\x00\x03abc")
V2_LOCAL = _v2(0, 0x00, b"")


def _behind_a_proxy() -> tuple[House, BufferTransport, Any]:
    settings = ListenerSettings(
        endpoint="1883", proxy_protocol=True, limits=ListenerLimitSettings(connect_time_limit_s=5)
    )
    house = House(listeners={"proxied": settings})
    factory = ProxyFactory(  # type: ignore[no-untyped-call]
        MqttFactory(house.broker, house.broker.listeners["proxied"], settings)
    )
    transport = BufferTransport()
    protocol = factory.buildProtocol(None)
    protocol.makeConnection(transport)
    return house, transport, protocol


@pytest.mark.parametrize(
    ("header", "address"),
    [
        (V1, "198.51.100.22"),
        (V1_6, "2001:db8::1"),
        (V2, "198.51.100.22"),
        (V2_WITH_TLV, "198.51.100.22"),
        (V1_LONGEST, V1_LONGEST_ADDRESS),
        (b"PROXY TCP4 198.51.100.22 203.0.113.7 0 65535\r\n", "198.51.100.22"),
        (b"PROXY UNKNOWN\r\n", "192.0.2.7"),
        (b"PROXY UNKNOWN \r\n", "192.0.2.7"),
        (b"PROXY UNKNOWN 198.51.100.22 nobody \xff\r\n", "192.0.2.7"),
        (b"PROXY UNKNOWN ffff:f...f:ffff ffff:f...f:ffff 65535 65535\r\n", "192.0.2.7"),
        (b"PROXY UNKNOWN " + b"x" * (105 - len(b"PROXY UNKNOWN ")) + b"\r\n", "192.0.2.7"),
        (V2_LOCAL, "192.0.2.7"),
    ],
)
@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_the_client_is_who_the_proxy_says(header: bytes, address: str, piece: int) -> None:
    """In however many pieces the header comes; the proxy itself where it speaks for nobody (health checks)."""
    house, transport, protocol = _behind_a_proxy()

    data = header + CONNECT
    for start in range(0, len(data), piece):
        protocol.dataReceived(data[start : start + piece])
    house.settle()

    client = house.broker.client("c")
    assert client is not None
    assert (client.address.host, client.listener) == (address, "proxied")
    assert transport.written == CONNACK


@pytest.mark.parametrize(
    "nonsense",
    [
        CONNECT,
        b"PROXY TCP4 192.0.2.1 192.0.2.2 x y\r\n",
        b"PROXY TCP4 \xff 192.0.2.2 1 2\r\n",
        b"PROXY TCP4 nowhere\r\n",
        b"PROXX",
        b"\r\n\r\n\0\r\nQUIX",
        V2_SIGNATURE + b"\x31\x11\0\0",
    ],
)
def test_who_comes_without_a_header_is_not_spoken_to(nonsense: bytes) -> None:
    """Not a byte goes out: the connection is closed."""
    _, transport, protocol = _behind_a_proxy()

    protocol.dataReceived(nonsense)

    assert "close" in transport.calls
    assert transport.written == b""


@pytest.mark.parametrize(
    "line",
    [
        b"PROXY TCP4 hello world 1 2",
        b"PROXY TCP4 ::1 ::1 1 2",
        b"PROXY TCP4 192.0.2.1 ::1 1 2",
        b"PROXY TCP4 09.9.9.9 192.0.2.2 1 2",
        b"PROXY TCP4 192.0.2.1 09.9.9.9 1 2",
        b"PROXY TCP6 192.0.2.1 192.0.2.2 1 2",
        b"PROXY TCP4 192.0.2.1 192.0.2.2 99999 2",
        b"PROXY TCP4 192.0.2.1 192.0.2.2 1 65536",
        b"PROXY TCP4 192.0.2.1 192.0.2.2 -1 2",
        b"PROXY TCP4 192.0.2.1 192.0.2.2 1 -1",
        b"PROXY TCP4 192.0.2.1 192.0.2.2 01 2",
        b"PROXY TCP4 192.0.2.1 192.0.2.2 1 01",
        b"PROXY TCP4 192.0.2.1 192.0.2.2 \xb2 2",
        b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2 3",
        b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2 ",
        b"PROXY TCP4 192.0.2.1 192.0.2.2 1",
        b"PROXY TCP5 192.0.2.1 192.0.2.2 1 2",
        b"PROXY  TCP4 192.0.2.1 192.0.2.2 1 2",
        b"PROXY UNKNOWN " + b"x" * (106 - len(b"PROXY UNKNOWN ")),
    ],
)
@pytest.mark.parametrize("piece", [1, 1000])
def test_a_line_that_is_not_as_the_protocol_has_it_is_refused(line: bytes, piece: int) -> None:
    """Version 1 has decimal ports, addresses of its family, six fields, and 107 bytes at most with its end."""
    house, transport, protocol = _behind_a_proxy()

    data = line + b"\r\n" + CONNECT
    for start in range(0, len(data), piece):
        if "close" not in transport.calls:
            protocol.dataReceived(data[start : start + piece])
    house.settle()

    assert "close" in transport.calls
    assert transport.written == b""
    assert house.broker.client("c") is None


def test_a_line_that_does_not_end_is_not_read_on() -> None:
    """More than the longest line without its end is none."""
    _, transport, protocol = _behind_a_proxy()

    protocol.dataReceived(b"PROXY UNKNOWN " + b"x" * (107 - len(b"PROXY UNKNOWN ")))
    early = "close" in transport.calls
    protocol.dataReceived(b"x")

    assert (early, "close" in transport.calls) == (False, True)
    assert transport.written == b""


def test_a_header_that_does_not_come_is_not_waited_for() -> None:
    """The time limit for CONNECT holds for the header too."""
    house, transport, protocol = _behind_a_proxy()
    protocol.dataReceived(b"PROXY ")

    house.advance(5)

    assert "abort" in transport.calls
    assert house.broker.connections == set()


@pytest.mark.parametrize(("size", "taken"), [(16_000, True), (20_000, False), (65_535, False)])
def test_a_header_that_is_very_long_is_not_waited_for(size: int, taken: bool) -> None:
    """Version 2 lets a header have 64 KiB; nothing of the kind is held for whoever comes."""
    house, transport, protocol = _behind_a_proxy()
    tlv = b"\x04" + struct.pack("!H", size - len(_ADDRESSES) - 3)
    header = _v2(1, 0x11, _ADDRESSES + tlv + bytes(size - len(_ADDRESSES) - 3))

    protocol.dataReceived(header[:100])
    early = "close" in transport.calls
    if not early:
        protocol.dataReceived(header[100:] + CONNECT)
        house.settle()

    assert early is not taken
    assert transport.written == (CONNACK if taken else b"")
