"""Templates: texts in which ``${name}`` stands for a part of a client, a message, or what comes from elsewhere.

:func:`fill_in` is for topics and filters of clients. Bridges use :func:`of_message` for texts about a message, and
:class:`TopicTemplate` for the topics of what a source brings in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, Generic, TypeAlias, TypeVar

from kinmqtt_spi.settings import did_you_mean
from kinmqtt_spi.values import Client, Message

T = TypeVar("T")

Part: TypeAlias = Callable[[T], str | None]
"""Returns what a placeholder stands for; ``None`` if there is nothing."""

MAX_TOPIC_BYTES: Final = 65_535

_PLACEHOLDER: Final = re.compile(r"\$\{([^{}]*)\}")
_LEVEL: Final = re.compile(r"topic\[(-?[0-9]{1,4})\]")
_CLIENT_PLACEHOLDER: Final = re.compile(r"\$\{(clientid|username)\}")


def fill_in(template: str, client: Client, *, begins: bool = True) -> str | None:
    """Fill the client's names into a template; return ``None`` if a name is missing or not safe.

    A client must not reach other topics by its choice of a name. A name with ``/``, ``+`` or ``#`` is not safe, nor
    is one that begins with ``$`` if the template begins with its placeholder. Pass ``begins=False`` for a template
    that is not the beginning of a topic.
    """
    names = {"clientid": client.client_id, "username": client.username}
    for placeholder in set(_CLIENT_PLACEHOLDER.findall(template)):
        name = names[placeholder]
        if not name or any(character in name for character in "/+#"):
            return None
    filled = _CLIENT_PLACEHOLDER.sub(lambda placeholder: names[placeholder[1]] or "", template)
    if begins and filled.startswith("$") and _CLIENT_PLACEHOLDER.match(template):
        return None
    return filled


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


_OF_A_MESSAGE: Final[Mapping[str, Part[Message]]] = {
    "topic": lambda message: message.topic,
    "clientid": lambda message: message.publisher.client_id or None,
    "username": lambda message: message.publisher.username or None,
}

MESSAGE_NAMES: Final = "${topic}, ${topic[N]}, ${clientid} or ${username}"
"""The placeholders for messages: ``${topic[2]}`` is the second level, ``${topic[-1]}`` the last one."""


def _level(number: int) -> Part[Message]:
    place = number - 1 if number > 0 else number

    def level(message: Message) -> str | None:
        levels = message.topic.split("/")
        return levels[place] or None if -len(levels) <= place < len(levels) else None

    return level


def part_of_message(name: str) -> Part[Message] | None:
    """Return what a placeholder of :data:`MESSAGE_NAMES` stands for; ``None`` for another one."""
    match = _LEVEL.fullmatch(name)
    if match is not None:
        return _level(int(match[1])) if int(match[1]) else None
    return _OF_A_MESSAGE.get(name)


def of_message(text: str) -> Template[Message]:
    """Return the template of a text about a message, with the placeholders of :data:`MESSAGE_NAMES`.

    Raises ``ValueError``.
    """
    return Template(text, part_of_message, MESSAGE_NAMES)


def key_maker(text: str) -> Callable[[Message], bytes]:
    """Return what makes a message's key; placeholders that stand for nothing are empty. Raises ``ValueError``."""
    fill_in = of_message(text).fill_in_present

    def key(message: Message) -> bytes:
        return fill_in(message).encode("utf-8", "surrogatepass")

    return key


class TopicTemplate(Generic[T]):
    """Makes MQTT topics of what comes from elsewhere, or says that there is none."""

    def __init__(self, text: str, find: Callable[[str], Part[T] | None], names: str) -> None:
        """``find`` and ``names`` are those of :class:`Template`.

        Raises ``ValueError`` for a template that never makes a topic.
        """
        is_whole = _PLACEHOLDER.fullmatch(text) is not None
        self._template = Template(text, find if is_whole else _within_levels(find), names)
        if not text or is_unfit(_PLACEHOLDER.sub("", text)):
            raise ValueError(f"{text!r} can't be an MQTT topic: no +, no #, no U+0000, no $ at the beginning")

    def fill_in(self, subject: T) -> str | None:
        """Return a valid topic, or ``None``.

        A value with a slash makes a topic only if the template is that one placeholder: else whoever writes at the
        origin could leave the part of the topics that the template names.
        """
        topic = self._template.fill_in(subject)
        return None if not topic or is_unfit(topic) or len(topic.encode()) > MAX_TOPIC_BYTES else topic


def _within_levels(find: Callable[[str], Part[T] | None]) -> Callable[[str], Part[T] | None]:
    def find_level(name: str) -> Part[T] | None:
        part = find(name)
        return None if part is None else lambda subject: _within_a_level(part(subject))

    return find_level


def _within_a_level(text: str | None) -> str | None:
    return None if text is None or "/" in text else text


def is_unfit(topic: str) -> bool:
    """Tell whether a text can't be a topic that a client would publish to, the length apart."""
    return topic.startswith("$") or any(character in topic for character in "+#\0")
