"""Message expiry with the longest interval, and clocks that are set back."""

from __future__ import annotations

import pytest

from core_harness.house import House, back, payloads
from kinmqtt.mqtt.packets import V5, Publish
from kinmqtt_spi import Properties

ONE_AT_A_TIME = Properties(receive_maximum=1)


LONGEST_EXPIRY_S = 4_294_967_295


@pytest.mark.parametrize("how", ["queued", "retained"])
def test_the_longest_expiry_and_a_clock_that_was_set_back(how: str) -> None:
    """A message says no more than its publisher did, and so holds up nobody and nothing behind it [MQTT-3.3.2-6]."""
    house = House()
    house.connect("s", V5, expiry_s=600).subscribe("q", qos=1).drop()
    pub = house.connect("pub", V5)
    longest = Properties(message_expiry_interval=LONGEST_EXPIRY_S)
    if how == "queued":
        pub.publish("q", b"long", qos=1, properties=longest)
        pub.publish("q", b"plain", qos=1)
    else:
        pub.publish("r/0", b"long", qos=1, retain=True, properties=longest)
        pub.publish("r/1", b"plain", qos=1, retain=True)

    house.clock.step(-2)
    sub = back(house, "s", properties=ONE_AT_A_TIME)
    if how == "retained":
        sub.subscribe("r/#", qos=1)
    house.advance(1)

    assert not sub.closed
    assert sorted(payloads(sub)) == [b"long", b"plain"]
    [told] = [p.properties.message_expiry_interval for p in sub.of(Publish) if p.payload == b"long"]
    assert told is not None
    assert told <= LONGEST_EXPIRY_S
