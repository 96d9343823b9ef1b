"""The hook of the event log, through a whole broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from harness import House
from twisted.internet.defer import succeed

from kinmqtt_spi import hookimpl
from kinmqtt_spi.errors import AssemblyError
from kinmqtt_spi.reference.event import MemoryEventLog
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
