"""The PROXY protocol in front of MQTT."""

from __future__ import annotations

import socket
import struct
import sys
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.error import ConnectionDone
from twisted.logger import formatEvent, globalLogPublisher
from twisted.python.failure import Failure

from core_harness.brokers import run_command, running_broker
from core_harness.house import House
from core_harness.transports import CONNACK, CONNECT, BufferTransport
from kinmqtt.net.protocol import MqttFactory
from kinmqtt.net.proxy import ProxyFactory
from kinmqtt.networks import is_within, parse_network
from kinmqtt.settings import ListenerLimitSettings, ListenerSettings
from spi_harness.processes import environment, free_port

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
        endpoint="1883",
        proxy_protocol=True,
        proxy_trusted=("192.0.2.7",),
        limits=ListenerLimitSettings(connect_time_limit_s=5),
    )
    house = House(listeners={"proxied": settings})
    plain = MqttFactory(house.broker, house.broker.listeners["proxied"], settings)
    transport = BufferTransport()
    protocol = ProxyFactory(plain, plain).buildProtocol(BufferTransport.peer)
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


@pytest.mark.parametrize(
    ("sent", "logged"),
    [
        (V2_LOCAL, 0),
        (b"PROXY UNKNOWN\r\n", 0),
        (V2, 1),
        (V2_LOCAL[:-1], 1),
        (b"", 1),
    ],
)
def test_a_health_check_of_a_proxy_is_not_logged(sent: bytes, logged: int) -> None:
    """It would be a line each second; what ends before a client is known otherwise is a line."""
    _, _, protocol = _behind_a_proxy()
    lines: list[str] = []
    observer: Any = lambda event: lines.append(formatEvent(event))  # noqa: E731
    globalLogPublisher.addObserver(observer)
    try:
        if sent:
            protocol.dataReceived(sent)
        protocol.connectionLost(Failure(ConnectionDone()))
    finally:
        globalLogPublisher.removeObserver(observer)

    assert sum("proxied ended before the client was identified" in line for line in lines) == logged


# Who is believed

LISTENER = ListenerSettings(endpoint="1883", proxy_protocol=True)


def _come(addr: Any, trusted: tuple[str, ...] | None) -> tuple[House, Any]:
    settings = evolve(LISTENER, proxy_trusted=trusted)
    house = House(listeners={"proxied": settings})
    plain = MqttFactory(house.broker, house.broker.listeners["proxied"], settings)
    return house, ProxyFactory(plain, plain).buildProtocol(addr)


def _from(host: str) -> Any:
    return (IPv6Address if ":" in host else IPv4Address)("TCP", host, 4711)


@pytest.mark.parametrize(
    ("host", "trusted", "believed"),
    [
        ("127.0.0.1", None, True),
        ("127.9.9.9", None, True),
        ("::1", None, True),
        ("::ffff:127.0.0.1", None, True),
        ("192.0.2.7", None, False),
        ("::ffff:192.0.2.7", None, False),
        ("fe80::1%eth0", None, False),
        ("10.1.2.3", ("10.0.0.0/8",), True),
        ("::ffff:10.1.2.3", ("10.0.0.0/8",), True),
        ("10.1.2.3", ("::ffff:10.0.0.0/104",), True),
        ("11.1.2.3", ("10.0.0.0/8",), False),
        ("127.0.0.1", ("10.0.0.0/8",), False),
        ("2001:db8::7", ("2001:db8::/32", "10.0.0.1"), True),
        ("fe80::1%eth0", ("fe80::/10",), True),
        ("10.0.0.1", ("2001:db8::/32", "10.0.0.1"), True),
        ("10.0.0.2", ("2001:db8::/32", "10.0.0.1"), False),
        ("127.0.0.1", (), False),
        ("203.0.113.5", ("0.0.0.0/0",), True),
        ("not an address", ("0.0.0.0/0", "::/0"), False),
    ],
)
def test_a_header_is_believed_from_those_who_are_named(
    host: str, trusted: tuple[str, ...] | None, believed: bool
) -> None:
    """From loopback where nobody is; whoever connects from elsewhere is counted as refused, and gets no protocol."""
    house, protocol = _come(_from(host), trusted)

    assert (protocol is not None) is believed
    assert house.broker.runtime.statistics.connections_refused.value == (0 if believed else 1)


@pytest.mark.parametrize("trusted", [None, (), ("10.0.0.0/8",)])
def test_a_unix_socket_is_always_believed(trusted: tuple[str, ...] | None) -> None:
    """The rights of its file say who may use it."""
    _, protocol = _come(UNIXAddress("/run/mqtt.sock"), trusted)

    assert protocol is not None


