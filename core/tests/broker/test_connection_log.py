"""What the log says of clients that come, go, or take too little."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.logger import ILogObserver, formatEvent, globalLogPublisher
from zope.interface import provider

from core_harness.house import House, Trusting
from kinmqtt.broker.log_lines import LINES_PER_S, LogLines
from kinmqtt.mqtt.packets import V5, V311, DisconnectPacket
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.reasons import ReasonCode


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """The lines about connections."""
    found: list[str] = []

    @provider(ILogObserver)
    def observe(event: Any) -> None:
        if event["log_namespace"] == "kinmqtt.connection":
            found.append(f"{event['log_level'].name}: {formatEvent(event)}")

    globalLogPublisher.addObserver(observe)
    yield found
    globalLogPublisher.removeObserver(observe)


def test_a_client_that_comes_and_goes_has_two_lines(lines: list[str]) -> None:
    """The first says who came and with what, the second who ended it and after how long."""
    house = House(plugins={"trusting": Trusting()}, control_characters="allow")

    client = house.connect("c\n1", V5, username="ann", keep_alive=60)
    house.advance(12)
    client.disconnect()

    assert lines == [
        "info: client 'c\\n1' at 192.0.2.1:50000 connected to tcp:1883: user 'ann', MQTT 5.0, keep alive 60 s, "
        "new session",
        "info: client 'c\\n1' at 192.0.2.1:50000 disconnected after 12 s: by the client (0x00 SUCCESS)",
    ]


def test_a_session_that_is_there_is_said_to_be(lines: list[str]) -> None:
    """Whether a session was resumed, and that a client gave no user name and no keep alive, stands in the line."""
    house = House()
    house.connect("c", V311, clean_start=False).drop()

    house.connect("c", V311, clean_start=False)

    assert lines[-1] == (
        "info: client 'c' at 192.0.2.1:50001 connected to tcp:1883: no user name, MQTT 3.1.1, no keep alive, "
        "session present"
    )


def test_a_lost_connection_is_told_from_a_disconnect(lines: list[str]) -> None:
    """A client that is gone without a DISCONNECT was lost, with what the network says of it."""
    House().connect("c").drop()

    assert lines[-1].endswith("disconnected after 0 s: the connection was lost: Connection was lost.")


def test_a_client_that_the_broker_disconnects_has_one_line(lines: list[str]) -> None:
    """The reason, in words and as a code, stands in the line about the end."""
    house = House()
    client = house.connect("c", V5)
    lines.clear()

    house.broker.disconnect("c", ReasonCode.ADMINISTRATIVE_ACTION, "enough")
    house.settle()

    assert lines == [
        "info: client 'c' at 192.0.2.1:50000 disconnected after 0 s: by the broker: enough "
        "(0x98 ADMINISTRATIVE_ACTION)"
    ]
    assert client.of(DisconnectPacket)[-1].reason is ReasonCode.ADMINISTRATIVE_ACTION


def test_a_long_client_id_does_not_fill_the_log(lines: list[str]) -> None:
    """Of a client id a hundred characters stand in the log."""
    House(max_client_id_bytes=65_535).connect("c" * 60_000).send_bytes(b"\0\0")

    assert len(lines) == 2
    assert max(map(len, lines)) < 400


def test_in_a_storm_lines_are_summed_up(lines: list[str]) -> None:
    """So many lines a second are written, and then one that says how many were not."""
    house = House()
    for number in range(LINES_PER_S + 30):
        house.connect(f"c{number}").drop()

    house.advance(1)
    house.connect("later")

    assert sum("connected to" in line for line in lines) == LINES_PER_S + 1
    assert sum("disconnected after" in line for line in lines) == LINES_PER_S
    assert lines[-2:-1] == ["info: and 30 more connected, 30 more disconnected within 1 s, without a line each"]


def test_what_was_summed_up_is_written_when_the_broker_stops(lines: list[str]) -> None:
    """The last second's sum is not lost."""
    house = House()
    for number in range(LINES_PER_S + 2):
        house.connect(f"c{number}").disconnect()

    house.result(house.broker.stop())

    assert any("2 more connected, 2 more disconnected" in line for line in lines)


