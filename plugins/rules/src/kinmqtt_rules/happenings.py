"""Rules on events: of clients and sessions from the feed, and of messages from notices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from kinmqtt_rules.actions import Action
from kinmqtt_rules.fields import EVENTS, Subject, topic_of, values_of
from kinmqtt_rules.running import Engine, RunningRule
from kinmqtt_spi.services.event import Event, Recorded
from kinmqtt_spi.services.plugin import Context
from kinmqtt_spi.values import THE_BROKER, Maybe, Message, Publisher

GROUP: Final = "rules"
"""The group of the feed: each event comes to one node."""

NOTICES: Final = {
    "$events/message/delivered": "delivered",
    "$events/message/acked": "acknowledged",
    "$events/message/dropped": "dropped",
}
"""The hooks behind the events of messages."""


def subject_of(event: Event, context: Context) -> Subject | None:
    """Return what rules see of an event; ``None`` if they have no such event."""
    topic = topic_of(event)
    if topic is None:
        return None
    found = values_of(event)
    username = found.get("username")
    message = Message(
        topic,
        qos=1,
        publisher=Publisher(event.client_id, username if isinstance(username, str) else None),
        received_at=event.at,
    )
    return Subject(EVENTS[topic].event, message, lambda: event.at, context, found)


class EventRules:
    """Applies rules to events of the feed. Each event counts as handled when all that rules publish is committed."""

    def __init__(self, context: Context, engine: Engine) -> None:
        self._context = context
        self._engine = engine
        self.rules: Sequence[RunningRule] = ()

    def handle(self, batch: Sequence[Recorded]) -> Maybe[None]:
        """Handle a batch of the feed. It fails if the broker could not commit: the batch comes again then."""
        published: list[tuple[RunningRule, Action, Message]] = []
        for recorded in batch:
            subject = subject_of(recorded.event, self._context)
            if subject is None:
                continue
            topic = subject.message.topic
            for rule in self.rules:
                if topic not in rule.checked.events:
                    continue
                for action, message in rule.outcomes(subject):
                    if action.sink is None and not action.direct:
                        published.append((rule, action, message))
                    else:
                        self._engine.act(rule, action, message)
        return self._publish(published) if published else None

    async def _publish(self, published: Sequence[tuple[RunningRule, Action, Message]]) -> None:
        try:
            await self._context.publish_acknowledged([message for _, _, message in published])
        except ValueError:  # one of them is invalid, and none is published
            for rule, _, message in published:
                try:
                    await self._context.publish_acknowledged([message])
                except ValueError as error:
                    rule.failed(error)


class NoticeRules:
    """Applies rules to events of messages, of which some may be lost.

    What the broker and plugins publish makes no such event for rules: else a rule could go on with its own messages.
    """

    def __init__(self, context: Context, engine: Engine) -> None:
        self._context = context
        self._engine = engine
        self._rules: dict[str, list[RunningRule]] = {}

    def replace(self, rules: Iterable[RunningRule]) -> None:
        """Take new rules."""
        self._rules = {}
        for rule in rules:
            for topic in rule.checked.events:
                if topic in NOTICES:
                    self._rules.setdefault(topic, []).append(rule)

    def see(self, topic: str, message: Message, client_id: str, username: str | None, reason: Any = None) -> None:
        """Apply the rules about a topic; the client is the one that the message was for."""
        rules = self._rules.get(topic)
        if not rules or message.publisher == THE_BROKER:
            return
        values = {
            "clientid": client_id,
            "username": username,
            "from_clientid": message.publisher.client_id,
            "from_username": message.publisher.username,
            "reason": reason,
        }
        event = EVENTS[topic].event
        subject = Subject(event, message, self._context.clock.now, self._context, values)
        for rule in rules:
            for action, made in rule.outcomes(subject):
                self._engine.act(rule, action, made)
