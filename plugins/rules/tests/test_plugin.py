"""The plugin keeps the contract of plugins; rules are applied to messages and events."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from kinmqtt_rules import Rules, RulesSettings
from kinmqtt_rules.running import MAX_MADE_BYTES
from kinmqtt_spi.errors import NotCommitted, NotConfigured, SettingsError
from kinmqtt_spi.memory.outbox import MemoryOutbox
from kinmqtt_spi.memory.plugin import BareContext
from kinmqtt_spi.services.event import Event, EventKind, EventVersion, Recorded
from kinmqtt_spi.services.outbox import OutboxSettings
from kinmqtt_spi.services.tap import MAX_MADE, MAX_NESTED
from kinmqtt_spi.settings import Document, parse
from kinmqtt_spi.testing.plugin import PluginCase, PluginContract
from kinmqtt_spi.values import Client, Message
from rules_harness.running import CLIENT, message_of

HOT = """
[plugins.rules.hot]
sql = '''SELECT payload.temp AS t, clientid, topic FROM "sensors/+/temp" WHERE payload.temp > 30'''
actions = [
  { republish = { topic = "alarms/${clientid}", payload = "${row}", qos = 1 } },
  { sink = "kafka:readings" },
]
"""


def rule(sql: str, *actions: str, name: str = "r") -> str:
    """The settings of a rule."""
    return f"[plugins.rules.{name}]\nsql = '''{sql}'''\nactions = [{', '.join(actions)}]\n"


def republish(topic: str, **more: object) -> str:
    """An action."""
    others = "".join(f", {key} = {json.dumps(value)}" for key, value in more.items())
    return f'{{ republish = {{ topic = "{topic}"{others} }} }}'


def parsed(text: str) -> RulesSettings:
    """The settings of a file."""
    return parse(RulesSettings, Document.parse(text, "kinmqtt.toml"), ("plugins", "rules"))


def started(*texts: str, sinks: Sequence[str] = ()) -> tuple[Rules, BareContext]:
    """A plugin with these rules."""
    context = BareContext("rules", parsed("\n".join(texts)))
    context.clients["c1"] = CLIENT
    for sink in sinks:
        context.sinks[sink] = MemoryOutbox(sink, OutboxSettings(), context.clock)
    plugin = Rules()
    plugin.configure(context)
    plugin.start(context)
    return plugin, context


def shown(context: BareContext) -> list[tuple[str, Any]]:
    """What was published: topics, and payloads in JSON."""
    return [(message.topic, json.loads(message.payload)) for message in context.published]


def counted(context: BareContext, name: str, rule: str = "r") -> int:
    """The value of a counter."""
    return context.metrics.counter(name, "values" if name.endswith("mistyped") else "messages", {"rule": rule}).value


class TestPlugin(PluginContract):
    """The plugin as any other."""

    reloads = True

    @pytest.fixture
    def plugin(self) -> PluginCase:
        section = rule('SELECT topic FROM "t/#"', republish("x")).replace("plugins.rules.", "")
        return PluginCase(Rules, section, changed=section.replace("t/#", "u/#"), name="rules")

    def probe(self, plugin: Any) -> object:
        return [each.checked.filters for each in plugin._book._rules]


def test_a_row_is_published_and_put_into_a_sink() -> None:
    """The sink gets the message with the row as its payload, and with its publisher and topic."""
    _, context = started(HOT, sinks=["kafka:readings"])

    context.route(message_of({"temp": 31}, "sensors/a/temp"))

    row = {"t": 31, "clientid": "c1", "topic": "sensors/a/temp"}
    assert shown(context) == [("alarms/c1", row)]
    assert context.published[0].qos == 1
    assert context.sinks["kafka:readings"].figures().queued == 1


def test_what_does_not_match_is_only_counted() -> None:
    """By topic nothing at all happens, by WHERE it counts as matched."""
    _, context = started(HOT, sinks=["kafka:readings"])

    context.route(message_of({"temp": 30}, "sensors/a/temp"))
    context.route(message_of({"temp": "31"}, "sensors/a/temp"))
    context.route(message_of({"temp": 31}, "sensors/a/b/temp"))

    assert context.published == []
    figures = {name: counted(context, f"rules.{name}", "hot") for name in ("matched", "passed", "failed", "mistyped")}
    assert figures == {"matched": 2, "passed": 0, "failed": 0, "mistyped": 1}


def test_foreach_publishes_a_message_for_each_row() -> None:
    """In the order of the array."""
    sql = 'FOREACH payload.l AS e DO e.n AS n, e.v AS v INCASE e.v > 0 FROM "t/#"'
    _, context = started(rule(sql, republish("out/${n}", payload="${v}")))

    context.route(message_of({"l": [{"n": "a", "v": 1}, {"n": "b", "v": 0}, {"n": "c", "v": 2}]}))

    assert shown(context) == [("out/a", 1), ("out/c", 2)]


def test_qos_and_retain_may_come_from_the_row() -> None:
    """A row without them fails."""
    sql = 'SELECT qos, payload.keep AS keep FROM "t/#"'
    _, context = started(rule(sql, republish("out", qos="${qos}", retain="${keep}")))

    context.route(message_of({"keep": True}, qos=2))
    context.route(message_of({"keep": "yes"}))

    assert [(message.qos, message.retain) for message in context.published] == [(2, True)]
    assert counted(context, "rules.failed") == 1


@pytest.mark.parametrize(
    ("topic", "value"),
    [
        ("out/${x}", None),
        ("out/${x}", ""),
        ("out/${x}", "a/b"),
        ("out/${x}", "+"),
        ("out/${x}", "a#"),
        ("out/${x}", "\0"),
        ("${x}", "$SYS/broker"),
        ("${x}", "$share/a/b"),
        ("$${x}/a", "SYS"),
        ("$SY${x}", "S"),
        ("out/${x}", [1]),
        ("out/${x}", "a" * 70_000),
    ],
)
def test_a_value_can_not_make_any_topic(topic: str, value: object) -> None:
    """Clients choose values: they do not leave the topics of the template. The failure is counted and logged."""
    _, context = started(rule('SELECT payload.x AS x FROM "t/#"', republish(topic)))

    context.route(message_of({"x": value}))

    assert context.published == []
    assert counted(context, "rules.failed") == 1
    assert "rule r failed: ValueError: " in context.log.texts("warn")[0]


def test_a_value_with_levels_may_be_a_whole_topic() -> None:
    """And so may the message's own topic, anywhere."""
    _, context = started(
        rule('SELECT payload.x AS x, topic AS t FROM "t/#"', republish("${x}"), republish("copy/${t}"))
    )

    context.route(message_of({"x": "a/b"}))

    assert [message.topic for message in context.published] == ["a/b", "copy/t/1"]


