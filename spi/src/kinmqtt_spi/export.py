"""Reads the export format: what session, queue, retain and event stores hold, as lines of JSON.

``kinmqtt store export`` and ``kinmqtt redis export`` write it; ``docs/store.md`` describes it. A plugin that brings
stores of its own can offer an import with :func:`read_export`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, Final, NoReturn

from attrs import define, field

from kinmqtt_spi.errors import SpiError
from kinmqtt_spi.plain import from_plain, to_plain
from kinmqtt_spi.services.event import Recorded
from kinmqtt_spi.services.outbox import CLIENT_ID_PREFIX
from kinmqtt_spi.services.queue import (
    KNOWN_MESSAGES,
    Append,
    Entry,
    InboundOpen,
    InflightEntry,
    QueueState,
    QueueWrite,
    Release,
    Remove,
    Send,
)
from kinmqtt_spi.services.retain import RetainWrite
from kinmqtt_spi.services.session import OpenSession, StoredSession
from kinmqtt_spi.values import Message, MessageId

FORMAT: Final = 1
"""The version of the format. The first line of an export states it."""

HEADER: Final = "kinmqtt_store"
"""The only key of the first line."""

_REMOVED: Final = Message("released")
"""The payload of an entry whose message no longer exists."""

_OUT_OF_RANGE: Final = 1 << 63

MOST_COMPLETED: Final = 65_535 + KNOWN_MESSAGES
"""One for each packet identifier, and those that a store remembers."""

MAX_EPOCH: Final = 1 << 62
"""The highest epoch that is accepted: each later claim of a session needs a higher one."""


class ExportError(SpiError):
    """An export is malformed or incomplete. The text starts with the number of the line."""


@define(slots=True)
class ExportedQueue:
    """One client's queue."""

    epoch: int
    last_sequence: int
    inbound: list[int]
    """Packet identifiers of inbound QoS 2 messages that are not completed, without the pending ones."""
    pending: dict[int, MessageId] = field(factory=dict)
    """Packet identifiers of inbound QoS 2 messages that other nodes have not committed, with the messages' ids."""
    entries: dict[int, Entry | None] = field(factory=dict)
    """Entries by sequence number; ``None`` for one whose message was released."""
    inflight: dict[int, InflightEntry] = field(factory=dict)
    """Entries in flight by sequence number, in the order of sending."""
    completed: list[MessageId] = field(factory=list)
    """QoS 2 messages without an entry that are still known: a session that moves has them, no export of a store."""


@define(slots=True)
class Contents:
    """Everything that an export holds."""

    epoch_floor: int = 0
    """Epochs of clients without a session start above this one."""
    sessions: list[OpenSession] = field(factory=list)
    queues: dict[str, ExportedQueue] = field(factory=dict)
    """Queues by client id."""
    retained: list[RetainWrite] = field(factory=list)
    events: list[Recorded] = field(factory=list)
    """Events in the order of their offsets."""
    consumer_offsets: dict[str, int] = field(factory=dict)
    """The committed offset of each consumer group."""
    holding_groups: list[str] = field(factory=list)
    """The groups for which events are held."""

    def queue_writes(self) -> Iterator[list[QueueWrite]]:
        """Yield the writes that restore each queue in an empty store, one list for each client."""
        for client_id, queue in self.queues.items():
            yield list(_restore_queue(client_id, queue))


def read_export(lines: Iterable[bytes]) -> Contents:
    """Read an export. Raises :class:`ExportError` for the first line that is malformed or missing."""
    reader = ExportReader()
    for line in lines:
        reader.take(line)
    return reader.contents()


def set_last_sequence(client_id: str, epoch: int, last: int) -> list[QueueWrite]:
    """Return the writes that set a queue's last sequence number when the entry with that number is gone.

    With ``last`` 0 there are none.
    """
    return [Append(client_id, epoch, Entry(last, _REMOVED, 2)), Remove(client_id, epoch, last)] if last else []


