"""``kinmqtt store``: look at, copy and tidy the data directory of a broker that does not run.

An export says what stores hold in the SPI's own terms (:mod:`kinmqtt_spi.plain`) and nothing of how the embedded
store keeps it, so that another plugin's stores can be filled from it. ``docs/store.md`` has the format.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NoReturn

from attrs import define, field

from kinmqtt.builtins.embedded import segment
from kinmqtt.builtins.embedded.directory import DataDirectory, DirectoryInUse, refuse_without_rights
from kinmqtt.builtins.embedded.image import everything
from kinmqtt.builtins.embedded.records import Group, pack
from kinmqtt.builtins.embedded.segment import (
    PATTERN,
    WAYS_ON,
    DataDirectoryError,
    Segment,
    UnknownStore,
    give_to_owner_of,
)
from kinmqtt.builtins.embedded.stores import Ledger
from kinmqtt_spi.errors import SpiError
from kinmqtt_spi.plain import from_plain, to_plain
from kinmqtt_spi.reference.session import MemorySessionStore
from kinmqtt_spi.services.event import Recorded
from kinmqtt_spi.services.queue import (
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

SLICE_BYTES: Final = 8 << 20
"""Of what is told anew while nobody waits: much larger than a broker's, for a message in many queues is told once in
each."""

FORMAT: Final = 1
"""The version of the export's format, which its first line tells."""

_HEADER: Final = "kinmqtt_store"
_PAGE: Final = 1000
_PARTIAL: Final = "journal-import"
"""Where an import writes until all of it is there. The name is the store's own: a start is not kept from it."""

_GONE: Final = Message("released")
"""Stands for a message that is gone, in the writes that bring about what it left."""

_OUT_OF_RANGE: Final = 1 << 63


class StoreCommandError(SpiError):
    """The command can't do as asked; the text says why, in one line."""


def run(action: str, path: Path, *, skip_damaged: bool = False) -> int:
    """Carry out ``kinmqtt store ACTION DIRECTORY``; answers the exit status, 0 or 1.

    ``skip_damaged`` is for ``export``. What keeps a command from its work becomes one line on standard error. Raises
    ``BrokenPipeError`` where nobody reads standard output any more.
    """
    commands: Mapping[str, Callable[[], int]] = {
        "check": lambda: _check(path),
        "export": lambda: _export(path, skip_damaged),
        "import": lambda: _import(path, sys.stdin.buffer),
        "compact": lambda: _compact(path),
    }
    # Python has none of a stream that was closed before it began.
    if sys.stdout is None or (action == "import" and sys.stdin is None):
        return _complain(f"standard {'output' if sys.stdout is None else 'input'} is closed")
    try:
        status = commands[action]()
        # A pipe that is closed must be seen here, where the caller takes care of it, and not at the very end.
        with _speaking_of_output():
            sys.stdout.flush()
    except BrokenPipeError:
        raise
    except DirectoryInUse as error:
        return _complain(
            f"{path} is in use by process {error.process}: stop the broker (process {error.process}) first"
        )
    except (DataDirectoryError, StoreCommandError) as error:
        return _complain(str(error))
    except OSError as error:
        return _complain(f"{path if error.filename is None else error.filename}: {error.strerror or error}")
    except sqlite3.Error as error:
        return _complain(f"{path} can't be written to: {error}")
    return status


# The four commands


def _check(path: Path) -> int:
    size_bytes = _size_bytes(path) if _holds_something(path) else 0
    problems: list[str] = []
    with _taken(path) as directory:
        ledger = _read(directory, problems)
        segments = len(list(path.glob(PATTERN)))
    totals = ledger.queues.totals()
    counts = {
        "sessions": ledger.sessions.count(),
        "subscriptions": sum(len(session.subscriptions) for _, session in _sessions(ledger)),
        "queued messages": totals.queued,
        "messages in flight": totals.inflight,
        "inbound QoS 2 identifiers": totals.inbound,
        "retained messages": ledger.retained.count(),
        "events": len(ledger.events.all()),
        "segments": segments,
        "bytes": size_bytes,
    }
    for name, count in counts.items():
        _say(f"{name}: {count}")
    if problems:
        with _speaking_of_output():
            sys.stdout.flush()
        return _complain(*problems, WAYS_ON)
    _say("the store is sound" if segments else "the store is empty: a broker used the directory and kept nothing")
    return 0