@pytest.mark.parametrize("selected", ["*, payload.x AS topic", "topic, payload.x AS topic"])
def test_a_value_named_topic_has_no_levels_of_its_own(selected: str) -> None:
    """Only the message's own topic may have some within a template."""
    _, context = started(rule(f'SELECT {selected} FROM "t/#"', republish("copy/${topic}")))

    context.route(message_of({"x": "a/b"}))

    assert context.published == []
    assert counted(context, "rules.failed") == 1


def test_a_rule_that_raises_is_counted_and_the_message_goes_on() -> None:
    """B14: logged once a minute; other rules and actions still run."""
    loud = rule('FOREACH payload.l FROM "t/#"', republish("x"), name="loud")
    quiet = rule('SELECT 1 AS n FROM "t/#"', republish("ok"), name="quiet")
    _, context = started(loud, quiet)

    for _ in range(3):
        context.route(message_of({"l": [0] * 1001}))

    assert shown(context) == [("ok", {"n": 1})] * 3
    assert counted(context, "rules.failed", "loud") == 3
    assert [line[:31] for line in context.log.texts("warn")] == ["rule loud failed: TooManyRows: "]


def test_a_sink_that_is_gone_is_a_failure() -> None:
    """B14: after a reload without it."""
    _, context = started(rule('SELECT 1 AS n FROM "t/#"', '{ sink = "kafka:x" }', republish("ok")), sinks=["kafka:x"])
    context.sinks.clear()

    context.route(message_of())

    assert shown(context) == [("ok", {"n": 1})]
    assert counted(context, "rules.failed") == 1


