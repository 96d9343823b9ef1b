"""Batches as another node writes them."""

from kinmqtt.broker.forwarding.batch_format import PLAIN, V5_PACKETS, RunHead, batch_head, write_run
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import V5, Publish
from kinmqtt_spi.values import Message


def batch_of(
    *messages: Message, flags: int = PLAIN, age_ms: int = 0, groups: tuple[tuple[str, str], ...] = ()
) -> bytes:
    """Returns a batch with a run for each message."""
    pieces = [batch_head(1)]
    for message in messages:
        publish = Publish.build(
            message.topic,
            message.payload,
            message.qos,
            message.retain,
            packet_id=1 if message.qos else 0,
            properties=message.properties,
        )
        head = RunHead(flags | V5_PACKETS, message.publisher, message.id.node, message.id.counter, age_ms, groups)
        write_run(head, [encode(publish, V5)], pieces)
    return b"".join(pieces)