def _export(path: Path, skip_damaged: bool) -> int:
    _holds_something(path)
    problems: list[str] | None = [] if skip_damaged else None
    with _taken(path) as directory:
        ledger = _read(directory, problems)
    if problems:
        _complain(*(f"left out: {problem}" for problem in problems))
        if not directory.groups:
            raise StoreCommandError(f"nothing of {path} could be saved")
        _complain(_summary(path, problems, directory.groups))
    count = 0
    try:
        for line in _lines(ledger):
            _say(_as_text(line))
            count += 1
    except ValueError as error:
        raise StoreCommandError(f"{path} holds what can't be exported: {error}") from error
    # Without this line an export that was cut short would pass for a smaller one.
    _say(_as_text({"kind": "end", "lines": count + 1}))
    return 0


def _import(path: Path, lines: Iterable[bytes]) -> int:
    _refuse_a_store(path)
    ledger = _Reader().read(lines)
    new = [each for each in (path, *path.parents) if not each.exists()]
    new_lock = not (path / "lock").exists()
    directory = DataDirectory(path)
    try:
        directory.open()
    except BaseException:
        _remove_folders(new)
        raise
    done = False
    partial = path / _PARTIAL
    try:
        _refuse_a_store(path)
        # What a process that was killed has left of an import.
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(mode=0o700)
        give_to_owner_of(path, partial)
        written = _write(partial, 1, ledger)
        written.rename(path / written.name)
        partial.rmdir()
        done = True
        for folder in (path, *(each.parent for each in new)):
            _sync(folder)
    finally:
        if not done:
            shutil.rmtree(partial, ignore_errors=True)
            if new_lock:
                (path / "lock").unlink(missing_ok=True)
        directory.close()
        if not done:
            _remove_folders(new)
    totals = ledger.queues.totals()
    _say(
        f"{ledger.sessions.count()} sessions, {ledger.retained.count()} retained messages and "
        f"{totals.queued + totals.inflight} queued ones are in {path}"
    )
    return 0


def _compact(path: Path) -> int:
    before = _size_bytes(path)
    if not _holds_something(path):
        _say("the store is empty: a broker used the directory and kept nothing")
        return 0
    with _taken(path) as directory:
        ledger = _read(directory)
        # The new segment says at its end that it is the first: until then those before it count, and from then on
        # they don't. A store that was read twice in part is the same store: each part tells how things stand.
        directory.tidy()
        _write(path, directory.next_number(), ledger)
        directory.tidy()
    _say(f"bytes before: {before}")
    _say(f"bytes after: {_size_bytes(path)}")
    return 0


# The directory


def _holds_something(path: Path) -> bool:
    """Whether there are segments; a broker that was stopped before it kept anything leaves none.

    Raises :class:`StoreCommandError` where no broker has used the directory.
    """
    if path.exists() and not path.is_dir():
        raise StoreCommandError(f"{path} is a file, not a directory")
    # A relative name is easily said in the wrong place.
    named = f"{path}" if path.is_absolute() else f"{path} ({path.absolute()})"
    where = "the broker's log says where it is: state is kept in …"
    if not path.exists():
        raise StoreCommandError(f"{named} is no directory; {where}")
    refuse_without_rights(path)
    if any(path.glob("journal-*.sqlite3*")):
        return True
    if (path / _PARTIAL).is_dir():
        raise StoreCommandError(f"{named} holds an import that did not come to its end: import again")
    if not (path / "lock").is_file():
        raise StoreCommandError(f"{named} holds no kinmqtt store; {where}")
    return False


