"""Taps of plugins: what they see, and what becomes of the message and of what they publish."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from core_harness.faulty import logged
from core_harness.sinks import HangingSink
from core_harness.stores import Failing, SlowQueues, everything, nothing
from kinmqtt.broker.routing.fanout import MANY
from kinmqtt.mqtt.packets import V5, V311, ConnectWill, Puback, Pubcomp, Pubrec
from kinmqtt.testing import BrokerHarness
from kinmqtt_spi import hookimpl
from kinmqtt_spi.properties import Properties
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.bridge import SendSettings, SinkPlan
from kinmqtt_spi.services.outbox import Accepted, OutboxSettings, WhenFull
from kinmqtt_spi.services.plugin import Context
from kinmqtt_spi.services.queue import OverflowPolicy
from kinmqtt_spi.services.tap import MAX_MADE, MAX_NESTED, PayloadTest, Tap
from kinmqtt_spi.values import Client, Message, Subscription


class Tapper:
    """A plugin with one tap; ``act`` is what it does with each message that it sees."""

    def __init__(self, *filters: str, act: Callable[[Message], object] = lambda message: None) -> None:
        self.filters: Sequence[str] = filters or ("a/#",)
        self.act = act
        self.seen: list[Message] = []
        self.wants: PayloadTest | None = None
        self.context: Context
        self.taken: Tap

    @hookimpl
    def start(self, context: Context) -> None:
        self.context = context
        self.taken = context.tap(self.filters, self._see, self.wants)

    def _see(self, message: Message) -> object:
        self.seen.append(message)
        return self.act(message)

    @property
    def payloads(self) -> list[bytes]:
        return [message.payload for message in self.seen]

    def republish(self, topic: str, qos: int = 1, **fields: Any) -> None:
        """Publish to a topic whatever is seen."""
        self.act = lambda message: self.context.publish(Message(topic, message.payload, qos, **fields))

    def fill(self, sink: str = "sinks:out") -> None:
        """Put into a sink whatever is seen."""
        self.act = lambda message: self.answers.append(self.context.put(sink, message))
        self.answers: list[Accepted] = []


class Sinks:
    """A plugin with one sink, which no filter fills."""

    def __init__(self, *, hangs: bool = False, **outbox: Any) -> None:
        self.sink = HangingSink()
        self.sink.hanging = hangs
        self.plan = SinkPlan(self.sink, (), OutboxSettings(**outbox), SendSettings(linger_s=0, batch=1))

    @hookimpl
    def sinks(self, context: Context) -> Mapping[str, SinkPlan]:
        return {"out": self.plan}

    @property
    def payloads(self) -> list[bytes]:
        return self.sink.payloads


def house(tapper: Tapper, **more: Any) -> BrokerHarness:
    """Return a broker with a tap, and more plugins."""
    return BrokerHarness(plugins={"tapper": tapper, **more})


def publish(broker: BrokerHarness, *payloads: bytes, qos: int = 1, version: int = V5, topic: str = "a/b") -> Any:
    """Publish with a client of its own, and return it."""
    client = broker.connect(f"p{len(broker.peers)}", version)
    for payload in payloads:
        client.publish(topic, payload, qos=qos)
    broker.settle()
    return client


def reasons(client: Any) -> list[ReasonCode]:
    """Return how a client's messages of QoS 1 were answered."""
    return [packet.reason for packet in client.of(Puback)]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_tap_sees_only_payloads_that_it_wants(qos: int) -> None:
    """Others cost no message; each tap is asked once, and both kinds count as calls."""
    asked: list[bytes] = []

    def wants(payload: bytes) -> bool:
        asked.append(payload)
        return payload != b"2"

    tapper, other = Tapper("a/#", "a/b"), Tapper("a/b")
    tapper.wants = wants
    broker = house(tapper, other=other)
    subscriber = broker.connect("s", V5).subscribe("a/b", qos=2)
    publish(broker, b"1", b"2", b"3", qos=qos)

    assert asked == other.payloads == [b"1", b"2", b"3"]
    assert tapper.payloads == [b"1", b"3"]
    assert [payload for _, payload, _ in subscriber.messages] == [b"1", b"2", b"3"]
    labels = {"plugin": "tapper", "hook": "tap"}
    assert broker.assembly.metrics.counter("plugin.calls", "calls", labels).value == 3


