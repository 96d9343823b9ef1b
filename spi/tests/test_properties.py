"""MQTT 5.0 properties as one immutable object."""

from __future__ import annotations

import pickle
from copy import copy

import pytest

from kinmqtt_spi.properties import NO_PROPERTIES, PROPERTIES_BYTES, PROPERTY_NAMES, Properties, text_bytes


def test_an_absent_property_reads_as_none() -> None:
    """What a packet does not carry is ``None``, or empty where it may be repeated."""
    properties = Properties(content_type="text")

    assert properties.content_type == "text"
    assert properties.topic_alias is None
    assert (properties.user_property, properties.subscription_identifier) == ((), ())


def test_every_property_has_an_absent_value() -> None:
    """All 27 properties of section 2.2.2.2 can be asked for without a look-up."""
    assert len(PROPERTY_NAMES) == 27
    assert all(getattr(NO_PROPERTIES, name) in (None, ()) for name in PROPERTY_NAMES)


def test_a_property_that_mqtt_lacks_is_a_mistake() -> None:
    """A misspelt name fails at once instead of being sent to nobody."""
    with pytest.raises(TypeError, match="contenttype"):
        Properties(contenttype="text")  # type: ignore[call-arg]


def test_present_properties_keep_their_order() -> None:
    """The properties that are there are listed as they were given."""
    properties = Properties(topic_alias=1, content_type="t", user_property=(("b", "1"), ("a", "2"), ("b", "1")))

    assert list(properties.present) == ["topic_alias", "content_type", "user_property"]
    assert properties.user_property == (("b", "1"), ("a", "2"), ("b", "1"))


def test_changes_make_copies() -> None:
    """Replacing and leaving out do not touch the original; nothing left over is the shared empty object."""
    properties = Properties(content_type="a", topic_alias=1)

    replaced = properties.replace(content_type="b", response_topic="r")

    assert replaced == Properties(content_type="b", topic_alias=1, response_topic="r")
    assert properties.without("topic_alias", "server_reference") == Properties(content_type="a")
    assert properties.without("topic_alias", "content_type") is NO_PROPERTIES
    assert properties == Properties(content_type="a", topic_alias=1)


def test_properties_can_not_be_written() -> None:
    """Many messages share one object, so writing to it says how to make a copy instead."""
    properties = Properties(content_type="a")

    with pytest.raises(AttributeError, match="replace"):
        properties.content_type = "b"
    with pytest.raises(AttributeError, match="without"):
        del properties.content_type


def test_equal_properties_are_one_key() -> None:
    """Order of writing is no part of what properties say."""
    one, two = Properties(content_type="a", topic_alias=1), Properties(topic_alias=1, content_type="a")

    assert one == two and hash(one) == hash(two)
    assert one != Properties(content_type="a") and one != "a"


def test_properties_read_as_they_are_written() -> None:
    """An empty object is false, and ``repr`` shows what is present."""
    assert (bool(NO_PROPERTIES), bool(Properties(topic_alias=1))) == (False, True)
    assert repr(Properties(topic_alias=1)) == "Properties(topic_alias=1)"


def test_a_decoders_dict_is_taken_over() -> None:
    """The decoder's checked values are wrapped, not copied."""
    present = {"topic_alias": 1}

    assert Properties.from_wire(present).present is present


def test_no_properties_take_nothing() -> None:
    """A message without any counts for its topic and payload only."""
    assert NO_PROPERTIES.size_bytes == 0


@pytest.mark.parametrize(
    "properties",
    [
        Properties(content_type="x" * 1000),
        Properties(response_topic="x" * 1000),
        Properties(correlation_data=b"x" * 1000),
        Properties(user_property=(("x" * 1000, ""),)),
        Properties(user_property=(("", "x" * 1000),)),
        Properties(user_property=(("", ""),) * 16),
        Properties(subscription_identifier=(1,) * 32),
    ],
)
def test_whatever_a_client_may_make_large_counts(properties: Properties) -> None:
    """Strings, binary data, and the number of those that may be repeated."""
    assert 1000 + PROPERTIES_BYTES <= properties.size_bytes < 1200 + PROPERTIES_BYTES


def test_a_text_counts_for_what_it_may_take() -> None:
    """CPython makes each character as wide as the widest: one emoji makes a long text four times as large."""
    assert [text_bytes("x" * 100), text_bytes("x" * 99 + "\U0001f600")] == [100, 400]
    assert text_bytes("") == 0


def test_the_size_is_no_part_of_what_properties_are() -> None:
    """Whoever has asked for it has the same properties still: they compare, show, hash and copy as before."""
    asked, fresh = (Properties(user_property=(("k", "v"),), topic_alias=1) for _ in range(2))

    size_bytes = asked.size_bytes

    assert (asked, repr(asked), hash(asked), dict(asked.present)) == (fresh, repr(fresh), hash(fresh), fresh.present)
    assert copy(asked) == pickle.loads(pickle.dumps(asked)) == fresh
    assert copy(asked).replace(topic_alias=2).size_bytes == size_bytes


def test_each_property_counts() -> None:
    """Each that is there, a number too, and together what they count one by one; what holds them counts once."""
    one, other = Properties(message_expiry_interval=5), Properties(content_type="text")

    both = Properties(message_expiry_interval=5, content_type="text")

    assert 0 < one.size_bytes < other.size_bytes
    assert both.size_bytes == one.size_bytes + other.size_bytes - PROPERTIES_BYTES
