"""All rules of a broker: compiled, opened, replaced at a reload, and closed."""

from __future__ import annotations

from collections.abc import Sequence

from kinmqtt_rules.fields import EVENTS
from kinmqtt_rules.happenings import GROUP, NOTICES, EventRules, NoticeRules
from kinmqtt_rules.running import Engine, RunningRule
from kinmqtt_rules.settings import RulesSettings
from kinmqtt_spi.services.event import Consumer, Start
from kinmqtt_spi.services.plugin import Context
from kinmqtt_spi.services.tap import Tap


class Rulebook:
    """The rules of the settings."""

    def __init__(self, context: Context, settings: RulesSettings) -> None:
        """Raises ``ValueError`` for SQL with mistakes; nothing is opened yet."""
        self._context = context
        self._engine = Engine(context)
        self._events = EventRules(context, self._engine)
        self.notices = NoticeRules(context, self._engine)
        self._rules = self._compiled(settings)
        self._taps: list[Tap] = []
        self._consumer: Consumer | None = None
        self._is_open = False
        topics = {topic for rule in self._rules for topic in rule.checked.events}
        self.unused_hooks = tuple(hook for topic, hook in NOTICES.items() if topic not in topics)
        """The hooks that no rule needs."""

    def _compiled(self, settings: RulesSettings) -> list[RunningRule]:
        return [RunningRule(name, rule, self._context) for name, rule in settings.rules.items()]

    def open(self) -> None:
        """Open the taps, and consume events."""
        self._is_open = True
        for rule in self._rules:
            if rule.checked.filters:
                engine = self._engine
                self._taps.append(
                    self._context.tap(rule.checked.filters, engine.handler(rule), wants=rule.test(engine))
                )
            if not all(EVENTS[topic].is_durable for topic in rule.checked.events):
                self._context.log.info(
                    "rule {rule} is about events of messages, of which some may be lost", rule=rule.name
                )
        self.notices.replace(self._rules)
        self._events.rules = self._rules
        has_durable = any(EVENTS[topic].is_durable for rule in self._rules for topic in rule.checked.events)
        if has_durable and self._consumer is None:
            self._consumer = self._context.events.consume(GROUP, self._events.handle, Start.NEWEST)

    def replace(self, settings: RulesSettings) -> Sequence[str]:
        """Replace the rules; return a sentence for each change that needs a restart.

        Raises ``ValueError`` for SQL with mistakes: then the old rules go on.
        """
        rules = self._compiled(settings)
        for tap in self._taps:
            tap.close()
        self._taps = []
        self._rules = rules
        if self._is_open:
            self.open()
        return [
            f"rule {rule.name}: the first rule about {topic} needs a restart"
            for rule in rules
            for topic in rule.checked.events
            if NOTICES.get(topic) in self.unused_hooks
        ]

    async def stop_events(self) -> None:
        """Take no more events; completes when those under way are handled."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            stopped = consumer.stop()
            if stopped is not None:
                await stopped

    def close(self) -> None:
        """Close the taps."""
        for tap in self._taps:
            tap.close()
        self._taps = []
        self._is_open = False