def test_rules_see_what_rules_publish_up_to_a_depth() -> None:
    """A loop ends, and is counted."""
    _, context = started(rule('SELECT 1 AS n FROM "t/#"', republish("t/1")))

    context.route(message_of())

    assert len(context.published) == MAX_NESTED
    assert len(context.too_deep) == 1
    assert counted(context, "rules.loops") == 1


def test_rules_make_a_bounded_number_of_messages_of_one() -> None:
    """However many rows each message of a loop makes."""
    sql = "FOREACH split('a,b,c,d', ',') DO item AS n FROM \"t/#\""
    _, context = started(rule(sql, republish("t/1")))

    context.route(message_of())

    assert len(context.published) + len(context.too_deep) == MAX_MADE
    assert "LoopError" in context.log.texts("warn")[0]


def test_rules_make_a_bounded_size_of_messages_of_one() -> None:
    """Or one message with a thousand rows would hold the event loop for seconds, and take a gigabyte."""
    sql = 'FOREACH payload.a DO payload AS p FROM "t/#"'
    _, context = started(rule(sql, republish("x", payload="${p}")))
    payload = json.dumps({"a": [1] * 1000, "b": "b" * (1 << 20)}).encode()

    context.route(message_of(payload=payload))

    made = [len(message.payload) for message in context.published]
    assert sum(made) - made[-1] < MAX_MADE_BYTES <= sum(made)
    assert counted(context, "rules.loops") == 1
    assert "LoopError" in context.log.texts("warn")[0]


def test_a_direct_message_fires_no_rules() -> None:
    """It is published all the same."""
    _, context = started(rule('SELECT 1 AS n FROM "t/#"', republish("t/1", direct=True)))

    context.route(message_of())

    assert len(context.published) == 1
    assert counted(context, "rules.loops") == 0


def test_a_reload_replaces_the_rules() -> None:
    """At once; one with a mistake leaves the old ones."""
    plugin, context = started(rule('SELECT 1 AS n FROM "a"', republish("x")))

    assert plugin.reload(parsed(rule('SELECT 2 AS n FROM "b"', republish("x")))) == []
    context.route(message_of(topic="a"))
    context.route(message_of(topic="b"))

    assert shown(context) == [("x", {"n": 2})]
    assert (
        "needs a restart"
        in plugin.reload(parsed(rule('SELECT 1 AS n FROM "$events/message/acked"', republish("x"))))[0]
    )


