"""The settings ``[plugins.rules.NAME]``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
from attrs import frozen

from kinmqtt_rules.templates import Template, TopicTemplate
from kinmqtt_spi.settings import setting

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SINK: Final = re.compile(r"[a-z0-9_]+:[a-z0-9_-]{1,64}")

MAX_RULES: Final = 1000
"""The most rules of a broker."""


def _check_sql(instance: object, attribute: object, sql: str) -> None:
    from kinmqtt_rules.checking import check  # sqlglot is imported only where there are rules

    check(sql)


def _check_topic(instance: object, attribute: object, text: str | None) -> None:
    if text is not None:
        TopicTemplate(text)


def _check_template(instance: object, attribute: object, text: str) -> None:
    Template(text)


def _check_qos(instance: object, attribute: object, qos: int | str) -> None:
    if isinstance(qos, str) and Template(qos).whole is None:
        raise ValueError(f'{qos!r} is no QoS: write 0, 1, 2 or one placeholder such as "${{qos}}"')


def _check_retain(instance: object, attribute: object, retain: bool | str) -> None:
    if isinstance(retain, str) and Template(retain).whole is None:
        raise ValueError(
            f'{retain!r} is neither true nor false: write one of them, or one placeholder such as "${{retain}}"'
        )


def _check_sink(instance: object, attribute: object, sink: str | None) -> None:
    if sink is not None and _SINK.fullmatch(sink) is None:
        raise ValueError(f"{sink!r} names no sink: write plugin:sink, as bridge_kafka:readings")


@frozen(slots=True)
class RepublishSettings:
    """A message that is published for each row."""

    topic: str = setting(help="the topic, a template", validator=_check_topic)
    payload: str = setting("${row}", help="the payload, a template", validator=_check_template)
    qos: int | str = setting(0, help="the QoS, or one placeholder", minimum=0, maximum=2, validator=_check_qos)
    retain: bool | str = setting(
        False, help="whether the message is retained, or one placeholder", validator=_check_retain
    )
    direct: bool = setting(False, help="fire no rules with it")


@frozen(slots=True)
class ActionSettings:
    """What is done with each row: `republish` or `sink`."""

    republish: RepublishSettings | None = setting(None, help="publish a message")
    sink: str | None = setting(None, help="put a message into a sink, named `plugin:sink`", validator=_check_sink)
    topic: str | None = setting(
        None,
        help="for a sink: the message's topic, a template; without it that of the message",
        validator=_check_topic,
    )
    payload: str = setting("${row}", help="for a sink: the payload, a template", validator=_check_template)

    def __attrs_post_init__(self) -> None:
        if (self.republish is None) == (self.sink is None):
            raise ValueError("an action has either republish or sink")

    def templates(self) -> Iterator[tuple[str, Template]]:
        """Return each template with the name of its key."""
        if self.republish is not None:
            yield "republish.topic", Template(self.republish.topic)
            yield "republish.payload", Template(self.republish.payload)
            for name in ("qos", "retain"):
                value = getattr(self.republish, name)
                if isinstance(value, str):
                    yield f"republish.{name}", Template(value)
        else:
            yield "payload", Template(self.payload)
            if self.topic is not None:
                yield "topic", Template(self.topic)


def _check_actions(instance: Any, attribute: attrs.Attribute[Any], actions: Sequence[ActionSettings]) -> None:
    from kinmqtt_rules.checking import check

    if not actions:
        raise ValueError("name at least one action: republish or sink")
    try:
        names = check(instance.sql).names
    except ValueError:
        return  # the SQL has its own problem
    for place, action in enumerate(actions):
        for key, template in action.templates():
            if names is not None:
                try:
                    template.check_names(names)
                except ValueError as error:
                    raise ValueError(f"[{place}].{key}: {error}") from None


@frozen(slots=True)
class RuleSettings:
    """A rule."""

    sql: str = setting(help="what is selected from which messages or events", validator=_check_sql)
    actions: tuple[ActionSettings, ...] = setting(help="what is done with each row", validator=_check_actions)


def _check_names(instance: object, attribute: object, rules: Mapping[str, RuleSettings]) -> None:
    if len(rules) > MAX_RULES:
        raise ValueError(f"there are {len(rules)} rules; {MAX_RULES} are the most")
    for name in rules:
        if _NAME.fullmatch(name) is None:
            raise ValueError(f"{name!r} is no name: use up to 64 letters, digits, underscores and hyphens")


@frozen(slots=True)
class RulesSettings:
    """Rules by name."""

    rules: dict[str, RuleSettings] = setting(factory=dict, help="rules, by name", others=True, validator=_check_names)
