"""Rebuilds sessions, subscriptions and retained messages: the file that ``kinmqtt store import`` reads.

The events of a client may come in any order: the highest version (epoch and counter) of each fact counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from attrs import define, field

from kinmqtt_event_kafka.retained_record import decode
from kinmqtt_spi.export import FORMAT, HEADER, retained_line, session_line
from kinmqtt_spi.services.event import Event, EventKind, EventVersion
from kinmqtt_spi.services.retain import RetainWrite
from kinmqtt_spi.services.session import StoredSession
from kinmqtt_spi.values import Subscription

LEFT_OUT: Final = (
    "Kafka does not have queues, messages in flight, wills and the values of plugins: these are not in the file"
)

NO_RETAINED: Final = (
    "retained messages are not in the file: plugins.event_kafka.retained_topic does not say where they are"
)

_SHARE: Final = "$share/"


@define(slots=True)
class _Client:
    """What the events say of one client."""

    connect: Event | None = None
    end: Event | None = None
    began: EventVersion | None = None
    """The version of the newest CONNECT that found no session."""
    filters: dict[str, Event] = field(factory=dict)
    """The newest SUBSCRIBE or UNSUBSCRIBE of each filter."""


class Rebuilder:
    """Takes events in any order, each once or more."""

    def __init__(self) -> None:
        self._clients: dict[str, _Client] = {}
        self._highest_epoch = 0
        self.old_schema = 0
        """The CONNECT events of schema 1, which do not say when a session expires."""

    def take(self, event: Event) -> None:
        """Take an event."""
        self._highest_epoch = max(self._highest_epoch, event.version.epoch)
        client = self._clients.setdefault(event.client_id, _Client())
        if event.kind is EventKind.CONNECT:
            if event.schema_version < 2:
                self.old_schema += 1
                return
            if _is_newer(event, client.connect):
                client.connect = event
            if not event.data["session_present"] and (client.began is None or event.version > client.began):
                client.began = event.version
        elif event.kind in (EventKind.DISCONNECT, EventKind.CONNECTION_LOST):
            if _is_newer(event, client.end):
                client.end = event
        elif event.kind in (EventKind.SUBSCRIBE, EventKind.UNSUBSCRIBE):
            filter = str(event.data["filter"])
            if _is_newer(event, client.filters.get(filter)):
                client.filters[filter] = event

    @property
    def incomplete(self) -> list[str]:
        """The clients whose session began before the first event: they may have more subscriptions."""
        return [name for name, client in self._clients.items() if client.connect and client.began is None]

    def sessions(self, now: float) -> Iterator[tuple[int, StoredSession]]:
        """Yield the epochs and persistent sessions that have not expired ``now``, in seconds since the epoch."""
        for client_id, client in sorted(self._clients.items()):
            session = _session(client_id, client, now)
            if session is not None:
                yield session

    def lines(self, now: float, retained: Sequence[RetainWrite] = ()) -> Iterator[dict[str, Any]]:
        """Yield the lines of the file, with these retained messages."""
        yield {HEADER: FORMAT}
        yield {"kind": "epochs", "floor": self._highest_epoch}
        count = 3
        for epoch, session in self.sessions(now):
            yield session_line(epoch, session)
            count += 1
        yield from map(retained_line, retained)
        yield {"kind": "end", "lines": count + len(retained)}


class RetainedRebuilder:
    """Takes the records of a compacted topic, in the order of each partition: the last one of a key counts."""

    def __init__(self) -> None:
        self._writes: dict[bytes, RetainWrite] = {}

    def take(self, key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> None:
        """Take a record; raises ``ValueError`` for one that is no retained message."""
        if key is None:
            raise ValueError("the record has no key")
        self._writes.pop(key, None)
        if value:
            self._writes[key] = decode(key, value, headers)

    def writes(self, now: float) -> Iterator[RetainWrite]:
        """Yield what has not expired ``now``, in seconds since the epoch, by topic."""
        return (write for _, write in sorted(self._writes.items()) if not write.message.has_expired(now))


def _is_newer(event: Event, known: Event | None) -> bool:
    return known is None or event.version > known.version


def _session(client_id: str, client: _Client, now: float) -> tuple[int, StoredSession] | None:
    connect: Any = client.connect
    if connect is None or not connect.data["expiry_s"]:
        return None
    expires_at: Any = None
    if client.end is not None and client.end.version > connect.version:
        expires_at = client.end.data.get("expires_at")
        if expires_at is not None and expires_at <= now:
            return None
    data = connect.data
    began = 0 if client.began is None else client.began.epoch
    subscriptions = [
        _subscription(event)
        for event in sorted(client.filters.values(), key=lambda event: event.version)
        # A plugin's subscriptions come before the CONNECT of their epoch.
        if event.kind is EventKind.SUBSCRIBE and event.version.epoch >= began
    ]
    session = StoredSession(
        client_id,
        data["expiry_s"],
        tuple(subscriptions),
        created_at=data["created_at"],
        username=data["username"],
        protocol_version=data["version"],
        expires_at=expires_at,
    )
    return connect.version.epoch, session


def _subscription(event: Event) -> Subscription:
    data: Any = event.data
    filter, group = data["filter"], None
    if filter.startswith(_SHARE):
        group, _, filter = filter.removeprefix(_SHARE).partition("/")
    return Subscription(
        filter,
        data["qos"],
        group,
        data.get("no_local", False),
        data.get("retain_as_published", False),
        data.get("retain_handling", 0),
        data.get("identifier"),
    )
