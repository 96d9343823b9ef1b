"""Actions: what becomes of a rule's rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from kinmqtt_rules.checking import CheckedRule
from kinmqtt_rules.fields import Subject
from kinmqtt_rules.settings import ActionSettings, RepublishSettings
from kinmqtt_rules.templates import Placeholder, Template, TopicTemplate
from kinmqtt_spi.services.plugin import Context
from kinmqtt_spi.values import Message


class Action(ABC):
    """Makes a message of a row."""

    sink: str | None = None
    """The sink that the message is for; ``None`` if it is published."""
    direct = False
    """Whether a published message fires no rules."""

    @abstractmethod
    def message(self, row: Any, subject: Subject) -> Message:
        """Return the message; raises ``ValueError`` if the row makes none."""


class Republish(Action):
    """Publishes a message."""

    def __init__(self, settings: RepublishSettings, rule: CheckedRule) -> None:
        self.direct = settings.direct
        self._topic = TopicTemplate(settings.topic, with_levels=rule.topics)
        self._payload = Template(settings.payload)
        self._qos = _constant_or_placeholder(settings.qos)
        self._retain = _constant_or_placeholder(settings.retain)

    def message(self, row: Any, subject: Subject) -> Message:
        """Return the message; raises ``ValueError`` if the row makes none."""
        qos, retain = (
            each.value(row) if isinstance(each, Placeholder) else each for each in (self._qos, self._retain)
        )
        if type(qos) is not int or not 0 <= qos <= 2:
            raise ValueError("the QoS is none of 0, 1 and 2")
        if retain not in (True, False, 0, 1):
            raise ValueError("retain is neither true nor false")
        return Message(self._topic.fill_in(row), self._payload.payload(row), qos, bool(retain))


class ToSink(Action):
    """Puts a message into a sink: the message that the rule was applied to, with another payload."""

    def __init__(self, settings: ActionSettings, rule: CheckedRule) -> None:
        self.sink = settings.sink
        self._topic = None if settings.topic is None else TopicTemplate(settings.topic, with_levels=rule.topics)
        self._payload = Template(settings.payload)

    def message(self, row: Any, subject: Subject) -> Message:
        """Return the message; raises ``ValueError`` if the row makes none."""
        given = subject.message
        return Message(
            given.topic if self._topic is None else self._topic.fill_in(row),
            self._payload.payload(row),
            given.qos,
            given.retain,
            given.properties,
            given.publisher,  # the broker gives it an id of its own
        )


def _constant_or_placeholder(value: int | bool | str) -> int | bool | Placeholder:
    if not isinstance(value, str):
        return value
    whole = Template(value).whole
    if whole is None:
        raise ValueError(f"{value!r} is no placeholder")
    return whole


def action_of(settings: ActionSettings, rule: CheckedRule) -> Action:
    """Return the action that the settings describe."""
    if settings.republish is not None:
        return Republish(settings.republish, rule)
    return ToSink(settings, rule)


def act(context: Context, action: Action, message: Message) -> None:
    """Publish a message, or put it into its sink; what it writes shares the commit of this turn."""
    if action.sink is None:
        context.publish(message)
    else:
        context.put(action.sink, message)