class ExportReader:
    """Reads an export line by line, and reports errors with the line's number."""

    def __init__(self) -> None:
        self._number = 0
        self._ended = False
        self._contents = Contents()
        self._session_epochs: dict[str, int] = {}
        """Epochs of sessions, by client id."""
        self._queue_lines: dict[str, int] = {}
        """The line of each queue, by client id."""
        self._retained_topics: set[str] = set()
        self._packet_ids: dict[str, set[int]] = {}
        """Packet identifiers in flight, by client id."""
        self._messages: dict[MessageId, Message] = {}
        self._take: Final[Mapping[str, Callable[[dict[str, Any]], None]]] = {
            "epochs": self._take_epochs,
            "session": self._take_session,
            "queue": self._take_queue,
            "inflight": self._take_inflight,
            "queued": self._take_queued,
            "completed": self._take_completed,
            "retained": self._take_retained,
            "event": self._take_event,
            "consumer": self._take_consumer,
        }

    def take(self, line: bytes) -> None:
        """Read the next line. Raises :class:`ExportError`."""
        self._number += 1
        if self._ended:
            self._fail("something comes after the last line, of kind end")
        plain = self._parsed(line)
        try:
            self._ended = self._take_line(plain)
        except ValueError as error:
            self._fail(str(error))

    def contents(self) -> Contents:
        """Return what was read, after the last line. Raises :class:`ExportError` if lines are missing."""
        if not self._ended:
            self._number += 1
            self._fail(
                "the export ends here, without a line of kind end: it was cut short"
                if self._number > 1
                else f'there is nothing to read: an export begins with {{"{HEADER}": {FORMAT}}}'
            )
        self._check_epochs_of_queues()
        return self._contents

    def _check_epochs_of_queues(self) -> None:
        """Refuse a queue with a higher epoch than any owner of its client id has: nobody could write to it."""
        for client_id, queue in self._contents.queues.items():
            highest = max(self._session_epochs.get(client_id, 0), self._contents.epoch_floor)
            if queue.epoch > highest:
                self._number = self._queue_lines[client_id]
                self._fail(
                    f"epoch: {queue.epoch} is higher than that of the session of {client_id!r} and than the floor; "
                    f"expected at most {highest}"
                )

    def _fail(self, text: str) -> NoReturn:
        raise ExportError(f"line {self._number}: {text}") from None

    def _parsed(self, line: bytes) -> dict[str, Any]:
        try:
            plain = json.loads(line.decode("utf-8"), parse_constant=_not_a_number, object_pairs_hook=_unique_keys)
        except _DuplicateKey as error:
            self._fail(str(error))
        except (ValueError, RecursionError) as error:
            if self._number > 1 and line and not line.endswith(b"\n"):
                self._fail("the export was cut short within this line")
            self._fail(f"this is no JSON: {error}")
        if not isinstance(plain, dict):
            self._fail("expected an object")
        return plain

    def _take_line(self, plain: dict[str, Any]) -> bool:
        """Take one line. Return whether it is the last one."""
        if self._number == 1:
            _check_header(plain)
            return False
        kind = _present(plain, "kind")
        del plain["kind"]
        if kind == "end":
            _only(plain, "lines")
            if _whole(plain, "lines") != self._number:
                raise ValueError(f"the export has {plain['lines']} lines, and this is line {self._number}")
            return True
        take = self._take.get(kind) if isinstance(kind, str) else None
        if take is None:
            raise ValueError(f"kind {kind!r} is not known" if isinstance(kind, str) else "kind: expected a string")
        take(plain)
        return False

    def _take_epochs(self, plain: dict[str, Any]) -> None:
        _only(plain, "floor")
        self._contents.epoch_floor = max(self._contents.epoch_floor, _epoch(plain, "floor"))

    def _take_session(self, plain: dict[str, Any]) -> None:
        _only(plain, "epoch", "session")
        session = from_plain(StoredSession, _present(plain, "session"))
        if session.client_id in self._session_epochs:
            raise ValueError(f"session.client_id: {session.client_id!r} has a session already")
        if session.client_id.startswith(CLIENT_ID_PREFIX) and session.client_id.count("/") < 3:
            text = f"{session.client_id!r} is no outbox's: expected {CLIENT_ID_PREFIX}<node>/<plugin>/<name>"
            raise ValueError(f"session.client_id: {text}")
        epoch = _epoch(plain, "epoch")
        self._session_epochs[session.client_id] = epoch
        self._contents.sessions.append(OpenSession(epoch, session))

    def _take_queue(self, plain: dict[str, Any]) -> None:
        _only(plain, "client_id", "epoch", "last_sequence", "inbound", "pending")
        client_id = _text(plain, "client_id")
        if client_id in self._contents.queues:
            raise ValueError(f"client_id: {client_id!r} has a queue already")
        inbound = _present(plain, "inbound")
        if not isinstance(inbound, list):
            raise ValueError("inbound: expected a list")
        seen: set[int] = set()
        for number, packet_id in enumerate(inbound):
            if not isinstance(packet_id, int) or isinstance(packet_id, bool) or not 0 < packet_id < 0x10000:
                raise ValueError(f"inbound[{number}]: expected a whole number from 1 to 65535")
            if packet_id in seen:
                raise ValueError(f"inbound[{number}]: {packet_id} is there already")
            seen.add(packet_id)
        pending = _pending_of(plain.get("pending", []), seen)
        queue = ExportedQueue(_epoch(plain, "epoch"), _whole(plain, "last_sequence"), inbound, pending)
        self._contents.queues[client_id] = queue
        self._queue_lines[client_id] = self._number

    def _take_inflight(self, plain: dict[str, Any]) -> None:
        client_id, queue = self._queue_of(plain)
        held = from_plain(InflightEntry, plain, "inflight")
        self._add(queue, held.sequence, held.entry)
        packet_ids = self._packet_ids.setdefault(client_id, set())
        if held.packet_id in packet_ids:
            raise ValueError(f"inflight.packet_id: {held.packet_id} is in flight already")
        packet_ids.add(held.packet_id)
        queue.inflight[held.sequence] = held

    def _take_queued(self, plain: dict[str, Any]) -> None:
        _, queue = self._queue_of(plain)
        entry = from_plain(Entry, plain, "queued")
        self._add(queue, entry.sequence, entry)

    def _take_completed(self, plain: dict[str, Any]) -> None:
        _, queue = self._queue_of(plain)
        _only(plain, "messages")
        listed = _present(plain, "messages")
        if not isinstance(listed, list) or len(queue.completed) + len(listed) > MOST_COMPLETED:
            raise ValueError(f"messages: expected a list, of {MOST_COMPLETED} at most")
        for number, each in enumerate(listed):
            if not (
                isinstance(each, list) and len(each) == 2 and all(type(part) is int and part >= 0 for part in each)
            ):
                raise ValueError(f"messages[{number}]: expected [node, counter]")
            queue.completed.append(MessageId(*each))

    def _queue_of(self, plain: dict[str, Any]) -> tuple[str, ExportedQueue]:
        client_id = _text(plain, "client_id")
        del plain["client_id"]
        queue = self._contents.queues.get(client_id)
        if queue is None:
            raise ValueError(f"client_id: no line of kind queue speaks of {client_id!r} before this one")
        return client_id, queue

    def _add(self, queue: ExportedQueue, sequence: int, entry: Entry | None) -> None:
        if not 0 < sequence <= queue.last_sequence:
            raise ValueError(f"sequence: expected a whole number from 1 to last_sequence, {queue.last_sequence}")
        if sequence in queue.entries:
            raise ValueError(f"sequence: {sequence} is there already")
        if entry is not None:
            # Many queues hold the same message. Sharing it keeps the memory it takes as small as it was.
            message = self._messages.setdefault(entry.message.id, entry.message)
            if message == entry.message:
                shared = entry.shared_filter
                entry = Entry(sequence, message, entry.qos, entry.retain, entry.identifiers, shared)
        queue.entries[sequence] = entry

    def _take_retained(self, plain: dict[str, Any]) -> None:
        write = from_plain(RetainWrite, plain, "retained")
        topic = write.message.topic
        if topic in self._retained_topics:
            raise ValueError(f"retained.message.topic: {topic!r} has a retained message already")
        self._retained_topics.add(topic)
        self._contents.retained.append(write)

    def _take_event(self, plain: dict[str, Any]) -> None:
        recorded = from_plain(Recorded, plain, "event")
        events = self._contents.events
        if events and recorded.offset <= events[-1].offset:
            raise ValueError(f"event.offset: expected more than {events[-1].offset}, the offset before")
        events.append(recorded)

    def _take_consumer(self, plain: dict[str, Any]) -> None:
        _only(plain, "group", "offset", "held")
        group = _text(plain, "group")
        if group in self._contents.consumer_offsets:
            raise ValueError(f"group: {group!r} has an offset already")
        self._contents.consumer_offsets[group] = _whole(plain, "offset", -1)
        held = plain.get("held", False)
        if not isinstance(held, bool):
            raise ValueError("held: expected true or false")
        if held:
            self._contents.holding_groups.append(group)