def test_refused_connections_are_summed_up_too(lines: list[str]) -> None:
    """Connections beyond a limit can't fill the log."""
    house = House(max_connections=1)
    house.connect("c")

    for _ in range(LINES_PER_S + 5):
        house.open()
    house.advance(1)

    assert sum("refused" in line for line in lines) == LINES_PER_S + 1
    assert lines[-1] == "info: and 5 more refused within 1 s, without a line each"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=60), st.data())
def test_every_line_is_written_or_counted(asked: list[tuple[str, int]], data: st.DataObject) -> None:
    """Lines that were allowed and those that the sums count are together as many as were asked for."""
    clock = TurnableClock()
    log_lines = LogLines(clock)
    counted: dict[str, int] = {}

    @provider(ILogObserver)
    def observe(event: Any) -> None:
        for kind, count in event.get("left_out", {}).items():
            counted[kind] = counted.get(kind, 0) + count

    globalLogPublisher.addObserver(observe)
    try:
        allowed = {
            kind: sum(_asked(clock, log_lines, kind, pause) for each, pause in asked * 30 if each == kind)
            for kind in "abc"
        }
        log_lines.sum_up()
    finally:
        globalLogPublisher.removeObserver(observe)

    wanted = {kind: 30 * sum(each == kind for each, _ in asked) for kind in "abc"}
    assert {kind: allowed[kind] + counted.get(kind, 0) for kind in "abc"} == wanted
    assert clock.pending() == 0


def _asked(clock: TurnableClock, log_lines: LogLines, kind: str, pause: int) -> bool:
    may = log_lines.may(kind)
    clock.advance(pause / 1000)
    return may


# Who is too slow


@pytest.mark.parametrize("expiry_s", [0, 60])
def test_a_client_whose_queue_is_full_is_named(lines: list[str], expiry_s: int) -> None:
    """It is named when it begins to lose messages, and not again for each."""
    house = House(max_queued_messages=3, max_inflight=1)
    house.connect("slow", V5, expiry_s=expiry_s, silent=True).subscribe("#", qos=1)
    publisher = house.connect("p")
    lines.clear()

    for number in range(20):
        publisher.publish(f"t/{number}", b"x", qos=1)

    assert len(lines) == 1
    assert lines[0].startswith(
        "warn: client 'slow' at 192.0.2.1:50000 loses messages: its queue is full (3 messages, "
    )


def test_a_client_that_is_away_is_named_as_such(lines: list[str]) -> None:
    """A queue can be full while its client is not there."""
    house = House(max_queued_messages=1)
    house.connect("gone", V5, expiry_s=60).subscribe("#", qos=1).drop()
    publisher = house.connect("p")

    for _ in range(3):
        publisher.publish("t", b"x", qos=1)

    assert "client 'gone' (not connected) loses messages" in lines[-1]


def test_a_client_whose_socket_takes_too_little_is_named(lines: list[str]) -> None:
    """When QoS 0 begins to be dropped the log says for whom, and how much waits."""
    house = House(outbound_buffer_bytes=1024)
    slow = house.connect("slow").subscribe("#")
    publisher = house.connect("p")
    slow.link.blocked = True
    lines.clear()

    for _ in range(40):
        publisher.publish("t", b"x" * 100)

    assert len(lines) == 1
    assert "client 'slow' at 192.0.2.1:50000 loses messages: " in lines[0]
    assert lines[0].endswith("bytes wait for its socket, and QoS 0 is dropped")


def test_a_client_that_stays_slow_is_named_once_a_minute(lines: list[str]) -> None:
    """A line a minute says that it goes on."""
    house = House(max_queued_messages=1)
    house.connect("gone", V5, expiry_s=3600).subscribe("#", qos=1).drop()
    publisher = house.connect("p")
    lines.clear()

    for _ in range(150):
        publisher.publish("t", b"x", qos=1)
        house.advance(1)

    assert sum("loses messages" in line for line in lines) == 3