def test_a_failure_to_look_at_a_payload_leaves_the_message_out() -> None:
    """It is counted as the tap's; the message goes on to others."""
    tapper = Tapper()

    def wants(payload: bytes) -> bool:
        raise RuntimeError("it can't look")

    tapper.wants = wants
    with logged() as lines:
        broker = house(tapper)
        subscriber = broker.connect("s", V5).subscribe("a/b", qos=1)
        publisher = publish(broker, b"1", b"2")

    assert tapper.payloads == []
    assert [payload for _, payload, _ in subscriber.messages] == [b"1", b"2"]
    assert reasons(publisher) == [ReasonCode.SUCCESS] * 2
    assert broker.assembly.metrics.sum("plugin.failures") == 2
    assert len([line for line in lines if "plugin tapper failed in tap" in line]) == 1


def test_what_looks_at_a_payload_is_no_tap() -> None:
    """What it publishes is a message of its own, for which nobody waits."""
    tapper = Tapper()
    made: list[bytes] = []

    def wants(payload: bytes) -> bool:
        made.append(payload)
        tapper.context.publish(Message("b", payload, 1))
        return True

    tapper.wants = wants
    broker = house(tapper)
    subscriber = broker.connect("s", V5).subscribe("b", qos=1)
    publish(broker, b"1")

    assert made == tapper.payloads == [b"1"]
    assert [payload for _, payload, _ in subscriber.messages] == [b"1"]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_tap_sees_what_its_filters_match_once_and_in_order(qos: int) -> None:
    """Whatever QoS, and however many filters match."""
    tapper = Tapper("a/#", "a/b")
    broker = house(tapper)
    subscriber = broker.connect("s", V5).subscribe("a/b", qos=2)
    publish(broker, b"1", b"2", qos=qos)
    publish(broker, b"3", qos=qos, topic="b")

    assert tapper.payloads == [b"1", b"2"]
    assert {message.qos for message in tapper.seen} == {qos}
    assert all(message.id.counter and message.received_at for message in tapper.seen)
    assert [payload for _, payload, _ in subscriber.messages] == [b"1", b"2"]


def test_a_tap_counts_as_a_subscriber() -> None:
    """MQTT-3.4.2-1: PUBACK without 0x10, until the tap is closed."""
    tapper = Tapper()
    broker = house(tapper)
    assert reasons(publish(broker, b"1")) == [ReasonCode.SUCCESS]
    tapper.taken.close()
    tapper.taken.close()

    assert reasons(publish(broker, b"2")) == [ReasonCode.NO_MATCHING_SUBSCRIBERS]
    assert tapper.payloads == [b"1"]


@pytest.mark.parametrize("filters", [("a/#",), ("a/b",)])
def test_a_tap_that_is_opened_later_sees_topics_that_are_cached(filters: tuple[str, ...]) -> None:
    """By the broker, and by the connection of a publisher of QoS 0."""
    tapper = Tapper("other")
    broker = house(tapper)
    broker.connect("s", V311).subscribe("a/b")
    publisher = broker.connect("p", V311)
    publisher.publish("a/b", b"1").publish("a/b", b"2")
    seen: list[bytes] = []
    tap = tapper.context.tap(filters, lambda message: seen.append(message.payload))
    publisher.publish("a/b", b"3")
    tap.close()
    publisher.publish("a/b", b"4")

    assert seen == [b"3"]


def test_topics_without_a_tap_are_forwarded_as_without_any() -> None:
    """A fan-out that sends packets as they came stays so."""
    broker = house(Tapper("a/#"))
    broker.connect("s", V311).subscribe("#")

    assert broker.broker.fanouts.get("b").is_simple
    assert not broker.broker.fanouts.get("a/b").is_simple


def test_a_tap_sees_a_message_to_very_many_once() -> None:
    """It is delivered in slices, and its publisher is acknowledged after the last one."""
    tapper = Tapper()
    tapper.republish("derived")
    broker = house(tapper)
    for number in range(MANY + 2):
        broker.connect(f"s{number}", V5).subscribe("a/#", qos=1)
    subscriber = broker.connect("d", V5).subscribe("derived", qos=1)
    client = publish(broker, b"1")

    assert tapper.payloads == [b"1"]
    assert reasons(client) == [ReasonCode.SUCCESS]
    assert [payload for _, payload, _ in subscriber.messages] == [b"1"]