def _refuse_a_store(path: Path) -> None:
    if path.is_dir() and any(path.glob("journal-*.sqlite3*")):
        raise StoreCommandError(f"{path} holds a store already: name a new directory, or an empty one")


@contextmanager
def _taken(path: Path) -> Iterator[DataDirectory]:
    """The directory, which nobody else uses meanwhile."""
    directory = DataDirectory(path)
    directory.open(create=False)
    try:
        yield directory
    finally:
        directory.close()


def _read(directory: DataDirectory, problems: list[str] | None = None) -> Ledger:
    """What the directory holds, which stays as it is.

    With a list for ``problems`` as much as can be read, and there what can't be. Raises
    :class:`~kinmqtt.builtins.embedded.segment.UnknownStore` in any case where it is a newer version's.
    """
    ledger = _new_ledger()
    try:
        image = directory.load(problems)
    except UnknownStore:
        raise
    except DataDirectoryError as error:
        if problems is None:
            raise
        problems.append(str(error))
    else:
        ledger.restore(image)
    # A broker starts with this. Who copies a store is not given less than there was without a word.
    if directory.losses and problems is None:
        raise DataDirectoryError(f"{directory.losses[0]}; {WAYS_ON}")
    if problems is not None:
        problems += directory.losses
        problems[:] = [problem.removesuffix(f"; {WAYS_ON}") for problem in problems]
    return ledger


def _summary(path: Path, problems: Sequence[str], rows: int) -> str:
    """How bad it is, in one line."""
    damaged = set(re.findall(r"journal-\d+\.sqlite3", " ".join(problems)))
    segments = {file.name for file in path.glob(PATTERN)} | damaged
    return f"saved: {rows} rows; something was left out of {len(damaged)} of {len(segments)} segments"


def _new_ledger() -> Ledger:
    # Its event log would call consumers by the broker's clock; here nobody consumes.
    return Ledger(SimpleNamespace(clock=SimpleNamespace(later=lambda delay_s, call: None)))


def _write(folder: Path, number: int, ledger: Ledger) -> Path:
    """Write everything into one segment, the first that counts; what goes wrong leaves none behind."""
    try:
        return _written(folder, number, ledger)
    except (sqlite3.Error, OSError) as error:
        if "full" not in str(error) and getattr(error, "errno", None) not in (errno.ENOSPC, errno.EDQUOT):
            raise
        # Once in the write-ahead log, and once in the segment that it becomes a part of.
        needed = 2 * ledger.live_bytes + _SMALLEST_BYTES
        raise StoreCommandError(
            f"{folder} has no room: this needs about {needed} bytes there, and leaves the store as it was"
        ) from error


_SMALLEST_BYTES: Final = 64 << 10


def _written(folder: Path, number: int, ledger: Ledger) -> Path:
    written = Segment(folder, number)
    try:
        for group in _slices(ledger):
            written.append(pack(group))
        written.begin_with(number)
    except BaseException:
        written.abandon()
        segment.remove(written.path)
        raise
    try:
        # With that everything is on the disk, and only then may a caller remove what it replaces.
        written.seal()
    except BaseException:
        segment.remove(written.path)
        raise
    return written.path


def _slices(ledger: Ledger) -> Iterator[Group]:
    yield ledger.standing()
    counted = Group()
    for client_id, epoch, state in _queues(ledger):
        last = state.last_sequence
        queued = [entry.sequence for entry in ledger.queues.read(client_id, last - 1, 1)]
        if last not in queued and all(held.sequence != last for held in state.inflight):
            counted.queue += _count_on(client_id, epoch, last)
    if counted:
        yield counted
    yield from everything(ledger.sessions, ledger.queues, ledger.retained, SLICE_BYTES)


