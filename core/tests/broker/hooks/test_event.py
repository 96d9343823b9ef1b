"""The hook of the event log, through a whole broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from twisted.internet.defer import succeed

from core_harness.house import House
from kinmqtt.mqtt.packets import V5, ConnectWill
from kinmqtt.settings import BrokerSettings
from kinmqtt_spi import Drop, Message, Reject, hookimpl
from kinmqtt_spi.errors import AssemblyError
from kinmqtt_spi.memory.event import MemoryEventLog
from kinmqtt_spi.services.event import Event, EventKind


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
    assert log.appended[1].data == {"filter": "a", "qos": 1}
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