@pytest.mark.parametrize("where", ["", " WHERE payload.x = 1", " WHERE payload.x = 1 AND qos = 1"])
def test_the_payload_is_decoded_once_for_all_rules(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are, and whether they look at it before they see the message or not."""
    calls: list[bytes] = []

    def value_of(data: bytes) -> object:
        calls.append(data)
        return {"x": 1}

    for module in ("fields", "running"):
        monkeypatch.setattr(f"kinmqtt_rules.{module}.value_of", value_of)
    sql = f'SELECT payload.x AS x FROM "t/#"{where}'
    _, context = started(*(rule(sql, republish("x"), name=f"r{n}") for n in range(5)))

    context.route(message_of({"x": 1}))

    assert len(context.published) == 5
    assert len(calls) == 1


# Events


def event(kind: EventKind, counter: int = 1, **data: object) -> Recorded:
    """An event of client c1."""
    return Recorded(counter, Event(kind, "c1", EventVersion(1, counter), 1_700_000_000.5, data))


def handle(plugin: Rules, *batch: Recorded) -> None:
    """Let the rules handle a batch."""
    assert plugin._book is not None
    answer: Any = plugin._book._events.handle(batch)
    if answer is not None:
        with pytest.raises(StopIteration):
            answer.send(None)


CONNECTED = event(EventKind.CONNECT, address="10.0.0.7:4711", username="ada", clean_start=True, version=5)
EVENT_ROWS = [
    (
        "$events/client/connected",
        CONNECTED,
        "event, clientid, username, peerhost, peername, clean_start, proto_ver, connected_at, timestamp",
        {
            "event": "client.connected",
            "clientid": "c1",
            "username": "ada",
            "peerhost": "10.0.0.7",
            "peername": "10.0.0.7:4711",
            "clean_start": True,
            "proto_ver": 5,
            "connected_at": 1_700_000_000_500,
            "timestamp": 1_700_000_000_500,
        },
    ),
    (
        "$events/client_disconnected",
        event(EventKind.DISCONNECT, by="client", reason=0),
        'reason, "by"',
        {"reason": 0, "by": "client"},
    ),
    (
        "$events/client/disconnected",
        event(EventKind.CONNECTION_LOST),
        "reason, by",
        {"reason": None, "by": "network"},
    ),
    (
        "$events/session/subscribed",
        event(EventKind.SUBSCRIBE, filter="a/#", qos=1, no_local=True),
        "topic, qos, sub_opts.nl AS nl",
        {"topic": "a/#", "qos": 1, "nl": True},
    ),
    ("$events/session_unsubscribed", event(EventKind.UNSUBSCRIBE, filter="a/#"), "topic", {"topic": "a/#"}),
]


@pytest.mark.parametrize(("topic", "recorded", "fields", "expected"), EVENT_ROWS, ids=[row[0] for row in EVENT_ROWS])
def test_events_have_their_fields(topic: str, recorded: Recorded, fields: str, expected: dict[str, object]) -> None:
    """As the documentation lists them."""
    plugin, context = started(rule(f'SELECT {fields} FROM "{topic}"', republish("out")))

    handle(plugin, event(EventKind.ADD_RETAIN, topic="x"), recorded)

    assert shown(context) == [("out", expected)]


def test_events_come_from_the_feed() -> None:
    """Those that happen from the start on."""
    sql = 'SELECT clientid FROM "$events/client/connected"'
    _, context = started(rule(sql, '{ sink = "kafka:seen" }'), sinks=["kafka:seen"])

    context.event_log.append([event(EventKind.CONNECT).event])
    context.clock.advance(1)

    assert context.sinks["kafka:seen"].figures().queued == 1


def test_a_batch_that_was_not_committed_comes_again() -> None:
    """E1: the handler raises, so the feed does not go on."""
    plugin, context = started(rule('SELECT clientid FROM "$events/client/connected"', republish("out")))
    context.refuses_messages = NotCommitted("no")

    with pytest.raises(NotCommitted):
        handle(plugin, event(EventKind.CONNECT))


def test_an_invalid_message_does_not_stop_the_events() -> None:
    """It is counted, and the others are published."""
    plugin, context = started(rule('SELECT clientid FROM "$events/client/connected"', republish("out")))
    context.refuses_messages = ValueError("no")

    handle(plugin, event(EventKind.CONNECT), event(EventKind.CONNECT, 2))

    assert counted(context, "rules.failed") == 2


def test_events_of_messages_have_both_clients() -> None:
    """Their hooks are used only where a rule needs them."""
    sql = 'SELECT event, clientid, from_clientid, topic, payload.x AS x, reason FROM "$events/message/{}"'
    plugin, context = started(
        *(rule(sql.format(name), republish("out"), name=name) for name in ("delivered", "acked", "dropped"))
    )
    other = Client("c2", "bob")

    plugin.delivered(other, message_of({"x": 1}))
    plugin.acknowledged(other, message_of({"x": 1}), 0)  # type: ignore[arg-type]
    plugin.dropped("c2", message_of({"x": 1}), "queue_full")
    plugin.delivered(other, Message("t/1"))

    row = {"clientid": "c2", "from_clientid": "c1", "topic": "t/1", "x": 1}
    assert shown(context) == [
        ("out", {"event": "message.delivered", **row, "reason": None}),
        ("out", {"event": "message.acked", **row, "reason": 0}),
        ("out", {"event": "message.dropped", **row, "reason": "queue_full"}),
    ]
    assert context.left_out == set()
    assert started(HOT, sinks=["kafka:readings"])[1].left_out == {"delivered", "acknowledged", "dropped"}


# Settings


def test_without_rules_the_plugin_is_not_active() -> None:
    """And sqlglot is not needed."""
    with pytest.raises(NotConfigured):
        Rules().configure(BareContext("rules", parsed("")))


MISTAKES = [
    (rule('SELECT payload.list[0] AS x FROM "t"', republish("x")),
     "kinmqtt.toml:2:7: plugins.rules.r.sql: 1:21: indexes count from 1, or from -1 at the end"),
    (rule('SELECT uppr(topic) AS x FROM "t"', republish("x")), "unknown function 'uppr'; did you mean 'upper'?"),
    (rule('SELECT 1 AS n FROM "t"'), "name at least one action"),
    (rule('SELECT 1 AS n FROM "t"', "{ sink = 'k:x', republish = { topic = 'x' } }"), "either republish or sink"),
    (rule('SELECT 1 AS n FROM "t"', "{ sink = 'x' }"), "'x' names no sink: write plugin:sink"),
    (rule('SELECT clientid FROM "t"', republish("x/${clientd}")),
     "kinmqtt.toml:3:11: plugins.rules.r.actions: [0].republish.topic: 'x/${clientd}': the rule selects no "
     "'clientd'; did you mean 'clientid'?; there are: clientid, row"),
    (rule('SELECT 1 AS n FROM "t"', republish("x/#")), "can't be a topic"),
    (rule('SELECT 1 AS n FROM "t"', republish("$SYS/x")), "can't be published to by rules"),
    (rule('SELECT 1 AS n FROM "t"', republish("x" * 65_536)), "a topic has at most 65535 bytes"),
    (rule('SELECT 1 AS n FROM "t"', republish("x/${n")), "a placeholder has no closing brace"),
    (rule('SELECT 1 AS n FROM "t"', republish("x/${}")), "is no placeholder"),
    (rule('SELECT 1 AS n FROM "t"', republish("x", qos="1")), "is no QoS"),
    (rule('SELECT 1 AS n FROM "t"', republish("x", qos=3)), "expected"),
    (rule('SELECT 1 AS n FROM "t"', republish("x", name="x"), name='"a b"'), "unknown key"),
    (rule('SELECT 1 AS n FROM "t"', republish("x"), name='"a b"'), "'a b' is no name"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), MISTAKES, ids=range(len(MISTAKES)))
def test_mistakes_in_settings_have_their_places(text: str, expected: str) -> None:
    """In the file, and within the SQL."""
    with pytest.raises(SettingsError) as caught:
        parsed(text)

    assert expected in str(caught.value)


def test_a_sink_that_no_plugin_has_stops_the_start() -> None:
    """The nearest one is named."""
    with pytest.raises(SettingsError) as caught:
        started(HOT.replace("kafka:readings", "kafka:reading"), sinks=["kafka:readings"])

    assert str(caught.value) == (
        "plugins.rules.hot.actions[1]: no sink 'kafka:reading'; did you mean 'kafka:readings'?; "
        "there are: kafka:readings"
    )


def test_a_reload_names_sinks_that_are_not_there_yet() -> None:
    """It goes on: the broker makes the sinks of new settings after that."""
    plugin, context = started(HOT, sinks=["kafka:readings"])

    left = plugin.reload(parsed(HOT.replace("kafka:readings", "kafka:reading")))

    assert left == [
        "plugins.rules.hot.actions[1]: no sink 'kafka:reading'; did you mean 'kafka:readings'?; "
        "there are: kafka:readings; the action fails while there is none"
    ]
    context.route(message_of({"temp": 31}, "sensors/a/temp"))
    assert len(context.published) == 1