def _queues(ledger: Ledger) -> Iterator[tuple[str, int, QueueState]]:
    """The queues that there is something to say of, with the epochs they are held under."""
    epochs = {session.client_id: epoch for epoch, session in _sessions(ledger)}
    for client_id in dict.fromkeys([*epochs, *ledger.queues.clients()]):
        state = ledger.queues.load(client_id)
        if state != QueueState():
            yield client_id, max(ledger.queues.standing(client_id, None, 0).epoch, epochs.get(client_id, 0)), state


def _count_on(client_id: str, epoch: int, last: int) -> list[QueueWrite]:
    """The writes that have a queue know its last number where that entry is gone."""
    return [Append(client_id, epoch, Entry(last, _GONE, 2)), Remove(client_id, epoch, last)] if last else []


def _size_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.glob("journal-*") if file.is_file())


def _remove_folders(folders: Iterable[Path]) -> None:
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            return  # There is something else in it by now.


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Writing lines


def _as_text(line: Mapping[str, Any]) -> str:
    # In ASCII, whatever standard output takes.
    return json.dumps(line, separators=(",", ":"), allow_nan=False)


def _lines(ledger: Ledger) -> Iterator[dict[str, Any]]:
    """Everything in the order of the format; the last line is the caller's."""
    yield {_HEADER: FORMAT}
    yield {"kind": "epochs", "floor": ledger.sessions.set_aside}
    for epoch, session in _sessions(ledger):
        yield {"kind": "session", "epoch": epoch, "session": to_plain(session)}
    for client_id, epoch, state in _queues(ledger):
        yield from _queue_lines(ledger, client_id, epoch, state)
    cursor: object = None
    while True:
        contents = ledger.retained.iterate(cursor, _PAGE)
        yield from ({"kind": "retained", **to_plain(write)} for write in contents.writes)
        cursor = contents.cursor
        if cursor is None:
            break
    yield from ({"kind": "event", **to_plain(recorded)} for recorded in ledger.events.all())
    yield from ({"kind": "consumer", "group": group, "offset": at} for group, at in ledger.events.commits().items())


def _sessions(ledger: Ledger) -> Iterator[tuple[int, StoredSession]]:
    cursor: object = None
    while True:
        page = ledger.sessions.iterate(cursor, _PAGE)
        yield from page.sessions
        cursor = page.cursor
        if cursor is None:
            return


def _queue_lines(ledger: Ledger, client_id: str, epoch: int, state: QueueState) -> Iterator[dict[str, Any]]:
    yield {
        "kind": "queue",
        "client_id": client_id,
        "epoch": epoch,
        "last_sequence": state.last_sequence,
        "inbound": sorted(state.inbound),
    }
    for held in state.inflight:
        yield {"kind": "inflight", "client_id": client_id, **to_plain(held)}
    after = 0
    while page := ledger.queues.read(client_id, after, _PAGE):
        yield from ({"kind": "queued", "client_id": client_id, **to_plain(entry)} for entry in page)
        after = page[-1].sequence


# Reading lines


@define(slots=True)
class _Queue:
    """What the lines say of one client's queue."""

    epoch: int
    last_sequence: int
    inbound: list[int]
    entries: dict[int, Entry | None] = field(factory=dict)
    inflight: dict[int, InflightEntry] = field(factory=dict)
    """In the order of sending."""
    packet_ids: set[int] = field(factory=set)


