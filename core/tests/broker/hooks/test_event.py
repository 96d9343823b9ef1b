"""The hook of the event log, through a whole broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from twisted.internet.defer import succeed

from core_harness.house import House
from kinmqtt.mqtt.packets import V5, ConnectWill
from kinmqtt.settings import BrokerSettings
from kinmqtt.testing.harness import HarnessClient
from kinmqtt_spi import Drop, Message, Reject, hookimpl
from kinmqtt_spi.errors import AssemblyError
from kinmqtt_spi.memory.event import MemoryEventLog
from kinmqtt_spi.memory.event_feed import LocalFeed
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.services.event import Event, EventKind, EventVersion, Recorded


def broken(*_: Any) -> Any:
    """What a broken plugin does."""
    raise ValueError("broken")


class WatchedLog(MemoryEventLog):
    """Shows what is appended."""

    def __init__(self) -> None:
        super().__init__(lambda delay_s, call: None)
        self.appended: list[Event] = []

    def append(self, events: Sequence[Event]) -> Any:
        self.appended += events
        return super().append(events)


class Provider:
    """Provides the event log."""

    def __init__(self, log: Any) -> None:
        self.log = log

    @hookimpl
    def event_log(self, context: Any) -> Any:
        return self.log() if callable(self.log) else self.log


def test_event_log_of_the_only_plugin_is_used() -> None:
    """The plugin's log gets what happens to clients, in order, and without payloads."""
    log = WatchedLog()
    house = House(plugins={"log": Provider(log)})

    peer = house.connect("c").subscribe("a", 1).publish("t", b"secret", retain=True).publish("t", retain=True)
    peer.unsubscribe("a").disconnect()

    assert house.assembly.providers["event"] == "log"
    assert [(event.kind, event.client_id) for event in log.appended] == [
        (kind, "c")
        for kind in (
            EventKind.CONNECT,
            EventKind.SUBSCRIBE,
            EventKind.ADD_RETAIN,
            EventKind.REMOVE_RETAIN,
            EventKind.UNSUBSCRIBE,
            EventKind.DISCONNECT,
        )
    ]
    assert dict(log.appended[1].data) == {
        "username": None,
        "filter": "a",
        "qos": 1,
        "no_local": False,
        "retain_as_published": False,
        "retain_handling": 0,
        "identifier": None,
    }
    assert "secret" not in str([event.data for event in log.appended])
    versions = [event.version for event in log.appended]
    assert versions == sorted(versions)


@pytest.mark.parametrize("log", [broken, lambda: None, lambda: object(), lambda: succeed(WatchedLog())])
def test_event_log_that_fails_stops_the_assembly(log: Callable[[], Any]) -> None:
    """A plugin that raises, or answers anything but a log, keeps the broker from starting, and is named."""
    with pytest.raises(AssemblyError, match="plugin 'bad'"):
        House(plugins={"bad": Provider(log)})


# What is recorded of retained messages


def retained(log: WatchedLog) -> list[tuple[EventKind, str, Any]]:
    """Kind, client and topic of what was recorded of retained messages."""
    kinds = (EventKind.ADD_RETAIN, EventKind.REMOVE_RETAIN)
    return [(event.kind, event.client_id, event.data["topic"]) for event in log.appended if event.kind in kinds]


@pytest.mark.parametrize("hook", ["publish_received", "retaining"])
@pytest.mark.parametrize("later", [False, True])
def test_the_topic_is_the_one_that_was_retained(hook: str, later: bool) -> None:
    """Whatever a plugin has made of the one that the client named, at once or later."""

    def changed(message: Message) -> Any:
        answer = message.replace(topic=f"new/{message.topic}")
        return succeed(answer) if later else answer

    class OnReceipt:
        @hookimpl
        def publish_received(self, message: Message) -> Any:
            return changed(message)

    class OnRetaining:
        @hookimpl
        def retaining(self, message: Message) -> Any:
            return changed(message)

    log = WatchedLog()
    plugin = OnReceipt() if hook == "publish_received" else OnRetaining()
    house = House(plugins={"log": Provider(log), "plugin": plugin})

    house.connect("c").publish("t", b"x", retain=True).publish("t", retain=True)

    assert retained(log) == [(EventKind.ADD_RETAIN, "c", "new/t"), (EventKind.REMOVE_RETAIN, "c", "new/t")]