@pytest.mark.parametrize("filters", [(), ("a/#/b",), ("$share/g/a",), ("",)])
def test_filters_that_a_tap_cannot_have_are_refused(filters: tuple[str, ...]) -> None:
    """With the filter in the message."""
    tapper = Tapper()
    house(tapper)
    with pytest.raises(ValueError, match=r"filter|shared"):
        tapper.context.tap(filters, lambda message: None)


def test_a_tap_sees_nothing_of_sys() -> None:
    """What the broker publishes there is its own."""
    tapper = Tapper("$SYS/#", "#")
    broker = BrokerHarness(plugins={"tapper": tapper}, sys_interval_s=1)
    broker.advance(3)
    tapper.context.publish(Message("$SYS/mine", b"1"))

    assert tapper.seen == []


def test_a_tap_sees_wills_and_what_plugins_publish() -> None:
    """Each is routed as a client's message."""
    tapper = Tapper()
    broker = house(tapper)
    broker.connect("mortal", V5, will=ConnectWill("a/will", b"will", 1)).drop()
    broker.settle()
    tapper.context.publish(Message("a/own", b"own", 1))

    assert tapper.payloads == [b"will", b"own"]


def test_what_a_tap_publishes_is_acknowledged_with_the_message() -> None:
    """The publisher waits for the commit of both, also at a client that is away."""
    queues = SlowQueues()
    tapper = Tapper()
    tapper.republish("derived")
    broker = house(tapper, queues=queues)
    broker.connect("away", V5, expiry_s=60).subscribe("derived", qos=1).drop()
    broker.settle()
    queues.writes.slow = True
    client = publish(broker, b"1")
    assert client.of(Puback) == []
    queues.writes.answer_all()
    broker.settle()

    assert reasons(client) == [ReasonCode.SUCCESS]
    back = broker.connect("away", V5, expiry_s=60, clean_start=False)
    assert [(topic, payload) for topic, payload, _ in back.messages] == [("derived", b"1")]


@pytest.mark.parametrize("qos", [1, 2])
def test_what_a_tap_puts_into_a_sink_is_committed_before_the_acknowledgement(qos: int) -> None:
    """B1: by a rule as by a filter: first in the outbox, with the message's id; then acknowledged, then sent."""
    queues, sinks, tapper = SlowQueues(), Sinks(), Tapper()
    tapper.fill()
    broker = house(tapper, sinks=sinks, queues=queues)
    queues.writes.slow = True
    client = publish(broker, b"1", qos=qos)
    broker.advance(1)
    assert tapper.answers == [Accepted.ACCEPTED]
    assert client.of(Puback) + client.of(Pubrec) == []
    assert sinks.payloads == []
    queues.writes.answer_all()
    broker.advance(1)

    assert len(client.of(Puback if qos == 1 else Pubcomp)) == 1
    assert [item.message.id for item in sinks.sink.taken] == [message.id for message in tapper.seen]


def test_a_store_that_fails_withholds_the_acknowledgement_of_what_a_tap_put_in() -> None:
    """B15: the publisher is disconnected, and nothing is sent."""
    queues, sinks, tapper = Failing(), Sinks(), Tapper()
    tapper.fill()
    broker = house(tapper, sinks=sinks, queues=queues)
    queues.refuses = everything
    client = publish(broker, b"1")
    broker.advance(1)
    assert client.of(Puback) == []
    assert client.closed
    assert sinks.payloads == []
    queues.refuses = nothing
    broker.advance(5)

    assert reasons(publish(broker, b"2")) == [ReasonCode.SUCCESS]
    broker.advance(5)
    assert sinks.payloads == [b"2"]


def test_what_a_tap_publishes_at_most_once_or_for_a_message_of_qos_2_waits_for_the_commit() -> None:
    """A client of QoS 2 sends again under the same identifier: nobody has the message before it is committed."""
    queues = SlowQueues()
    tapper = Tapper()
    tapper.republish("derived", qos=0)
    broker = house(tapper, queues=queues)
    subscriber = broker.connect("s", V5).subscribe("derived")
    publisher = broker.connect("p", V5, expiry_s=60)
    queues.writes.slow = True
    publisher.publish("a/b", b"1", qos=2)
    broker.settle()
    assert tapper.payloads == [b"1"]
    assert subscriber.messages == []
    queues.writes.answer_all()
    broker.settle()

    assert [payload for _, payload, _ in subscriber.messages] == [b"1"]
    assert len(publisher.of(Pubcomp)) == 1


