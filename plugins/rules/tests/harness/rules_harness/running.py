"""Runs rules over messages, without a broker."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from kinmqtt_rules.checking import check
from kinmqtt_rules.compiling import CompiledRule, compile_rule
from kinmqtt_rules.fields import Subject
from kinmqtt_spi.memory.plugin import BareContext
from kinmqtt_spi.values import Address, Client, Message, MessageId, Publisher

NOW: Final = 1_700_000_000.25
CLIENT: Final = Client("c1", "ada", Address("10.0.0.7", 4711), attributes={"site": "north"})


def message_of(payload: Any = None, topic: str = "t/1", qos: int = 1) -> Message:
    """Return a message of client c1, its payload in JSON unless it is bytes."""
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return Message(topic, data, qos, publisher=Publisher("c1", "ada"), id=MessageId(1, 2), received_at=NOW - 0.5)


def context() -> BareContext:
    """Return a context with client c1."""
    made = BareContext("rules")
    made.clients["c1"] = CLIENT
    return made


def compiled(sql: str) -> CompiledRule:
    """Return a compiled rule."""
    return compile_rule(check(sql))


def subject_of(message: Message) -> Subject:
    """Return what rules see of a message."""
    return Subject("message.publish", message, lambda: NOW, context())


def rows_of(sql: str, payload: Any = None, *, topic: str = "t/1") -> Sequence[Any] | None:
    """Return what a rule makes of a message."""
    return compiled(sql).run(subject_of(message_of(payload, topic)))


def value_and_mistypes(expression: str, payload: Any = None) -> tuple[Any, int]:
    """Return the value of an expression, and how many arguments had a wrong type."""
    rule = compiled(f'SELECT {expression} AS value FROM "t/#"')
    rows = rule.run(subject_of(message_of(payload)))
    assert rows is not None
    return rows[0]["value"], rule.tally.mistyped


def value_of(expression: str, payload: Any = None) -> Any:
    """Return the value of an expression about a message."""
    return value_and_mistypes(expression, payload)[0]