def test_wills_and_plugins_messages_are_recorded_too() -> None:
    """A will under its client, a plugin's message under nobody."""
    log = WatchedLog()
    house = House(plugins={"log": Provider(log)})

    house.connect("c", will=ConnectWill("gone", b"x", 0, True)).drop()
    house.connect("d", will=ConnectWill("gone", b"", 0, True)).drop()
    house.broker.publish(Message("plugin", b"x", retain=True))
    house.broker.publish(Message("plugin", b"", retain=True))
    house.broker.publish(Message("plugin", b"not retained"))
    house.settle()

    assert retained(log) == [
        (EventKind.ADD_RETAIN, "c", "gone"),
        (EventKind.REMOVE_RETAIN, "d", "gone"),
        (EventKind.ADD_RETAIN, "", "plugin"),
        (EventKind.REMOVE_RETAIN, "", "plugin"),
    ]


def test_what_was_not_retained_is_not_recorded() -> None:
    """What `retaining` refuses, and what the broker says of itself."""

    class Curator:
        @hookimpl
        def retaining(self, message: Message) -> Any:
            return {"drop": Drop(), "reject": Reject()}.get(message.topic)

    log = WatchedLog()
    plugins = {"log": Provider(log), "curator": Curator()}
    house = House(plugins=plugins, settings=BrokerSettings(sys_interval_s=1))

    house.connect("c").publish("drop", b"x", retain=True).publish("reject", retain=True).publish("t", b"x")
    house.advance(3)

    page: Any = house.broker.runtime.stores.retain.match("$SYS/#", None, 1)
    assert page.messages
    assert retained(log) == []


def test_events_of_retained_messages_are_in_order_with_the_clients_others() -> None:
    """Their versions have the epoch of the session, and their numbers rise with the others'."""
    log = WatchedLog()
    house = House(plugins={"log": Provider(log)})
    house.connect("c", V5, expiry_s=60).drop()

    peer = house.connect("c", V5, clean_start=False, expiry_s=60)
    peer.publish("t", b"x", retain=True).subscribe("a").publish("t", retain=True).disconnect()

    versions = [event.version for event in log.appended]
    assert [event.kind for event in log.appended][-4:] == [
        EventKind.ADD_RETAIN,
        EventKind.SUBSCRIBE,
        EventKind.REMOVE_RETAIN,
        EventKind.DISCONNECT,
    ]
    assert len({version.epoch for version in versions[-4:]}) == 1
    assert versions == sorted(versions)


@pytest.mark.parametrize("expiry_s", [None, 5])
def test_a_wills_event_is_behind_the_clients_others(expiry_s: int | None) -> None:
    """Also where the session has ended with its connection: by the version an older event would be passed over."""
    log = WatchedLog()
    house = House(plugins={"log": Provider(log)})
    house.connect("c", V5, expiry_s=60).drop()

    peer = house.connect("c", V5, expiry_s=expiry_s, will=ConnectWill("t", b"gone", 0, True))
    peer.publish("t", b"there", retain=True).drop()
    house.advance(6)

    versions = [event.version for event in log.appended]
    assert retained(log) == [(EventKind.ADD_RETAIN, "c", "t")] * 2
    assert versions == sorted(versions)


# What a session and its end say, and the feed


def test_a_connect_says_what_a_session_is_made_of() -> None:
    """With the events of its subscriptions and its end a session can be rebuilt from it."""
    log = WatchedLog()
    house = House(plugins={"log": Provider(log)})

    house.connect("c", V5, expiry_s=60).disconnect()
    house.connect("c", V5, expiry_s=90, clean_start=False)

    first, _, second = log.appended
    assert first.data["session_present"] is False
    assert second.data["session_present"] is True
    assert second.data["created_at"] == first.data["created_at"] == house.clock.now()
    assert (first.data["expiry_s"], second.data["expiry_s"]) == (60, 90)
    assert {"username", "listener", "keep_alive_s", "address", "clean_start", "version"} <= first.data.keys()
    assert {event.schema_version for event in log.appended} == {2}


