"""``kinmqtt store``: check, export, import or compact the data directory of a broker that is not running.

An export describes the stores' contents in terms of the SPI (:mod:`kinmqtt_spi.plain`), independent of the embedded
store's format, so that it can be imported into another plugin's stores. ``docs/store.md`` has the format.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from kinmqtt.builtins.embedded import segment
from kinmqtt.builtins.embedded.directory import DataDirectory, DirectoryInUse, refuse_without_rights
from kinmqtt.builtins.embedded.image import everything
from kinmqtt.builtins.embedded.records import CommitGroup, pack
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
from kinmqtt_spi.export import (
    FORMAT,
    HEADER,
    Contents,
    ExportError,
    consumer_line,
    line_text,
    queue_lines,
    queued_lines,
    read_export,
    retained_line,
    session_line,
    set_last_sequence,
)
from kinmqtt_spi.files import sync_folder
from kinmqtt_spi.memory.session import MemorySessionStore
from kinmqtt_spi.plain import to_plain
from kinmqtt_spi.services.event import HoldBounds
from kinmqtt_spi.services.queue import QueueState
from kinmqtt_spi.services.session import StoredSession

SLICE_BYTES: Final = 8 << 20
"""Size of a snapshot's slices. Much larger than a running broker's, because a message in many queues is written once
in each slice."""

_PAGE: Final = 1000
_PARTIAL: Final = "journal-import"
"""The folder that an import writes to until it is complete. The store knows the name, so a broker can still start."""


class StoreCommandError(SpiError):
    """The command failed; the text says why, in one line."""


def run(action: str, path: Path, *, skip_damaged: bool = False) -> int:
    """Run ``kinmqtt store ACTION DIRECTORY``; return the exit status, 0 or 1.

    ``skip_damaged`` is for ``export``. Errors become one line on standard error. Raises ``BrokenPipeError`` if the
    reader of standard output has closed it.
    """
    commands: Mapping[str, Callable[[], int]] = {
        "check": lambda: _check(path),
        "export": lambda: _export(path, skip_damaged),
        "import": lambda: _import(path, sys.stdin.buffer),
        "compact": lambda: _compact(path),
    }
    # Python sets a standard stream to None if it was closed before the start.
    if sys.stdout is None or (action == "import" and sys.stdin is None):
        return _complain(f"standard {'output' if sys.stdout is None else 'input'} is closed")
    try:
        status = commands[action]()
        # Flush here, so that the caller can handle a closed pipe, instead of at the interpreter's exit.
        with _speaking_of_output():
            sys.stdout.flush()
    except BrokenPipeError:
        raise
    except DirectoryInUse as error:
        return _complain(f"{path} is in use by {error.holder}: stop the broker ({error.holder}) first")
    except (DataDirectoryError, ExportError, StoreCommandError) as error:
        return _complain(str(error))
    except OSError as error:
        return _complain(f"{path if error.filename is None else error.filename}: {error.strerror or error}")
    except sqlite3.Error as error:
        return _complain(f"{path} can't be written to: {error}")
    return status


# The four actions


def _check(path: Path) -> int:
    size_bytes = _size_bytes(path) if holds_something(path) else 0
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
    _say("the store is sound" if segments else "the store is empty: a broker used the directory but stored nothing")
    return 0


def _export(path: Path, skip_damaged: bool) -> int:
    holds_something(path)
    problems: list[str] | None = [] if skip_damaged else None
    with _taken(path) as directory:
        ledger = _read(directory, problems)
    if problems:
        _complain(*(f"left out: {problem}" for problem in problems))
        if not directory.groups:
            raise StoreCommandError(f"nothing in {path} is readable")
        _complain(_summary(path, problems, directory.groups))
    count = 0
    try:
        for line in _lines(ledger):
            _say(line_text(line))
            count += 1
    except ValueError as error:
        raise StoreCommandError(f"{path} holds data that can't be exported: {error}") from error
    # The last line shows that the export is complete.
    _say(line_text({"kind": "end", "lines": count + 1}))
    return 0


def _import(path: Path, lines: Iterable[bytes]) -> int:
    _refuse_a_store(path)
    ledger = _ledger(read_export(lines))
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
        # Remove the remains of an import that was killed.
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(mode=0o700)
        give_to_owner_of(path, partial)
        written = _write(partial, 1, ledger)
        written.rename(path / written.name)
        partial.rmdir()
        done = True
        for folder in (path, *(each.parent for each in new)):
            sync_folder(folder)
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
    if not holds_something(path):
        _say("the store is empty: a broker used the directory but stored nothing")
        return 0
    with _taken(path) as directory:
        ledger = _read(directory)
        # The new segment's last record marks it as the first valid one. If the process dies before, the old segments
        # stay valid; a store that was read partly twice is the same, because each part describes the full state.
        directory.tidy()
        _write(path, directory.next_number(), ledger)
        directory.tidy()
    _say(f"bytes before: {before}")
    _say(f"bytes after: {_size_bytes(path)}")
    return 0


# The directory


def holds_something(path: Path) -> bool:
    """Tell whether there are segments; there are none if the broker stopped before it stored anything.

    Raises :class:`StoreCommandError` if no broker has used the directory.
    """
    if path.exists() and not path.is_dir():
        raise StoreCommandError(f"{path} is a file, not a directory")
    # Show the absolute path too, because a relative one may be used in the wrong folder.
    named = f"{path}" if path.is_absolute() else f"{path} ({path.absolute()})"
    where = "the broker's log says where it is: state is kept in …"
    if not path.exists():
        raise StoreCommandError(f"{named} is no directory; {where}")
    refuse_without_rights(path)
    if any(path.glob("journal-*.sqlite3*")):
        return True
    if (path / _PARTIAL).is_dir():
        raise StoreCommandError(f"{named} holds an incomplete import: import again")
    if not (path / "lock").is_file():
        raise StoreCommandError(f"{named} holds no kinmqtt store; {where}")
    return False


def _refuse_a_store(path: Path) -> None:
    if path.is_dir() and any(path.glob("journal-*.sqlite3*")):
        raise StoreCommandError(f"{path} holds a store already: name a new directory, or an empty one")


@contextmanager
def _taken(path: Path) -> Iterator[DataDirectory]:
    """Lock the directory for this process."""
    directory = DataDirectory(path)
    directory.open(create=False)
    try:
        yield directory
    finally:
        directory.close()


def _read(directory: DataDirectory, problems: list[str] | None = None) -> Ledger:
    """Load the directory's contents without changing it.

    With a list for ``problems``, load as much as possible and add each problem to it. Raises
    :class:`~kinmqtt.builtins.embedded.segment.UnknownStore` in any case if the store is of a newer version.
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
    # A broker starts with such losses. A copy must not be smaller than the original without a warning.
    if directory.losses and problems is None:
        raise DataDirectoryError(f"{directory.losses[0]}; {WAYS_ON}")
    if problems is not None:
        problems += directory.losses
        problems[:] = [problem.removesuffix(f"; {WAYS_ON}") for problem in problems]
    return ledger