def test_a_tap_that_raises_is_counted_and_logged_once_a_minute() -> None:
    """B14: the message goes on, and so do the other taps; what was put in before stays."""
    sinks, tapper = Sinks(), Tapper()
    broker = house(tapper, sinks=sinks)
    seen: list[bytes] = []
    tapper.context.tap(["a/#"], lambda message: seen.append(message.payload))

    def fail(message: Message) -> None:
        tapper.context.put("sinks:out", message)
        raise KeyError("temp")

    tapper.act = fail
    subscriber = broker.connect("s", V5).subscribe("a/#", qos=1)
    with logged() as lines:
        client = publish(broker, b"1", b"2", b"3")
    broker.advance(1)

    assert reasons(client) == [ReasonCode.SUCCESS] * 3
    assert [payload for _, payload, _ in subscriber.messages] == seen == sinks.payloads == [b"1", b"2", b"3"]
    assert broker.assembly.metrics.sum("plugin.failures") == 3
    assert lines == ["plugin tapper failed in tap"]


def test_a_tap_that_answers_later_has_failed() -> None:
    """It must answer at once."""

    async def later() -> None:
        """Never runs."""

    broker = house(Tapper(act=lambda message: later()))

    assert reasons(publish(broker, b"1")) == [ReasonCode.SUCCESS]
    assert broker.assembly.metrics.sum("plugin.failures") == 1


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("retain", [False, True])
def test_messages_of_taps_nest_at_most_eight_deep(qos: int, retain: bool) -> None:
    """A loop of rules ends: what is deeper is dropped and counted."""
    tapper = Tapper()
    tapper.republish("a/again", qos, retain=retain)
    broker = house(tapper)
    with logged() as lines:
        client = publish(broker, b"1", b"2")

    assert len(tapper.seen) == 2 * (1 + MAX_NESTED)
    assert reasons(client) == [ReasonCode.SUCCESS] * 2
    assert broker.assembly.statistics.dropped["nested_too_deep"].value == 2
    assert [line for line in lines if "8 deep" in line] == lines[:1]


def test_taps_make_at_most_so_many_messages_of_one() -> None:
    """Also where each call makes several: eight deep, that would be a hundred million."""
    tapper = Tapper("a/#", "c")
    next_topic = {"a/b": "a/again", "a/again": "c"}

    def several(message: Message) -> None:
        for _ in range(101 if message.topic in next_topic else 0):
            tapper.context.publish(Message(next_topic[message.topic], b"", 0))

    tapper.act = several
    broker = house(tapper)
    publish(broker, b"1", qos=0)

    assert len(tapper.seen) == 1 + MAX_MADE
    assert broker.assembly.statistics.dropped["nested_too_deep"].value > 0


def test_messages_of_taps_nest_at_most_eight_deep_where_each_waits() -> None:
    """The topic is being delivered in slices each time."""
    tapper = Tapper()
    tapper.republish("a/b")
    broker = house(tapper)
    for number in range(MANY + 2):
        broker.connect(f"s{number}", V5).subscribe("a/b", qos=1)
    client = publish(broker, b"1")
    broker.advance(1)

    assert len(tapper.seen) == 1 + MAX_NESTED
    assert reasons(client) == [ReasonCode.SUCCESS]


@pytest.mark.parametrize("version", [V311, V5])
def test_a_sink_that_refuses_what_a_tap_puts_in_refuses_its_publisher(version: int) -> None:
    """B5: nothing is acknowledged that is in no outbox, as if the sink had the filter itself."""
    sinks, tapper = Sinks(hangs=True, max_messages=1, window=1, when_full=WhenFull.REFUSE), Tapper()
    tapper.fill()
    broker = house(tapper, sinks=sinks)
    publish(broker, b"1", b"2")
    client = publish(broker, b"3", version=version)

    assert tapper.answers[-1] is Accepted.REFUSED
    assert reasons(client) == ([ReasonCode.QUOTA_EXCEEDED] if version == V5 else [])
    assert client.closed == (version == V311)


