"""Memory watermarks, with a memory that the test sets."""

from __future__ import annotations

import pytest
from harness import House
from twisted.logger import capturedLogs, formatEvent

from kinmqtt.broker.overload import Level, resident_bytes
from kinmqtt.broker.settings import LimitSettings
from kinmqtt.mqtt.packets import V5, Puback

WATERMARKS = {"memory_slow_bytes": 100, "memory_drop_bytes": 200, "memory_refuse_bytes": 300}


def _at(house: House, memory: int | None) -> Level:
    house.memory_bytes = memory
    house.advance(1)
    return house.broker.overload.level


def test_each_watermark_brings_its_level() -> None:
    """And falling memory brings back what was, a little below the watermark."""
    house = House(**WATERMARKS)

    levels = [_at(house, memory) for memory in (99, 100, 199, 200, 300, 271, 269, 181, 179, 91, 89)]

    assert levels == [0, 1, 1, 2, 3, 3, 2, 2, 1, 1, 0]


def test_publishers_are_slowed() -> None:
    """One that publishes is not read from for a moment; one that does not is."""
    house = House(**WATERMARKS)
    pub, sub = house.connect("pub"), house.connect("sub").subscribe("t")
    _at(house, 100)

    pub.publish("t", b"1")
    reading = (pub.link.reading, sub.link.reading)
    house.advance(0.1)

    assert reading == (False, True)
    assert pub.link.reading
    assert sub.messages == [("t", b"1", 0)]


def test_qos_0_is_dropped_and_counted() -> None:
    """QoS 1 goes its way, and when memory has recovered QoS 0 does too, by whatever shortcut."""
    house = House(**WATERMARKS)
    sub = house.connect("sub").subscribe("t", qos=1)
    pub = house.connect("pub", V5).publish("t", b"before")

    _at(house, 200)
    for _ in range(3):
        pub.publish("t", b"dropped")
    pub.publish("t", b"assured", qos=1)
    house.advance(1)
    _at(house, 0)
    pub.publish("t", b"after")

    assert [payload for _, payload, _ in sub.messages] == [b"before", b"assured", b"after"]
    assert house.broker.runtime.statistics.dropped["overload"].value == 3
    assert len(pub.of(Puback)) == 1


def test_nobody_more_is_let_in() -> None:
    """Those who are in stay."""
    house = House(**WATERMARKS)
    inside = house.connect("a")
    _at(house, 300)

    outside = house.open()
    _at(house, 0)

    assert (outside.closed, inside.closed, house.open().closed) == (True, False, False)


def test_one_watermark_alone() -> None:
    """The others are never reached."""
    house = House(memory_refuse_bytes=300, memory_slow_bytes=0, memory_drop_bytes=0)

    assert [_at(house, memory) for memory in (299, 300)] == [0, 3]


def test_a_system_that_does_not_tell() -> None:
    """The level stays."""
    house = House(**WATERMARKS)

    assert [_at(house, memory) for memory in (200, None)] == [2, 2]


def test_watermarks_must_rise() -> None:
    """A mistake in the settings."""
    with pytest.raises(ValueError, match="the watermarks must rise"):
        LimitSettings(memory_slow_bytes=2, memory_drop_bytes=1)


def test_the_memory_of_this_process_is_known() -> None:
    """On Linux, where the tests run."""
    memory = resident_bytes()

    assert memory is not None
    assert memory > 1 << 20


def test_a_change_is_told_and_what_is_remembered_forgotten() -> None:
    """A topic that was used before finds no way around the watermark, and the operator reads of it."""
    house = House(**WATERMARKS)
    sub = house.connect("sub").subscribe("t")
    pub = house.connect("pub").publish("t", b"1").publish("t", b"2")

    with capturedLogs() as told:
        _at(house, 250)
    pub.publish("t", b"3")

    assert [formatEvent(event) for event in told] == ["memory is at 250 bytes: drop"]
    assert [payload for _, payload, _ in sub.messages] == [b"1", b"2"]
