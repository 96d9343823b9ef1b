"""Runs rules: over the messages that pass, and over events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from kinmqtt_rules.actions import Action, act, action_of
from kinmqtt_rules.checking import CheckedRule, check
from kinmqtt_rules.compiling import compile_rule
from kinmqtt_rules.fields import Subject
from kinmqtt_rules.json_values import value_of
from kinmqtt_rules.settings import RuleSettings
from kinmqtt_spi.pace import Pace, and_others
from kinmqtt_spi.services.plugin import Context
from kinmqtt_spi.services.tap import MAX_MADE, MAX_NESTED, PayloadTest, TapHandler
from kinmqtt_spi.values import Message

LOGGED_AGAIN_AFTER_S: Final = 60.0
"""The shortest time between two lines about one rule's failures."""

MAX_MADE_BYTES: Final = 16 << 20
"""The payloads of messages that rules make of one: once they have so many bytes, it makes no more."""

MESSAGE_EVENT: Final = "message.publish"


class LoopError(Exception):
    """Rules have made too many messages of one, or too large ones."""


class RunningRule:
    """One rule with its counters."""

    def __init__(self, name: str, settings: RuleSettings, context: Context) -> None:
        """Raises ``ValueError`` for SQL with mistakes."""
        self.name = name
        self.checked: CheckedRule = check(settings.sql)
        compiled = compile_rule(self.checked, name)
        self._run = compiled.run
        self._wants = compiled.wants
        self._tally = compiled.tally
        self.actions = tuple(action_of(each, self.checked) for each in settings.actions)
        self._log = context.log
        self._pace = Pace(context.clock, LOGGED_AGAIN_AFTER_S)
        labels = {"rule": name}
        metrics = context.metrics
        self._matched = metrics.counter("rules.matched", "messages", labels)
        self._passed = metrics.counter("rules.passed", "messages", labels)
        self._failed = metrics.counter("rules.failed", "messages", labels)
        self._mistyped = metrics.counter("rules.mistyped", "values", labels)
        self.loops = metrics.counter("rules.loops", "messages", labels)

    def test(self, engine: Engine) -> PayloadTest | None:
        """Return what looks at payloads before the rule sees messages; ``None`` if it can tell nothing from them.

        A message that it leaves out counts as in :meth:`rows`. Most get no further, so it is one function.
        """
        wants, tally, matched, mistyped = self._wants, self._tally, self._matched, self._mistyped
        if wants is None:
            return None

        def test(payload: bytes) -> bool:
            if engine.is_muted:
                return False
            if payload is not engine.payload:
                engine.document = value_of(payload)
                engine.payload = payload
            try:
                wanted: bool = wants(engine.document)
            except Exception:
                wanted = True  # rows() will fail, too, and counts that.
            if wanted:
                tally.mistyped = 0
                engine.has_looked = True
                return True
            matched.value += 1
            if tally.mistyped:
                mistyped.value += tally.mistyped
                tally.mistyped = 0
            return False

        return test

    def rows(self, subject: Subject) -> Sequence[Any] | None:
        """Return the rows of a subject; a failure is counted, and never raised."""
        self._matched.value += 1
        tally = self._tally
        try:
            rows = self._run(subject)
        except Exception as error:
            self.failed(error)
            rows = None
        if tally.mistyped:
            self._mistyped.value += tally.mistyped
            tally.mistyped = 0
        return rows

    def outcomes(self, subject: Subject) -> Iterator[tuple[Action, Message]]:
        """Return what is to be done about a subject; failures are counted, and never raised."""
        rows = self.rows(subject)
        return iter(()) if not rows else self.made_of(rows, subject)

    def made_of(self, rows: Sequence[Any], subject: Subject) -> Iterator[tuple[Action, Message]]:
        """Return what is to be done about rows."""
        self._passed.value += 1
        for row in rows:
            for action in self.actions:
                try:
                    message = action.message(row, subject)
                except Exception as error:
                    self.failed(error)
                else:
                    yield action, message

    def failed(self, error: Exception) -> None:
        """Count a failure, and log it at most once a minute. The values of the message are not shown."""
        self._failed.value += 1
        more = self._pace.due()
        if more is not None:
            self._log.warn(
                "rule {rule} failed: {error}{more}",
                rule=self.name,
                error=f"{type(error).__name__}: {error}",
                more=and_others(more),
            )


class Engine:
    """Applies rules to messages. The payload of a message is decoded once for all of them."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._clock = context.clock
        self._message: Message | None = None
        self._subject: Any = None
        self.payload: bytes | None = None
        self.document: Any = None
        """The value of that payload, for all rules that look at it first; ``None`` if it is no JSON."""
        self.has_looked = False
        """Whether a rule has just looked at the payload of the message that it sees next."""
        self._depth = 0
        """How many calls of taps are under way: a rule may publish what another one sees."""
        self._made = 0
        """How many messages rules have made because of the outermost one."""
        self._made_bytes = 0
        """Their payloads."""
        self.is_muted = False
        """Whether what is published now fires no rules."""

    def handler(self, rule: RunningRule) -> TapHandler:
        """Return what applies a rule to the messages that pass."""
        rows_of = rule.rows

        def see(message: Message) -> None:
            if self.is_muted:
                return
            if message is not self._message:
                self._message = message
                self._subject = Subject(MESSAGE_EVENT, message, self._clock.now, self._context)
            subject = self._subject
            if self.has_looked:
                self.has_looked = False
                subject.take_document(self.document)
            rows = rows_of(subject)
            if rows:
                self._act_on(rule, rows, subject)

        return see

    def _act_on(self, rule: RunningRule, rows: Sequence[Any], subject: Subject) -> None:
        if not self._depth:
            self._made = self._made_bytes = 0
        self._depth += 1
        try:
            for action, made in rule.made_of(rows, subject):
                if not self.act(rule, action, made):
                    break  # It takes time to make what would be dropped.
        finally:
            self._depth -= 1

    def act(self, rule: RunningRule, action: Action, message: Message) -> bool:
        """Carry out an action; a failure is counted. Return whether another one makes sense."""
        if not self._depth:
            self._made = self._made_bytes = 0
        self._made += 1
        if self._made > MAX_MADE:
            rule.loops.value += 1
            rule.failed(LoopError(f"rules have made {MAX_MADE} messages of one"))
            return False
        if self._made_bytes >= MAX_MADE_BYTES:
            rule.loops.value += 1
            rule.failed(LoopError(f"rules have made payloads of {MAX_MADE_BYTES} bytes of one message"))
            return False
        self._made_bytes += len(message.payload)
        if action.sink is None and self._depth > MAX_NESTED:
            rule.loops.value += 1  # the broker drops it, and says so
        before = self.is_muted
        self.is_muted = before or action.direct
        try:
            act(self._context, action, message)
        except Exception as error:
            rule.failed(error)
        finally:
            self.is_muted = before
        return True