def test_a_sink_that_pauses_for_what_a_tap_puts_in_pauses_its_publisher() -> None:
    """B5: until there is room again."""
    sinks, tapper = Sinks(hangs=True, max_messages=10, window=1, when_full=WhenFull.PAUSE), Tapper()
    tapper.fill()
    broker = house(tapper, sinks=sinks)
    publish(broker, *(b"%d" % number for number in range(11)))
    client = publish(broker, b"late")
    assert client.of(Puback) == []
    assert broker.assembly.metrics.sum("outbox.paused") == 1
    sinks.sink.go_on()
    broker.advance(1)

    assert len(client.of(Puback)) == 1


def test_nobody_is_paused_for_a_message_of_qos_0() -> None:
    """Its publisher waits for nothing; the outbox's bounds hold."""
    sinks, tapper = Sinks(hangs=True, max_messages=10, window=1, when_full=WhenFull.PAUSE), Tapper()
    tapper.fill()
    broker = house(tapper, sinks=sinks)
    tapper.act = lambda message: tapper.answers.append(tapper.context.put("sinks:out", message.replace(qos=1)))
    publish(broker, *(b"%d" % number for number in range(20)), qos=0)

    assert tapper.answers == [Accepted.ACCEPTED] * 12 + [Accepted.REFUSED] * 8
    assert broker.assembly.metrics.sum("outbox.paused") == 0


def test_a_sink_is_named_by_its_plugin_and_its_name() -> None:
    """The error lists those that exist."""
    tapper = Tapper()
    broker = house(tapper, sinks=Sinks())
    with pytest.raises(ValueError, match="no sink 'kafka:out'; there are: sinks:out"):
        tapper.context.put("kafka:out", Message("a", b"1", 1))
    assert tapper.context.put("sinks:out", Message("a", b"1", 1)) is Accepted.ACCEPTED
    broker.advance(1)


def test_a_tap_can_not_do_what_takes_longer() -> None:
    """Nothing could be committed with the message; it raises within the tap, and nowhere else."""
    tapper = Tapper()
    broker = house(tapper)
    errors: list[str] = []

    def act(message: Message) -> None:
        for call in (
            lambda: tapper.context.publish_acknowledged([message]),
            lambda: tapper.context.publish(message, in_place_of="key"),
        ):
            try:
                call()
            except RuntimeError as error:
                errors.append(str(error))

    tapper.act = act
    publish(broker, b"1")

    assert len(errors) == 2
    assert all("a tap must answer at once" in error for error in errors)
    tapper.taken.close()
    tapper.context.publish(Message("a/b", b"2", 1), in_place_of="key")
    tapper.context.publish_acknowledged([Message("a/b", b"3", 1)])


def test_what_a_tap_publishes_has_an_id_of_its_own() -> None:
    """Also if it is made with `replace`, as the documentation does; its expiry stays."""
    tapper = Tapper()
    sinks = Sinks()
    tapper.act = lambda message: tapper.context.publish(message.replace(topic="alarms", qos=1))
    broker = house(tapper, sinks=sinks)
    alarms: list[Message] = []
    tapper.context.tap(["alarms"], alarms.append)
    broker.connect("p", V5).publish("a/b", b"1", qos=1, properties=Properties(message_expiry_interval=60))
    broker.settle()
    broker.advance(5)

    [seen], [alarm] = tapper.seen, alarms
    assert alarm.id != seen.id
    assert (alarm.received_at, alarm.expires_at) == (seen.received_at, seen.expires_at)
    assert seen.expires_at is not None


@pytest.mark.parametrize(("changes", "is_same"), [({}, True), ({"qos": 0}, True), ({"payload": b"2"}, False)])
def test_what_a_tap_puts_into_a_sink_has_the_id_of_the_message_that_it_saw_if_it_is_that_message(
    changes: dict[str, Any], is_same: bool
) -> None:
    """Consumers remove repetitions by it: two parts of a message must not have one id."""
    sinks, tapper = Sinks(), Tapper()
    tapper.act = lambda message: tapper.context.put("sinks:out", message.replace(**changes))
    broker = house(tapper, sinks=sinks)
    publish(broker, b"1")
    broker.advance(1)

    [item] = sinks.sink.taken
    assert (item.message.id == tapper.seen[0].id) is is_same