def _restore_queue(client_id: str, queue: ExportedQueue) -> Iterator[QueueWrite]:
    epoch, last = queue.epoch, queue.last_sequence
    for sequence, entry in sorted(queue.entries.items()):
        yield Append(client_id, epoch, Entry(sequence, _REMOVED, 2) if entry is None else entry)
    if last not in queue.entries:
        yield from set_last_sequence(client_id, epoch, last)
    for held in queue.inflight.values():
        yield Send(client_id, epoch, held.sequence, held.packet_id)
        if held.entry is None:
            yield Release(client_id, epoch, held.sequence)
    for packet_id in queue.inbound:
        yield InboundOpen(client_id, epoch, packet_id)
    for packet_id, message in queue.pending.items():
        yield InboundOpen(client_id, epoch, packet_id, message)


def session_line(epoch: int, session: StoredSession) -> dict[str, Any]:
    """Return the line of a session."""
    return {"kind": "session", "epoch": epoch, "session": to_plain(session)}


def queue_lines(client_id: str, epoch: int, state: QueueState) -> Iterator[dict[str, Any]]:
    """Yield the lines of a client's queue and of its messages in flight; :func:`queued_lines` follow."""
    line = {
        "kind": "queue",
        "client_id": client_id,
        "epoch": epoch,
        "last_sequence": state.last_sequence,
        "inbound": sorted(state.inbound),
    }
    if state.pending:
        line["pending"] = [[packet_id, *message] for packet_id, message in sorted(state.pending.items())]
    yield line
    for held in state.inflight:
        yield {"kind": "inflight", "client_id": client_id, **to_plain(held)}