def _summary(path: Path, problems: Sequence[str], rows: int) -> str:
    """Summarize the damage in one line."""
    damaged = set(re.findall(r"journal-\d+\.sqlite3", " ".join(problems)))
    segments = {file.name for file in path.glob(PATTERN)} | damaged
    return f"saved: {rows} rows; something was left out of {len(damaged)} of {len(segments)} segments"


def _new_ledger() -> Ledger:
    # The event log would call consumers by the broker's clock; here there are no consumers.
    ledger = Ledger(SimpleNamespace(clock=SimpleNamespace(later=lambda delay_s, call: None)))
    # The broker's settings bound what groups hold; here everything of the log is held.
    everything_held = HoldBounds(max_waiting=sys.maxsize, max_waiting_bytes=sys.maxsize)
    ledger.events.bound(everything_held, lambda count: None, lambda group: None)
    return ledger


def _ledger(contents: Contents) -> Ledger:
    """Put loaded contents into stores."""
    ledger = _new_ledger()
    sessions = MemorySessionStore()
    sessions.apply(contents.sessions)
    ledger.sessions.begin_with(sessions, contents.epoch_floor)
    for writes in contents.queue_writes():
        ledger.queues.carry_out(writes)
    ledger.retained.carry_out(contents.retained)
    ledger.events.restore(contents.events, contents.consumer_offsets, contents.holding_groups)
    return ledger