def test_a_queue_that_refuses_what_a_tap_publishes_refuses_its_publisher() -> None:
    """As a queue does that refuses the message itself."""
    tapper = Tapper()
    tapper.republish("derived")
    broker = BrokerHarness(plugins={"tapper": tapper}, max_queued_messages=1, queue_full=OverflowPolicy.REFUSE)
    broker.connect("away", V5, expiry_s=60).subscribe("derived", qos=1).drop()
    broker.settle()

    assert reasons(publish(broker, b"1", b"2")) == [ReasonCode.SUCCESS, ReasonCode.QUOTA_EXCEEDED]


def test_a_queue_that_refuses_what_a_tap_publishes_in_slices_refuses_its_publisher() -> None:
    """Also if that takes longer than the turn of the message."""
    tapper = Tapper()
    tapper.republish("derived")
    broker = BrokerHarness(plugins={"tapper": tapper}, max_queued_messages=1, queue_full=OverflowPolicy.REFUSE)
    for number in range(MANY + 2):
        broker.connect(f"s{number}", V5).subscribe("derived", qos=1)
    broker.connect("away", V5, expiry_s=60).subscribe("derived", qos=1).drop()
    broker.settle()

    assert reasons(publish(broker, b"1")) == [ReasonCode.SUCCESS]
    assert reasons(publish(broker, b"2")) == [ReasonCode.QUOTA_EXCEEDED]


def test_a_limit_on_retained_messages_refuses_the_publisher_of_what_a_tap_would_retain() -> None:
    """Nothing is acknowledged that is lost in part."""
    tapper = Tapper()
    tapper.act = lambda message: tapper.context.publish(Message(message.payload.decode(), b"x", 1, True))
    broker = BrokerHarness(plugins={"tapper": tapper}, max_retained_messages=1)

    assert reasons(publish(broker, b"d1", b"d2")) == [ReasonCode.SUCCESS, ReasonCode.QUOTA_EXCEEDED]


class Other:
    """Another plugin, whose hook on deliveries publishes and puts messages of its own."""

    def __init__(self) -> None:
        self.answers: list[Accepted] = []
        self.context: Context

    @hookimpl
    def start(self, context: Context) -> None:
        self.context = context

    @hookimpl
    def delivering(self, client: Client, message: Message, subscription: Subscription) -> None:
        if message.topic == "derived":
            self.context.publish(Message("own", b"x", 1), in_place_of="key")
            self.answers.append(self.context.put("sinks:out", Message("own", b"x", 1)))


def test_hooks_of_other_plugins_during_the_call_of_a_tap_are_no_part_of_it() -> None:
    """A full sink refuses what they put in, and not the message that the tap sees; they may publish for later."""
    sinks, tapper, other = Sinks(hangs=True, max_messages=1, window=1, when_full=WhenFull.REFUSE), Tapper(), Other()
    tapper.republish("derived")
    broker = house(tapper, sinks=sinks, other=other)
    broker.connect("s", V5).subscribe("derived", qos=1)
    client = publish(broker, b"1", b"2", b"3")

    assert other.answers == [Accepted.ACCEPTED] * 2 + [Accepted.REFUSED]
    assert reasons(client) == [ReasonCode.SUCCESS] * 3
    assert broker.assembly.metrics.sum("plugin.failures") == 0


@pytest.mark.parametrize(
    ("when_full", "reason"),
    [(WhenFull.DROP_OLDEST, ReasonCode.SUCCESS), (WhenFull.PAUSE, ReasonCode.QUOTA_EXCEEDED)],
)
def test_an_outbox_that_is_not_open_refuses_the_publisher_unless_it_may_drop_messages(
    when_full: WhenFull, reason: ReasonCode
) -> None:
    """Its settings say what a message is worth."""
    tapper = Tapper()
    broker = house(tapper)
    outbox = tapper.context.outbox("late", OutboxSettings(when_full=when_full))
    broker.settle()
    outbox.discard()
    broker.settle()
    tapper.act = outbox.put

    assert reasons(publish(broker, b"1")) == [reason]
