"""Templates: texts in which ``${name}`` stands for a part of a message.

``${topic[2]}`` is the second level of an MQTT topic, ``${topic[-1]}`` the last one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, Generic, TypeAlias, TypeVar

from kinmqtt_kafka_kit.settings import check_topic
from kinmqtt_spi.settings import did_you_mean
from kinmqtt_spi.values import Message

T = TypeVar("T")

Part: TypeAlias = Callable[[T], str | None]
"""Returns what a placeholder stands for; ``None`` if there is nothing."""

_PLACEHOLDER: Final = re.compile(r"\$\{([^{}]*)\}")
_LEVEL: Final = re.compile(r"topic\[(-?[0-9]{1,4})\]")


class Template(Generic[T]):
    """A text with placeholders, read once and filled in often."""

    def __init__(self, text: str, find: Callable[[str], Part[T] | None], names: str) -> None:
        """``find`` returns the part of a name, and ``names`` lists them for errors.

        Raises ``ValueError`` for an unknown or unfinished placeholder.
        """
        self.text = text
        self._parts: list[str | Part[T]] = []
        end = 0
        for match in _PLACEHOLDER.finditer(text):
            self._add(text[end : match.start()])
            part = find(match[1])
            if part is None:
                hint = did_you_mean(match[1], re.findall(r"\$\{([a-z_]+)", names))
                raise ValueError(f"{text!r}: unknown placeholder ${{{match[1]}}}{hint}; use {names}")
            self._parts.append(part)
            end = match.end()
        self._add(text[end:])

    @property
    def is_constant(self) -> bool:
        """Whether the text has no placeholder."""
        return all(isinstance(part, str) for part in self._parts)

    def fill_in(self, subject: T) -> str | None:
        """Return the text for a subject; ``None`` if a placeholder stands for nothing there."""
        texts = []
        for part in self._parts:
            text = part if isinstance(part, str) else part(subject)
            if text is None:
                return None
            texts.append(text)
        return "".join(texts)

    def fill_in_present(self, subject: T) -> str:
        """Return the text for a subject, where placeholders that stand for nothing are empty."""
        return "".join(part if isinstance(part, str) else part(subject) or "" for part in self._parts)

    def _add(self, literal: str) -> None:
        if "${" in literal:
            raise ValueError(f"{self.text!r}: a placeholder has no closing brace")
        if literal:
            self._parts.append(literal)


# Of messages from MQTT

_OF_A_MESSAGE: Final[Mapping[str, Part[Message]]] = {
    "topic": lambda message: message.topic,
    "clientid": lambda message: message.publisher.client_id or None,
    "username": lambda message: message.publisher.username or None,
}

MESSAGE_NAMES: Final = "${topic}, ${topic[N]}, ${clientid} or ${username}"


def _level(number: int) -> Part[Message]:
    place = number - 1 if number > 0 else number

    def level(message: Message) -> str | None:
        levels = message.topic.split("/")
        return levels[place] or None if -len(levels) <= place < len(levels) else None

    return level


def _find_in_message(name: str) -> Part[Message] | None:
    match = _LEVEL.fullmatch(name)
    if match is not None:
        return _level(int(match[1])) if int(match[1]) else None
    return _OF_A_MESSAGE.get(name)


def of_message(text: str) -> Template[Message]:
    """Return the template of a text about a message from MQTT; raises ``ValueError``."""
    return Template(text, _find_in_message, MESSAGE_NAMES)


def _with_dots(message: Message) -> str:
    return message.topic.replace("/", ".")


def kafka_topic(text: str) -> Template[Message]:
    """Return the template of a Kafka topic, where ``${topic}`` has a dot for each slash; raises ``ValueError``."""

    def find(name: str) -> Part[Message] | None:
        return _with_dots if name == "topic" else _find_in_message(name)

    template = Template(text, find, MESSAGE_NAMES)
    if template.is_constant:
        check_topic(text)
    return template


def key_maker(text: str) -> Callable[[Message], bytes]:
    """Return what makes a message's key; placeholders that stand for nothing are empty. Raises ``ValueError``."""
    fill_in = of_message(text).fill_in_present

    def key(message: Message) -> bytes:
        return fill_in(message).encode("utf-8", "surrogatepass")

    return key


# Of records from Kafka

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


class MqttTopic:
    """Makes MQTT topics of records, or says that there is none."""

    def __init__(self, text: str) -> None:
        """Raises ``ValueError`` for a template that never makes a topic."""
        self._is_whole = _PLACEHOLDER.fullmatch(text) is not None
        self._template = Template(text, self._find, RECORD_NAMES)
        if not text or is_unfit(_PLACEHOLDER.sub("", text)):
            raise ValueError(f"{text!r} can't be an MQTT topic: no +, no #, no U+0000, no $ at the beginning")

    def fill_in(self, record: Incoming) -> str | None:
        """Return a valid topic, or ``None``.

        A key or header with a slash makes a topic only if the template is that one placeholder: else whoever writes
        to Kafka could leave the part of the topics that the template names.
        """
        topic = self._template.fill_in(record)
        return None if not topic or is_unfit(topic) or len(topic.encode()) > 65_535 else topic

    def _find(self, name: str) -> Part[Incoming] | None:
        part = _find_in_record(name)
        if part is None or self._is_whole:
            return part
        return lambda record: _within_a_level(part(record))


def _within_a_level(text: str | None) -> str | None:
    return None if text is None or "/" in text else text


def is_unfit(topic: str) -> bool:
    """Tell whether a text can't be a topic that a client would publish to, the length apart."""
    return topic.startswith("$") or any(character in topic for character in "+#\0")
