"""One message for another node, as a batch with one packet: for questions between the cores of two nodes."""

from __future__ import annotations

from typing import Final

from kinmqtt.broker.forwarding.batch_format import PLAIN, RunHead, batch_head, cut_packets, read_batch, write_run
from kinmqtt.broker.forwarding.node_link import packet_of
from kinmqtt.broker.message.message_ids import MessageIds
from kinmqtt.broker.message.publication import Publication
from kinmqtt.mqtt.codec.publish import decode_publish
from kinmqtt.mqtt.errors import RemoteError
from kinmqtt.mqtt.packets import V5, V311
from kinmqtt_spi.errors import MalformedBatch

_NO_IDS: Final = MessageIds(0)
"""Not used: the message has its id."""


def write_message(publication: Publication, now: float, clients: tuple[str, ...] = ()) -> bytes:
    """Return a message as bytes, with its id and its age at ``now``, in seconds since the epoch."""
    packet, flags = packet_of(publication)
    age_ms = int(max(0.0, now - publication.received_at) * 1000)
    head = RunHead(flags | PLAIN, publication.publisher, publication.uid, publication.counter, age_ms, (), clients)
    pieces = [batch_head(0)]
    write_run(head, [packet], pieces)
    return b"".join(pieces)


def read_message(data: bytes, now: float, age_s: float | None = None) -> tuple[RunHead, Publication]:
    """Return a message that :func:`write_message` has written, as received its age before ``now``.

    ``age_s`` replaces the age that is written with it, which ends at 49 days.
    Raises :class:`~kinmqtt_spi.errors.MalformedBatch`.
    """
    heads = read_batch(data)
    packets = cut_packets(data, heads[0].start, heads[0].end) if len(heads) == 1 else []
    if len(packets) != 1:
        raise MalformedBatch("a batch with something else than one message")
    head = heads[0]
    version = V5 if head.is_v5 else V311
    try:
        publish = decode_publish(*packets[0], version)
    except RemoteError as error:
        raise MalformedBatch(f"a packet that can't be read: {error.text}") from None
    if not publish.topic:
        raise MalformedBatch("a packet without a topic")
    if age_s is None:
        age_s = head.age_ms / 1000
    publication = Publication(publish, version, head.publisher, now - age_s, _NO_IDS)
    publication.use_number(head.uid, head.counter)
    return head, publication
