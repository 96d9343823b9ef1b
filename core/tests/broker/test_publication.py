"""One message for many subscribers: the bytes they share are those that each would have got by itself."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_harness.house import House, Peer
from core_harness.strategies import payloads, properties, publishes, qos, topics, versions
from kinmqtt.broker.message.message_ids import MessageIds
from kinmqtt.broker.message.publication import NOT_FORWARDED, Publication
from kinmqtt.mqtt.codec import decode, encode
from kinmqtt.mqtt.framing import Framer
from kinmqtt.mqtt.packets import V5, PacketType, Publish, Subscribe, SubscribeRequest
from kinmqtt_spi import NO_PROPERTIES, Properties
from kinmqtt_spi.values import Publisher
from spi_harness.examples import examples

PACKET_ID = 0x1234


def received(data: bytes, version: int) -> Publish:
    """A PUBLISH as the broker reads it."""
    [(frame, body)] = Framer().feed(data)
    packet = decode(frame, body, version)
    assert isinstance(packet, Publish)
    return packet


def made_of(packet: Publish, version: int) -> Publication:
    """What the broker makes of a PUBLISH; an alias has been resolved by then."""
    packet.topic = packet.topic or "resolved"
    return Publication(packet, version, Publisher("p", None), 0.0, MessageIds(1))


def passed_on(packet: Publish, version: int) -> Properties:
    """The properties that a subscriber of a version is to have of it [MQTT-3.3.2-17, MQTT-3.3.2-20]."""
    return packet.properties.without(*NOT_FORWARDED) if version == V5 and packet.properties else NO_PROPERTIES


@given(st.data())
@settings(max_examples=examples(150), deadline=None)
def test_shared_parts_are_what_the_codec_encodes(data: st.DataObject) -> None:
    """For each version, QoS and RETAIN: the packet that came, cut in two, or one made anew, is the same bytes."""
    came = data.draw(versions)
    packet = received(encode(data.draw(publishes(came)), came), came)
    publication = made_of(packet, came)

    for version in (4, 5):
        for level in range(packet.qos + 1):
            for retain in (False, True):
                head, tail = publication.parts(version, level, retain)
                number = PACKET_ID if level else 0
                alone = Publish.build(
                    packet.topic, packet.payload, level, retain, False, number, passed_on(packet, version)
                )
                shared = head + (number.to_bytes(2, "big") if level else b"") + tail
                assert shared == encode(alone, version)


@given(st.data())
@settings(max_examples=examples(50), deadline=None)
def test_a_stored_message_makes_the_same_packets(data: st.DataObject) -> None:
    """A message that went through a store goes out in the same bytes as if it had not."""
    came = data.draw(versions)
    packet = received(encode(data.draw(publishes(came)), came), came)
    direct = made_of(packet, came)

    stored = Publication.of(direct.stored)

    for version in (4, 5):
        for level in range(packet.qos + 1):
            assert "".join(part.hex() for part in stored.parts(version, level, False)) == "".join(
                part.hex() for part in direct.parts(version, level, False)
            )
    assert stored.expires_at == direct.expires_at


@st.composite
def subscribers(draw: st.DrawFn) -> tuple[int, int, bool, int | None]:
    """Version, granted QoS, whether RETAIN is to stay, and a subscription identifier."""
    version = draw(versions)
    new = version == V5
    return version, draw(qos), new and draw(st.booleans()), draw(st.sampled_from((None, 1, 300))) if new else None


def listening(house: House, subscriber: tuple[int, int, bool, int | None], topic: str) -> tuple[Peer, bytearray]:
    """A client with its subscription, and all that is written to it from now on."""
    version, granted, as_published, identifier = subscriber
    peer = house.connect(version=version, client_id=f"s{len(house.peers)}", silent=True)
    extra = NO_PROPERTIES if identifier is None else Properties(subscription_identifier=(identifier,))
    request = SubscribeRequest(topic, granted, retain_as_published=as_published)
    peer.send(Subscribe(1, (request,), extra))
    heard = bytearray()
    write = peer.link.write

    def tap(data: bytes) -> None:
        heard.extend(data)
        write(data)

    peer.link.write = tap  # type: ignore[method-assign]
    return peer, heard


@given(
    version=versions,
    topic=topics.map("t/{}".format),
    payload=payloads,
    level=qos,
    retain=st.booleans(),
    extra=properties(PacketType.PUBLISH, V5),
    wanted=st.lists(subscribers(), min_size=1, max_size=6),
)
@settings(max_examples=examples(80), deadline=None)
def test_each_subscriber_gets_a_packet_of_its_own(
    version: int, topic: str, payload: bytes, level: int, retain: bool, extra: Properties, wanted: list[Any]
) -> None:
    """Among subscribers of all sorts each gets what the codec makes for it alone, and nothing else."""
    house = House(control_characters="allow")
    peers = [listening(house, subscriber, topic) for subscriber in wanted]
    listed = extra.without(*NOT_FORWARDED, "message_expiry_interval") if version == V5 and extra else NO_PROPERTIES

    house.connect("p", version).publish(topic, payload, level, retain, properties=listed)

    for (its_version, granted, as_published, identifier), (_, heard) in zip(wanted, peers, strict=True):
        its_qos = min(level, granted)
        its_properties = listed if its_version == V5 else NO_PROPERTIES
        if identifier is not None:
            its_properties = its_properties.replace(subscription_identifier=(identifier,))
        number = 1 if its_qos else 0
        alone = Publish.build(topic, payload, its_qos, retain and as_published, False, number, its_properties)
        assert heard == encode(alone, its_version)


def test_properties_go_on_in_the_order_in_which_they_came() -> None:
    """User properties keep their order, though the packet goes out anew [MQTT-3.3.2-18]."""
    house = House(control_characters="allow")
    pairs = (("b", "1"), ("a", "2"), ("b", "3"))
    kinds: list[dict[str, Any]] = [{}, {"properties": Properties(subscription_identifier=(7,))}]
    subs = [house.connect(f"s{n}", V5).subscribe("t", qos=1, **more) for n, more in enumerate(kinds)]

    house.connect("p", V5).publish("t", b"x", 1, properties=Properties(user_property=pairs))

    assert [sub.of(Publish)[0].properties.user_property for sub in subs] == [pairs, pairs]


@pytest.mark.parametrize("properties", [Properties(), Properties(topic_alias=3, user_property=(("k", "v" * 500),))])
def test_a_publication_counts_the_same_whatever_is_made_of_it(properties: Properties) -> None:
    """Before and after a message is made, and once it rests: else what is taken off is not what was put on."""
    publish = received(encode(Publish.build("t", b"x" * 1000, 1, packet_id=7, properties=properties), V5), V5)
    publication = Publication(publish, V5, Publisher("c"), 1.0, MessageIds(1))
    parts = publication.parts(V5, 1, False)

    sizes = [publication.size_bytes]
    message = publication.stored
    sizes.append(publication.size_bytes)
    publication.rest()
    sizes.append(publication.size_bytes)

    assert len(set(sizes)) == 1
    assert 0 <= sizes[0] - message.size_bytes <= 32
    assert publication.publish.frame is message.payload
    assert publication.parts(V5, 1, False) == parts