@pytest.mark.parametrize(("expiry_s", "after_s"), [(60, 60), (None, 0)])
def test_an_end_says_when_the_session_expires(expiry_s: int | None, after_s: int) -> None:
    """A DISCONNECT and a lost connection; a session that ends at once has expired then."""
    log = WatchedLog()
    house = House(plugins={"log": Provider(log)})

    house.connect("clean", V5, expiry_s=expiry_s).disconnect()
    house.connect("lost", V5, expiry_s=expiry_s).drop()

    ends = {event.client_id: event for event in log.appended if event.kind is not EventKind.CONNECT}
    assert ends["clean"].kind is EventKind.DISCONNECT
    assert ends["lost"].kind is EventKind.CONNECTION_LOST
    assert {event.data["expires_at"] for event in ends.values()} == {house.clock.now() + after_s}


class TickingClock(TurnableClock):
    """A clock that never shows the same time twice."""

    def now(self) -> float:
        self.step(0.001)
        return super().now()


@pytest.mark.parametrize("ends", [HarnessClient.drop, HarnessClient.disconnect])
def test_an_end_says_exactly_when_the_session_expires(ends: Any) -> None:
    """The moment is the one in the session store."""
    log = WatchedLog()
    house = House(plugins={"log": Provider(log)}, clock=TickingClock())

    ends(house.connect("c", V5, expiry_s=60))

    page: Any = house.assembly.stores.session.iterate()
    assert log.appended[-1].data["expires_at"] == page.sessions[0][1].expires_at


def test_a_session_that_never_expires_says_so() -> None:
    """Its end has no moment."""
    log = WatchedLog()
    house = House(plugins={"log": Provider(log)})

    house.connect("c", clean_start=False).drop()

    assert log.appended[-1].data["expires_at"] is None


def test_a_retained_message_is_named_without_its_payload() -> None:
    """By topic, QoS, size and the broker's id of the message."""
    log = WatchedLog()
    house = House(plugins={"log": Provider(log)})

    house.connect("c").publish("t", b"secret", qos=1, retain=True)

    [event] = [event for event in log.appended if event.kind is EventKind.ADD_RETAIN]
    assert (event.data["qos"], event.data["bytes"]) == (1, 6)
    assert str(event.data["message_id"]).startswith(f"{house.node.uid}-")


class Follower:
    """Takes events from its context's feed, and may hold its group."""

    def __init__(self, held: bool = False) -> None:
        self.held = held
        self.kinds: list[EventKind] = []
        self.behind: list[int] = []
        """How far it was behind when it was called."""

    @hookimpl
    def event_feed(self, context: Any, log: Any) -> Any:
        if self.held:
            log.hold("follower")
        return LocalFeed(log, context.node.name)

    @hookimpl
    def start(self, context: Any) -> None:
        self.feed = context.events
        self.feed.consume("follower", self.take)

    def take(self, batch: Sequence[Recorded]) -> None:
        self.behind.append(self.feed.lag("follower"))
        self.kinds += [each.event.kind for each in batch]


def test_a_plugin_takes_events_from_its_context() -> None:
    """From its start on, whoever provides the feed; the broker measures how far it is behind."""
    follower = Follower()
    house = House(plugins={"follower": follower})

    house.connect("c").subscribe("a").disconnect()
    house.advance(0.1)

    assert follower.behind[0] > 0
    assert house.assembly.metrics.sum("events.lag") == 0
    assert follower.kinds == [EventKind.CONNECT, EventKind.SUBSCRIBE, EventKind.DISCONNECT]


def test_events_that_nobody_takes_are_bounded_and_counted() -> None:
    """Beyond `events.max_waiting` the oldest are lost, though a plugin holds them."""
    follower = Follower(held=True)
    house = House(plugins={"follower": follower})
    log = house.broker.runtime.stores.event
    recorded = [Event(EventKind.CONNECT, "c", EventVersion(1, number), 0.0, {}) for number in range(200_010)]

    log.append(recorded)

    assert house.assembly.metrics.sum("events.lag") == 200_000
    assert house.assembly.metrics.sum("events.lost") == 10
