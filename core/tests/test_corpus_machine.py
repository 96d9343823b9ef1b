"""Every packet of the corpus that a client may send, sent to a whole broker in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from twisted.logger import ILogObserver, globalLogPublisher
from zope.interface import provider

from core_harness.corpus import Entry, cases
from core_harness.house import House, Peer
from core_harness.verdicts import is_connect, verdict
from kinmqtt.mqtt.packets import V5, DisconnectPacket, Publish

SENT: list[Any] = [pytest.param(entry, version, id=name) for name, entry, version in cases(direction="client")]
RECEIVED = [pytest.param(entry, version, id=name) for name, entry, version in cases(direction="server")]


@pytest.fixture(autouse=True)
def failures() -> Iterator[list[dict[str, Any]]]:
    """Fails a test whose broker logged a failure of its own."""
    events: list[dict[str, Any]] = []

    @provider(ILogObserver)
    def observe(event: dict[str, Any]) -> None:
        if "log_failure" in event:
            events.append(event)

    globalLogPublisher.addObserver(observe)
    yield events
    globalLogPublisher.removeObserver(observe)
    assert events == []


def arranged(entry: Entry, version: int) -> tuple[House, Peer, Peer]:
    """A broker, a client that subscribes and publishes beside, and one to send the entry."""
    house = House()
    other = house.connect("other", version).subscribe("other/#", qos=1)
    peer = house.open(version) if is_connect(entry) else house.connect("c", version)
    peer.silent = True
    del peer.packets[:]
    return house, other, peer


def goes_on(house: House, other: Peer) -> bool:
    """Whether a client that has nothing to do with it all is served as before."""
    before = len(other.messages)
    other.publish("other/x", b"x", qos=1)
    return len(other.messages) == before + 1 and not other.closed


@pytest.mark.parametrize(("entry", "version"), SENT)
def test_what_a_client_sends(entry: Entry, version: int) -> None:
    """A good packet is answered, a bad one refused with its reason where the version has a way to say it."""
    house, other, peer = arranged(entry, version)

    peer.send_bytes(entry.data)

    assert verdict(entry, version).describe(peer.packets, peer.closed) == ""
    assert goes_on(house, other)


@pytest.mark.parametrize(("entry", "version"), SENT)
def test_byte_by_byte(entry: Entry, version: int) -> None:
    """The packet is judged the same where it comes one byte at a time."""
    house, other, peer = arranged(entry, version)

    for byte in entry.data:
        peer.send_bytes(bytes([byte]))

    assert verdict(entry, version).describe(peer.packets, peer.closed) == ""
    assert goes_on(house, other)


@pytest.mark.parametrize(("entry", "version"), SENT)
def test_a_client_that_goes_at_any_byte(entry: Entry, version: int) -> None:
    """A connection that is lost within the packet is as any lost connection."""
    house, other, _ = arranged(entry, version)
    for length in range(1, min(len(entry.data), 100)):
        peer = house.open(version) if is_connect(entry) else house.connect("c", version)

        peer.send_bytes(entry.data[:length])
        peer.drop()

    assert goes_on(house, other)


@pytest.mark.parametrize(("entry", "version"), RECEIVED)
def test_what_only_a_server_sends(entry: Entry, version: int) -> None:
    """A packet that only a server may send closes the connection, or is what a client might have sent too."""
    house, other, peer = arranged(entry, version)

    peer.send_bytes(entry.data)

    told = [packet for packet in peer.packets if not isinstance(packet, Publish)]
    if peer.closed and version == V5:
        assert all(isinstance(packet, DisconnectPacket) and packet.reason.is_failure for packet in told)
    elif peer.closed:
        assert told == []
    assert goes_on(house, other)


@pytest.mark.parametrize(("entry", "version"), [each for each in SENT if not is_connect(each.values[0])])
def test_before_connect(entry: Entry, version: int) -> None:
    """Any packet but CONNECT closes a connection on which nobody has connected, without an answer."""
    house = House()
    peer = house.open(version)

    peer.send_bytes(entry.data)

    assert (peer.packets, peer.closed) == ([], True)
