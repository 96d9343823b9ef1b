"""``kinmqtt rules check|show|test|spark``: reads rules without a broker."""

from __future__ import annotations

import json
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from attrs import frozen

from kinmqtt_rules.actions import action_of
from kinmqtt_rules.checking import check
from kinmqtt_rules.compiling import compile_rule
from kinmqtt_rules.errors import RuleError
from kinmqtt_rules.fields import EventTopic, Subject, event_topic
from kinmqtt_rules.json_values import decoded, encoded
from kinmqtt_rules.settings import ActionSettings, RulesSettings
from kinmqtt_rules.trying import event_subject, message_subject
from kinmqtt_spi.errors import SpiError
from kinmqtt_spi.settings import Document, did_you_mean, parse
from kinmqtt_spi.topics import matches
from kinmqtt_spi.values import Message, Publisher

TYPED: Final = "sql"
"""The name of a rule that was typed with ``--sql``."""


class RulesCommandError(SpiError):
    """The command failed; the text says why."""


@frozen(slots=True)
class _Rule:
    sql: str
    actions: Sequence[ActionSettings] = ()


class RulesCommand:
    """The command ``kinmqtt rules``."""

    summary = "check rules, show what they are compiled to, try them, or write them for Spark"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the arguments."""
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        check = actions.add_parser("check", help="find mistakes in all rules")
        show = actions.add_parser("show", help="print the Python that a rule is compiled to")
        test = actions.add_parser("test", help="print what a rule makes of a message or an event")
        spark = actions.add_parser("spark", help="print a rule as Spark SQL")
        check.add_argument("-c", "--config", type=Path, required=True, help="the broker's settings")
        for each in (show, test, spark):
            each.add_argument("name", nargs="?", metavar="NAME", help="the rule's name in the settings")
            each.add_argument("-c", "--config", type=Path, help="the broker's settings")
            each.add_argument("--sql", help="a rule, in place of one of the settings")
        test.add_argument("--topic", required=True, help="the message's topic, or that of an event")
        test.add_argument("--payload", help="its payload; without it standard input is read")
        test.add_argument("--qos", type=int, choices=(0, 1, 2), default=0, help="its QoS (default: 0)")
        test.add_argument("--retain", action="store_true", help="it is to be retained")
        test.add_argument("--client", default="tester", metavar="ID", help="its publisher (default: %(default)s)")
        test.add_argument("--user", metavar="NAME", help="its publisher's user name")
        test.add_argument("--fields", metavar="JSON", help="an event's fields, as an object; others are NULL")
        spark.add_argument("--view", default="messages", help="the table with the messages (default: %(default)s)")

    def run(self, parsed: Namespace) -> int:
        """Run it."""
        rules = _rules(parsed)
        try:
            if parsed.action == "check":
                for name, rule in rules.items():
                    print(f"{name}: {_sources(rule.sql)}")
                print("the rules are valid")
                return 0
            name, rule = _chosen(rules, parsed.name)
            if parsed.action == "show":
                print(compile_rule(check(rule.sql), name).source, end="")
                return 0
            if parsed.action == "spark":
                from kinmqtt_rules.spark import spark_sql

                print(spark_sql(check(rule.sql), parsed.view))
                return 0
            return _test(name, rule, parsed)
        except RuleError as error:
            raise RulesCommandError(f"{parsed.name or TYPED}: {error}") from None


def _rules(parsed: Namespace) -> Mapping[str, _Rule]:
    if getattr(parsed, "sql", None) is not None:
        return {TYPED: _Rule(parsed.sql)}
    if parsed.config is None:
        raise RulesCommandError("name the settings with -c FILE, or write a rule with --sql")
    settings = parse(RulesSettings, Document.read(parsed.config), ("plugins", "rules"))
    if not settings.rules:
        raise RulesCommandError(f"{parsed.config} has no rules: [plugins.rules.NAME]")
    return {name: _Rule(rule.sql, rule.actions) for name, rule in settings.rules.items()}


def _chosen(rules: Mapping[str, _Rule], name: str | None) -> tuple[str, _Rule]:
    if name is None and len(rules) == 1:
        [(name, rule)] = rules.items()
        return name, rule
    there = f"there are: {', '.join(rules)}"
    if name is None:
        raise RulesCommandError(f"name a rule; {there}")
    if name not in rules:
        raise RulesCommandError(f"no rule {name!r}{did_you_mean(name, rules)}; {there}")
    return name, rules[name]


def _sources(sql: str) -> str:
    rule = check(sql)
    return ", ".join((*rule.filters, *rule.events))


def _test(name: str, rule: _Rule, parsed: Namespace) -> int:
    checked = check(rule.sql)
    compiled = compile_rule(checked, name)
    events = event_topic(parsed.topic)
    if events is None:
        is_about = any(matches(filter, parsed.topic) for filter in checked.filters)
    else:
        is_about = events.name in checked.events
    if not is_about:
        print(f"{name} is not about {parsed.topic!r}: it selects from {_sources(rule.sql)}")
        return 1
    subject = _message(parsed) if events is None else _event(events, parsed)
    rows = compiled.run(subject)
    if compiled.tally.mistyped:
        print(f"{compiled.tally.mistyped} arguments had a wrong type, and made NULL", file=sys.stderr)
    if rows is None:
        print("no row: WHERE is not true")
        return 1
    for row in rows:
        print(encoded(row))
        for action in (action_of(settings, checked) for settings in rule.actions):
            try:
                made = action.message(row, subject)
            except ValueError as error:
                print(f"  fails: {error}")
            else:
                print(f"  {_told(action.sink, made)}")
    return 0


def _message(parsed: Namespace) -> Subject:
    if parsed.fields is not None:
        raise RulesCommandError(f"--fields is for events, and {parsed.topic!r} is a topic of messages")
    return message_subject(_typed(parsed, parsed.topic, parsed.qos))


def _event(topic: EventTopic, parsed: Namespace) -> Subject:
    fields = decoded((parsed.fields or "{}").encode())
    if type(fields) is not dict:
        raise RulesCommandError("--fields is no JSON object, as in --fields '{\"reason\": 0}'")
    if topic.is_durable:
        if parsed.payload is not None:
            raise RulesCommandError(f"{topic.name} has no payload: type its fields with --fields")
        message = _typed(parsed, topic.name, 1, b"")
    else:
        message = _typed(parsed, str(fields.get("topic", topic.name)), parsed.qos)
    try:
        return event_subject(topic, message, fields)
    except ValueError as error:
        raise RulesCommandError(f"--fields: {error}") from None


def _typed(parsed: Namespace, topic: str, qos: int, payload: bytes | None = None) -> Message:
    if payload is None:
        payload = sys.stdin.buffer.read() if parsed.payload is None else parsed.payload.encode()
    publisher = Publisher(parsed.client, parsed.user)
    return Message(topic, payload, qos, parsed.retain, publisher=publisher, received_at=time.time())


def _told(sink: str | None, message: Message) -> str:
    shown = json.dumps(message.payload.decode("utf-8", "backslashreplace"), ensure_ascii=False)
    to = f"to {sink}" if sink is not None else f"publishes with QoS {message.qos}{', retained' * message.retain}"
    return f"{to}: {message.topic} {shown}"


command = RulesCommand()
