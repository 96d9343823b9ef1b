"""Templates of Kafka's topics, and of the topics that records are published to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kinmqtt_kafka_kit.settings import check_topic
from kinmqtt_spi.templates import MESSAGE_NAMES, Part, Template, TopicTemplate, part_of_message
from kinmqtt_spi.values import Message


def _with_dots(message: Message) -> str:
    return message.topic.replace("/", ".")


def kafka_topic(text: str) -> Template[Message]:
    """Return the template of a Kafka topic, where ``${topic}`` has a dot for each slash; raises ``ValueError``."""

    def find(name: str) -> Part[Message] | None:
        return _with_dots if name == "topic" else part_of_message(name)

    template = Template(text, find, MESSAGE_NAMES)
    if template.is_constant:
        check_topic(text)
    return template


RECORD_NAMES: Final = "${topic}, ${key} or ${header.NAME}"


class Incoming:
    """What a template of a source may use of a record."""

    __slots__ = ("headers", "key", "topic")

    def __init__(self, topic: str, key: bytes | None, headers: Mapping[str, bytes]) -> None:
        self.topic = topic
        self.key = key
        self.headers = headers


def _decoded(data: bytes | None) -> str | None:
    try:
        return data.decode() or None if data else None
    except UnicodeDecodeError:
        return None


def _find_in_record(name: str) -> Part[Incoming] | None:
    if name == "topic":
        return lambda record: record.topic
    if name == "key":
        return lambda record: _decoded(record.key)
    kind, dot, header = name.partition(".")
    if kind == "header" and dot and header:
        return lambda record: _decoded(record.headers.get(header))
    return None


def mqtt_topic(text: str) -> TopicTemplate[Incoming]:
    """Return the template of the MQTT topics of records; raises ``ValueError``."""
    return TopicTemplate(text, _find_in_record, RECORD_NAMES)