def queued_lines(client_id: str, entries: Iterable[Entry]) -> Iterator[dict[str, Any]]:
    """Yield the lines of messages that are queued."""
    return ({"kind": "queued", "client_id": client_id, **to_plain(entry)} for entry in entries)


def completed_line(client_id: str, ids: Iterable[MessageId]) -> dict[str, Any]:
    """Return the line of a client's QoS 2 messages that are known though their entries are gone."""
    return {"kind": "completed", "client_id": client_id, "messages": [list(each) for each in ids]}


def line_text(line: Mapping[str, Any]) -> str:
    """Return a line as text, in ASCII and without its end."""
    return json.dumps(line, separators=(",", ":"), allow_nan=False)


def retained_line(write: RetainWrite) -> dict[str, Any]:
    """Return the line of a retained message."""
    return {"kind": "retained", **to_plain(write)}


def consumer_line(group: str, offset: int, held: bool = False) -> dict[str, Any]:
    """Return the line of a consumer group of the event log; ``held`` if events are held for it."""
    return {"kind": "consumer", "group": group, "offset": offset, **({"held": True} if held else {})}


def _pending_of(listed: Any, inbound: Set[int]) -> dict[int, MessageId]:
    """Return the pending identifiers of a queue, each written as identifier, node and counter."""
    if not isinstance(listed, list):
        raise ValueError("pending: expected a list")
    found: dict[int, MessageId] = {}
    for number, each in enumerate(listed):
        whole = isinstance(each, list) and len(each) == 3 and all(type(value) is int for value in each)
        if not whole or not 0 < each[0] < 0x10000 or each[1] < 0 or each[2] < 0:
            raise ValueError(f"pending[{number}]: expected [packet identifier, node, counter]")
        if each[0] in found or each[0] in inbound:
            raise ValueError(f"pending[{number}]: {each[0]} is there already")
        found[each[0]] = MessageId(each[1], each[2])
    return found


class _DuplicateKey(Exception):
    """An object has a key twice."""


def _unique_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        raise _DuplicateKey(f"{next(key for key in keys if keys.count(key) > 1)} is there twice")
    return found


def _not_a_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")


def _check_header(plain: Mapping[str, Any]) -> None:
    version = plain.get(HEADER)
    if plain.keys() != {HEADER} or not isinstance(version, int) or isinstance(version, bool):
        raise ValueError(f'this is no export of a kinmqtt store: it would begin with {{"{HEADER}": {FORMAT}}}')
    if version != FORMAT:
        raise ValueError(f"this export has format {version}, this kinmqtt knows format {FORMAT}")


def _only(plain: Mapping[str, Any], *names: str) -> None:
    for name in plain:
        if name not in names:
            raise ValueError(f"{name} is no known field")


def _present(plain: Mapping[str, Any], name: str) -> Any:
    if name not in plain:
        raise ValueError(f"{name} is missing")
    return plain[name]


def _text(plain: Mapping[str, Any], name: str) -> str:
    value = _present(plain, name)
    if not isinstance(value, str):
        raise ValueError(f"{name}: expected a string")
    return value


def _epoch(plain: dict[str, Any], key: str) -> int:
    """Returns the epoch under a key."""
    epoch = _whole(plain, key)
    if epoch > MAX_EPOCH:
        raise ValueError(f"{key}: expected a whole number up to {MAX_EPOCH}, which leaves room for later epochs")
    return epoch


def _whole(plain: Mapping[str, Any], name: str, lowest: int = 0) -> int:
    value = _present(plain, name)
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value < _OUT_OF_RANGE:
        raise ValueError(f"{name}: expected a whole number not below {lowest}")
    return value
