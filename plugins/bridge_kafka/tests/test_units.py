"""Records and notices, without Kafka."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bridge_kafka_harness.making import Made, message
from kinmqtt_bridge_kafka import notices
from kinmqtt_bridge_kafka.records import CACHED_TOPICS, HeaderMaker, Incomer
from kinmqtt_bridge_kafka.settings import PublishSettings
from kinmqtt_spi.properties import Properties


def test_a_client_can_not_forge_the_headers_of_the_bridge() -> None:
    """User properties with such names are left out, and the others keep their order."""
    properties = Properties(user_property=(("mqtt-id", "x"), ("b", "1"), ("mqtt-topic", "y"), ("a", "2")))

    headers, _ = HeaderMaker({}).make(message(properties=properties))

    assert [name for name, _ in headers] == ["mqtt-topic", "mqtt-qos", "mqtt-retain", "mqtt-id", "b", "a"]


@given(
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=20),
    st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=9), st.text(st.characters(codec="utf-8"))),
)
def test_the_size_of_headers_is_never_too_low(topic: str, properties: dict[str, str]) -> None:
    """Or a batch would be refused that the settings should have kept small."""
    sent = message(topic, properties=Properties(user_property=tuple(properties.items())))

    headers, size = HeaderMaker({"more": "${topic}"}).make(sent)

    assert size >= sum(len(name.encode()) + len(data) + 2 for name, data in headers)


def test_the_cache_of_headers_is_bounded() -> None:
    """Clients choose topics."""
    maker = HeaderMaker({})
    for number in range(2 * CACHED_TOPICS):
        maker.make(message(f"t/{number}"))
    maker.make(message("x" * 60_000))

    assert len(maker._cached) <= CACHED_TOPICS
    assert max(len(topic) for topic, _, _ in maker._cached) < 100


@given(st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=9))))
def test_any_headers_of_a_record_make_a_message(headers: list[tuple[str, bytes | None]]) -> None:
    """What is no text of MQTT is left out."""
    message = Incomer(PublishSettings(topic="a")).message("t", None, None, headers)

    assert message is not None
    for name, text in message.properties.user_property:
        assert "\0" not in name + text and not name.startswith("mqtt-")


def test_headers_can_be_left_out() -> None:
    """As the settings say."""
    message = Incomer(PublishSettings(topic="a", user_properties=False, retain=True, qos=2)).message(
        "t", None, b"x", [("a", b"b")]
    )

    assert message is not None
    assert (message.properties.user_property, message.retain, message.qos, message.payload) == ((), True, 2, b"x")


def test_a_line_comes_once_a_minute_and_the_memory_for_that_is_bounded() -> None:
    """Each subject has its own minute."""
    made = Made()
    for number in range(3):
        made.notices.warn("a", f"a {number}")
        made.notices.warn("b", f"b {number}")
    made.clock.advance(notices.PAUSE_S)
    made.notices.warn("a", "a again")
    assert made.log.texts("warn") == ["a 0", "b 0", "a again (2 more like this)"]

    for number in range(2 * notices.MAX_SUBJECTS):
        made.notices.warn(str(number), "x")
    assert len(made.notices._last) == notices.MAX_SUBJECTS