class _Reader:
    """Reads an export line by line; what is wrong with a line is told of with its number."""

    def __init__(self) -> None:
        self._number = 0
        self._floor = 0
        self._sessions: dict[str, OpenSession] = {}
        self._queues: dict[str, _Queue] = {}
        self._retained: dict[str, RetainWrite] = {}
        self._events: list[Recorded] = []
        self._offsets: dict[str, int] = {}
        self._messages: dict[MessageId, Message] = {}
        self._take: Final[Mapping[str, Callable[[dict[str, Any]], None]]] = {
            "epochs": self._take_epochs,
            "session": self._take_session,
            "queue": self._take_queue,
            "inflight": self._take_inflight,
            "queued": self._take_queued,
            "retained": self._take_retained,
            "event": self._take_event,
            "consumer": self._take_consumer,
        }

    def read(self, lines: Iterable[bytes]) -> Ledger:
        """What the lines say. Raises :class:`StoreCommandError`."""
        ended = False
        for number, line in enumerate(lines, 1):
            self._number = number
            if ended:
                self._wrong("something comes after the last line, of kind end")
            plain = self._parsed(line)
            try:
                ended = self._take_line(plain)
            except ValueError as error:
                self._wrong(str(error))
        if not ended:
            self._number += 1
            self._wrong(
                "the export ends here, without a line of kind end: it was cut short"
                if self._number > 1
                else f'there is nothing to read: an export begins with {{"{_HEADER}": {FORMAT}}}'
            )
        return self._ledger()

    def _wrong(self, text: str) -> NoReturn:
        raise StoreCommandError(f"line {self._number}: {text}") from None

    def _parsed(self, line: bytes) -> dict[str, Any]:
        try:
            plain = json.loads(line.decode("utf-8"), parse_constant=_no_number, object_pairs_hook=_each_once)
        except _Twice as error:
            self._wrong(str(error))
        except (ValueError, RecursionError) as error:
            if self._number > 1 and line and not line.endswith(b"\n"):
                self._wrong("the export was cut short within this line")
            self._wrong(f"this is no JSON: {error}")
        if not isinstance(plain, dict):
            self._wrong("expected an object")
        return plain

    def _take_line(self, plain: dict[str, Any]) -> bool:
        """Take a line; answers whether it is the last one."""
        if self._number == 1:
            version = plain.get(_HEADER)
            if plain.keys() != {_HEADER} or not isinstance(version, int) or isinstance(version, bool):
                raise ValueError(
                    f'this is no export of a kinmqtt store: it would begin with {{"{_HEADER}": {FORMAT}}}'
                )
            if version != FORMAT:
                raise ValueError(f"this export has format {version}, this kinmqtt knows format {FORMAT}")
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
        self._floor = max(self._floor, _whole(plain, "floor"))

    def _take_session(self, plain: dict[str, Any]) -> None:
        _only(plain, "epoch", "session")
        session = from_plain(StoredSession, _present(plain, "session"))
        if session.client_id in self._sessions:
            raise ValueError(f"session.client_id: {session.client_id!r} has a session already")
        self._sessions[session.client_id] = OpenSession(_whole(plain, "epoch"), session)

    def _take_queue(self, plain: dict[str, Any]) -> None:
        _only(plain, "client_id", "epoch", "last_sequence", "inbound")
        client_id = _text(plain, "client_id")
        if client_id in self._queues:
            raise ValueError(f"client_id: {client_id!r} has a queue already")
        inbound = _present(plain, "inbound")
        if not isinstance(inbound, list):
            raise ValueError("inbound: expected a list")
        for number, packet_id in enumerate(inbound):
            if not isinstance(packet_id, int) or isinstance(packet_id, bool) or not 0 < packet_id < 0x10000:
                raise ValueError(f"inbound[{number}]: expected a whole number from 1 to 65535")
        self._queues[client_id] = _Queue(_whole(plain, "epoch"), _whole(plain, "last_sequence"), inbound)

    def _take_inflight(self, plain: dict[str, Any]) -> None:
        queue = self._queue_of(plain)
        held = from_plain(InflightEntry, plain, "inflight")
        self._place(queue, held.sequence, held.entry)
        if held.packet_id in queue.packet_ids:
            raise ValueError(f"inflight.packet_id: {held.packet_id} is in flight already")
        queue.packet_ids.add(held.packet_id)
        queue.inflight[held.sequence] = held

    def _take_queued(self, plain: dict[str, Any]) -> None:
        queue = self._queue_of(plain)
        entry = from_plain(Entry, plain, "queued")
        self._place(queue, entry.sequence, entry)

    def _queue_of(self, plain: dict[str, Any]) -> _Queue:
        client_id = _text(plain, "client_id")
        del plain["client_id"]
        queue = self._queues.get(client_id)
        if queue is None:
            raise ValueError(f"client_id: no line of kind queue speaks of {client_id!r} before this one")
        return queue

    def _place(self, queue: _Queue, sequence: int, entry: Entry | None) -> None:
        if not 0 < sequence <= queue.last_sequence:
            raise ValueError(f"sequence: expected a whole number from 1 to last_sequence, {queue.last_sequence}")
        if sequence in queue.entries:
            raise ValueError(f"sequence: {sequence} is there already")
        if entry is not None:
            # Many queues hold the same message; it takes its memory once, as before.
            message = self._messages.setdefault(entry.message.id, entry.message)
            if message == entry.message:
                shared = entry.shared_filter
                entry = Entry(sequence, message, entry.qos, entry.retain, entry.identifiers, shared)
        queue.entries[sequence] = entry

    def _take_retained(self, plain: dict[str, Any]) -> None:
        write = from_plain(RetainWrite, plain, "retained")
        topic = write.message.topic
        if topic in self._retained:
            raise ValueError(f"retained.message.topic: {topic!r} has a retained message already")
        self._retained[topic] = write

    def _take_event(self, plain: dict[str, Any]) -> None:
        recorded = from_plain(Recorded, plain, "event")
        if self._events and recorded.offset <= self._events[-1].offset:
            raise ValueError(f"event.offset: expected more than {self._events[-1].offset}, the offset before")
        self._events.append(recorded)

    def _take_consumer(self, plain: dict[str, Any]) -> None:
        _only(plain, "group", "offset")
        group = _text(plain, "group")
        if group in self._offsets:
            raise ValueError(f"group: {group!r} has an offset already")
        self._offsets[group] = _whole(plain, "offset", -1)

    def _ledger(self) -> Ledger:
        """What was read, in stores."""
        ledger = _new_ledger()
        sessions = MemorySessionStore()
        sessions.apply(list(self._sessions.values()))
        ledger.sessions.begin_with(sessions, self._floor)
        for client_id, queue in self._queues.items():
            ledger.queues.carry_out(list(_bring_about(client_id, queue)))
        ledger.retained.carry_out(list(self._retained.values()))
        ledger.events.go_on_from(self._events, self._offsets)
        return ledger


