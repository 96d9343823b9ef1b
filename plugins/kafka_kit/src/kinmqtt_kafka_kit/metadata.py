"""What a producer knows of topics: it asks in a way that creates none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aiokafka import AIOKafkaProducer
from aiokafka.errors import NoError, TopicAuthorizationFailedError, for_code
from aiokafka.protocol.metadata import MetadataRequest

from kinmqtt_spi.errors import ServiceUnavailable


def partitions_of(producer: AIOKafkaProducer, topic: str) -> tuple[int, ...]:
    """Return a topic's partitions in ascending order, as far as they are known; empty if the topic is not."""
    return tuple(sorted(producer.client.cluster.partitions_for_topic(topic) or ()))


async def missing(producer: AIOKafkaProducer, topics: Iterable[str]) -> Mapping[str, str]:
    """Return why each of these topics can't be used, after a look at Kafka; usable topics are left out.

    Raises ``ServiceUnavailable`` if Kafka does not answer, and aiokafka's errors, of which
    ``TopicAuthorizationFailedError`` means that this client may not see a topic.
    """
    client = producer.client
    # A list of all topics, which creates none. aiokafka's requests that name a topic would create it.
    if not await client.force_metadata_update():
        raise ServiceUnavailable("Kafka does not say which topics it has")
    wanted = [topic for topic in topics if not partitions_of(producer, topic)]
    node = client.get_random_node()
    if not wanted or node is None:
        return dict.fromkeys(wanted, "Kafka does not list it")
    answer = await client.send(node, MetadataRequest(wanted, allow_auto_topic_creation=False))
    found = {}
    for code, topic, *_ in answer.topics:
        error = for_code(code)
        if error is TopicAuthorizationFailedError:
            raise TopicAuthorizationFailedError(topic)
        if error is not NoError:
            found[topic] = f"there is no topic {topic!r} in Kafka"
        else:
            # Created since the list was made: the next attempt finds it.
            found[topic] = f"the topic {topic!r} is new in Kafka"
    return found