def test_where_nobody_can_tell_who_connects_nobody_is_believed() -> None:
    """A transport of a plugin's may have no address."""
    _, protocol = _come(None, ("0.0.0.0/0", "::/0"))

    assert protocol is None


@given(
    host=st.ip_addresses().map(str),
    networks=st.lists(st.ip_addresses(network="10.0.0.0/24") | st.ip_addresses(v=6), max_size=3),
    bits=st.integers(0, 32),
)
def test_an_address_is_within_a_network_as_its_bits_say(host: str, networks: list[Any], bits: int) -> None:
    """Compared with counting bits by hand, IPv4 addresses in either of their two forms."""
    texts = [f"{network}/{bits}" for network in networks]
    address = ip_address(host)
    wanted = any(
        network.version == address.version and int(network) >> (size - bits) == int(address) >> (size - bits)
        for network in networks
        for size in [network.max_prefixlen]
    )
    mapped = f"::ffff:{host}" if address.version == 4 else host

    found = [is_within(each, [parse_network(text) for text in texts]) for each in (host, mapped)]

    if address.version == 4 or address.ipv4_mapped is None:
        assert found == [wanted, wanted]


@pytest.mark.parametrize("text", ["10.0.0.0/33", "example.org", "", "10.0.0", "*"])
def test_what_is_no_network_is_refused_by_the_settings(text: str) -> None:
    """And what it should look like is said."""
    with pytest.raises(ValueError, match=r"is not an address or network such as 192\.0\.2\.7 or 10\.0\.0\.0/8"):
        evolve(LISTENER, proxy_trusted=(text,))


def test_trust_without_a_proxy_is_refused_by_the_settings() -> None:
    """Whoever writes it believes that headers are read."""
    with pytest.raises(ValueError, match="needs proxy_protocol"):
        ListenerSettings(endpoint="1883", proxy_trusted=("10.0.0.0/8",))


SETTINGS = """\
[broker]
allow_anonymous = true
data = "memory"

[listeners.trusting]
endpoint = "tcp:{trusting}:interface=127.0.0.1"
proxy_protocol = true

[listeners.wary]
endpoint = "tcp:{wary}:interface=127.0.0.1"
proxy_protocol = true
proxy_trusted = ["192.0.2.1", "10.0.0.0/8"]

[listeners.local]
endpoint = "unix:mqtt.sock"
proxy_protocol = true
proxy_trusted = []

[listeners.open]
endpoint = "tcp:{open}:interface=127.0.0.1"
proxy_protocol = true
proxy_trusted = ["0.0.0.0/0"]
"""


def _talk(connection: socket.socket) -> bytes:
    with connection:
        connection.settimeout(10)
        try:
            connection.sendall(V1 + CONNECT)
            return connection.recv(100)
        except OSError:
            return b""


@pytest.mark.parametrize("event_loop", ["uvloop", "asyncio"])
def test_a_running_broker_refuses_whom_it_does_not_believe(tmp_path: Path, event_loop: str) -> None:
    """Before a byte is read; the log and `kinmqtt check` say who is believed."""
    ports = dict(zip(("trusting", "wary", "open"), (free_port() for _ in range(3)), strict=True))
    (tmp_path / "k.toml").write_text(SETTINGS.format(**ports), encoding="utf-8")
    env = environment(KINMQTT__BROKER__EVENT_LOOP=event_loop)
    said = run_command("check", "-c", "k.toml", cwd=tmp_path, env=env).stdout

    command = [sys.executable, "-m", "kinmqtt", "run", "-c", "k.toml"]
    with running_broker(command=lambda port: command, cwd=tmp_path, env=env) as broker:
        answers = {name: _talk(socket.create_connection(("127.0.0.1", port), 10)) for name, port in ports.items()}
        with socket.socket(socket.AF_UNIX) as unix:
            unix.connect(str(tmp_path / "mqtt.sock"))
            answers["local"] = _talk(unix)
        broker.wait_for_line("a connection to wary is refused: it comes from 127.0.0.1")
    log = broker.output

    assert answers == {"trusting": CONNACK, "wary": b"", "open": CONNACK, "local": CONNACK}
    for text in (said, log):
        assert "trusting: PROXY headers are accepted from 127.0.0.0/8, ::1/128, other connections are refused" in text
        assert "set proxy_trusted for other proxies" in text
        assert (
            "wary: PROXY headers are accepted from 192.0.2.1/32, 10.0.0.0/8, other connections are refused\n" in text
        )
        assert "open: PROXY headers are accepted from every address" in text
        assert "local: PROXY" not in text


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
