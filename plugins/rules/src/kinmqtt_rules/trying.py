"""What a rule is tried on: a message or an event that was typed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from attrs import field, frozen

from kinmqtt_rules.fields import CLIENT_FIELDS, MESSAGE_FIELDS, EventTopic, Subject
from kinmqtt_rules.running import MESSAGE_EVENT
from kinmqtt_spi.settings import did_you_mean
from kinmqtt_spi.values import Address, Client, Message, NodeIdentity

ADDRESS: Final = "127.0.0.1"
"""The address of the publisher."""


@frozen(slots=True)
class _About:
    """Stands for the broker: one client is connected."""

    known: Client
    node: NodeIdentity = field(default=NodeIdentity("here", 0))

    def client(self, client_id: str) -> Client | None:
        """Return the client."""
        return self.known if client_id == self.known.client_id else None


def _about(message: Message) -> _About:
    publisher = message.publisher
    return _About(Client(publisher.client_id, publisher.username, Address(ADDRESS)))


def message_subject(message: Message) -> Subject:
    """Return what rules see of a message that has just been received."""
    return Subject(MESSAGE_EVENT, message, lambda: message.received_at, _about(message))


def event_subject(topic: EventTopic, message: Message, fields: Mapping[str, Any]) -> Subject:
    """Return what rules see of an event: these fields, and the others as the message has them, else NULL.

    The message's publisher is the event's client. Raises ``ValueError`` for a field that the event does not have.
    """
    for name in fields:
        if name not in topic.fields:
            hint = did_you_mean(name, topic.fields)
            raise ValueError(f"{topic.name} has no field {name!r}{hint}; there are: {', '.join(topic.fields)}")
    of_message = CLIENT_FIELDS if topic.is_durable else MESSAGE_FIELDS
    at = int(message.received_at * 1000)
    others = {name: at if name.endswith("_at") else None for name in topic.fields if name not in of_message}
    return Subject(topic.event, message, lambda: message.received_at, _about(message), {**others, **fields})