def _bring_about(client_id: str, queue: _Queue) -> Iterator[QueueWrite]:
    """The writes that make an empty queue hold what was read of it."""
    epoch, last = queue.epoch, queue.last_sequence
    for sequence, entry in sorted(queue.entries.items()):
        yield Append(client_id, epoch, Entry(sequence, _GONE, 2) if entry is None else entry)
    if last not in queue.entries:
        yield from _count_on(client_id, epoch, last)
    for held in queue.inflight.values():
        yield Send(client_id, epoch, held.sequence, held.packet_id)
        if held.entry is None:
            yield Release(client_id, epoch, held.sequence)
    for packet_id in queue.inbound:
        yield InboundOpen(client_id, epoch, packet_id)


class _Twice(Exception):
    """An object has a key twice."""


def _each_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        raise _Twice(f"{next(key for key in keys if keys.count(key) > 1)} is there twice")
    return found


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")


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


def _whole(plain: Mapping[str, Any], name: str, lowest: int = 0) -> int:
    value = _present(plain, name)
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value < _OUT_OF_RANGE:
        raise ValueError(f"{name}: expected a whole number not below {lowest}")
    return value


def _say(line: str) -> None:
    with _speaking_of_output():
        print(line)


@contextmanager
def _speaking_of_output() -> Iterator[None]:
    """What standard output can't take has nothing to do with the store."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        # What Python still has of it must not be tried again at the very end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise StoreCommandError(f"standard output: {error.strerror or error}") from error


def _complain(*lines: str) -> int:
    if sys.stderr is not None:
        for line in lines:
            print(f"kinmqtt: {line}", file=sys.stderr)
    return 1
