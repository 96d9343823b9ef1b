"""The form of retained messages in Kafka: the topic is the key, the payload the value, headers say the rest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from attrs import evolve

from kinmqtt_kafka_kit.delivery import Header
from kinmqtt_spi.plain import from_plain, to_plain
from kinmqtt_spi.services.retain import RetainWrite
from kinmqtt_spi.values import Message

QOS: Final = "mqtt-qos"
ID: Final = "mqtt-id"
RECEIVED_AT: Final = "mqtt-received-at"
EXPIRES_AT: Final = "mqtt-expires-at"
CLIENT_ID: Final = "mqtt-client-id"
USERNAME: Final = "mqtt-username"
PROPERTIES: Final = "mqtt-properties"


def key_of(topic: str) -> bytes:
    """Return the key of a topic."""
    return topic.encode("utf-8", "surrogatepass")


def topic_of(key: bytes | None) -> str:
    """Return the topic of a key; raises ``ValueError`` for one that nobody can have retained a message under."""
    topic = (key or b"").decode("utf-8", "surrogatepass")
    if not topic or topic[0] == "$" or any(sign in topic for sign in "+#\0"):
        raise ValueError(f"the key {topic[:100]!r} is no topic of a retained message")
    return topic


def headers_of(message: Message) -> list[Header]:
    """Return what the value and the key don't say."""
    headers = [
        (QOS, b"%d" % message.qos),
        (ID, b"%016x-%d" % message.id),
        (RECEIVED_AT, repr(message.received_at).encode()),
    ]
    if message.expires_at is not None:
        headers.append((EXPIRES_AT, repr(message.expires_at).encode()))
    headers.append((CLIENT_ID, message.publisher.client_id.encode("utf-8", "surrogatepass")))
    if message.publisher.username is not None:
        headers.append((USERNAME, message.publisher.username.encode("utf-8", "surrogatepass")))
    if message.properties:
        plain: Any = to_plain(message)
        headers.append((PROPERTIES, json.dumps(plain["properties"], separators=(",", ":")).encode("ascii")))
    return headers


def decode(key: bytes, value: bytes, headers: Sequence[tuple[str, bytes | None]]) -> RetainWrite:
    """Return the write that restores a retained message; raises ``ValueError`` if the record is no such message.

    Its version is what the broker gives a message, unless its clock stood still or was behind.
    """
    texts = {name: (data or b"").decode("utf-8", "surrogatepass") for name, data in headers}
    try:
        node, _, counter = texts[ID].partition("-")
        received_at = float(texts[RECEIVED_AT])
        identity = {"node": int(node, 16), "counter": int(counter)}
        message = {
            "topic": topic_of(key),
            "payload": "",
            "qos": int(texts[QOS]),
            "retain": True,
            "properties": json.loads(texts.get(PROPERTIES, "{}")),
            "publisher": {"client_id": texts[CLIENT_ID], "username": texts.get(USERNAME)},
            "id": identity,
            "received_at": received_at,
            "expires_at": float(texts[EXPIRES_AT]) if EXPIRES_AT in texts else None,
        }
    except (KeyError, RecursionError) as error:
        raise ValueError(f"the record has no header {error}") from error
    version = {"received_at": received_at, **identity}
    write = from_plain(RetainWrite, {"message": message, "version": version})
    return evolve(write, message=write.message.replace(payload=value))