def _write(folder: Path, number: int, ledger: Ledger) -> Path:
    """Write everything into one segment, marked as the first valid one; on failure remove it."""
    try:
        return _written(folder, number, ledger)
    except (sqlite3.Error, OSError) as error:
        if "full" not in str(error) and getattr(error, "errno", None) not in (errno.ENOSPC, errno.EDQUOT):
            raise
        # Each write needs room in the write-ahead log and again in the segment.
        needed = 2 * ledger.live_bytes + _SMALLEST_BYTES
        raise StoreCommandError(
            f"{folder} has too little space: this needs about {needed} bytes there; the store is unchanged"
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
        # This syncs to the disk; only then may a caller remove the segments that this one replaces.
        written.seal()
    except BaseException:
        segment.remove(written.path)
        raise
    return written.path


def _slices(ledger: Ledger) -> Iterator[CommitGroup]:
    yield ledger.standing()
    yield from ledger.held_events()
    counted = CommitGroup()
    for client_id, epoch, state in _queues(ledger):
        last = state.last_sequence
        queued = [entry.sequence for entry in ledger.queues.read(client_id, last - 1, 1)]
        if last not in queued and all(held.sequence != last for held in state.inflight):
            counted.queue += set_last_sequence(client_id, epoch, last)
    if counted:
        yield counted
    yield from everything(ledger.sessions, ledger.queues, ledger.retained, SLICE_BYTES)


def _queues(ledger: Ledger) -> Iterator[tuple[str, int, QueueState]]:
    """Yield the queues that are not empty or have a state, each with its epoch."""
    epochs = {session.client_id: epoch for epoch, session in _sessions(ledger)}
    for client_id in dict.fromkeys([*epochs, *ledger.queues.clients()]):
        state = ledger.queues.load(client_id)
        if state != QueueState():
            yield client_id, max(ledger.queues.snapshot(client_id, None, 0).epoch, epochs.get(client_id, 0)), state


def _size_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.glob("journal-*") if file.is_file())


def _remove_folders(folders: Iterable[Path]) -> None:
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            return  # Not empty: other files have been created meanwhile.


# Writing lines


def _lines(ledger: Ledger) -> Iterator[dict[str, Any]]:
    """Yield all lines in the order of the format; the caller adds the last one."""
    yield {HEADER: FORMAT}
    yield {"kind": "epochs", "floor": ledger.sessions.set_aside}
    for epoch, session in _sessions(ledger):
        yield session_line(epoch, session)
    for client_id, epoch, state in _queues(ledger):
        yield from _queue_lines(ledger, client_id, epoch, state)
    cursor: object = None
    while True:
        contents = ledger.retained.iterate(cursor, _PAGE)
        yield from (retained_line(write) for write in contents.writes)
        cursor = contents.cursor
        if cursor is None:
            break
    yield from ({"kind": "event", **to_plain(recorded)} for recorded in ledger.events.all())
    held = ledger.events.held()
    yield from (consumer_line(group, offset, group in held) for group, offset in ledger.events.commits().items())


def _sessions(ledger: Ledger) -> Iterator[tuple[int, StoredSession]]:
    cursor: object = None
    while True:
        page = ledger.sessions.iterate(cursor, _PAGE)
        yield from page.sessions
        cursor = page.cursor
        if cursor is None:
            return


def _queue_lines(ledger: Ledger, client_id: str, epoch: int, state: QueueState) -> Iterator[dict[str, Any]]:
    yield from queue_lines(client_id, epoch, state)
    after = 0
    while page := ledger.queues.read(client_id, after, _PAGE):
        yield from queued_lines(client_id, page)
        after = page[-1].sequence


def _say(line: str) -> None:
    with _speaking_of_output():
        print(line)


@contextmanager
def _speaking_of_output() -> Iterator[None]:
    """Report errors of standard output as such, not as errors of the store."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        # Python must not flush the rest again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise StoreCommandError(f"standard output: {error.strerror or error}") from error


def _complain(*lines: str) -> int:
    if sys.stderr is not None:
        for line in lines:
            print(f"kinmqtt: {line}", file=sys.stderr)
    return 1
