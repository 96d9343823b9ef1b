"""What ``kinmqtt outbox`` does with the outboxes that it has found."""

from __future__ import annotations

import json
import os
import signal
import sys
from argparse import Namespace
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, TextIO, TypeAlias

from twisted.internet.threads import deferToThread
from twisted.logger import (
    FileLogObserver,
    FilteringLogObserver,
    LogLevel,
    LogLevelFilterPredicate,
    formatEvent,
    globalLogBeginner,
)

from kinmqtt.broker.assembly import Assembly
from kinmqtt.cli.explain import run_once
from kinmqtt.cli.outbox.boxes import Contents, OutboxCommandError, StoredOutbox, contents_of, found_in, named, table
from kinmqtt.cli.outbox.plans import bounds_of, waits_for
from kinmqtt.cli.outbox.stores import OutboxInUse, OutboxStores, opened
from kinmqtt.cli.outbox.unparking import unpark
from kinmqtt.cli.run import build_assembly
from kinmqtt.config import Settings
from kinmqtt_spi.export import FORMAT, HEADER, line_text, queue_lines, queued_lines, session_line
from kinmqtt_spi.services.queue import Purge
from kinmqtt_spi.services.session import DiscardSession, StoredSession

Action: TypeAlias = Callable[[Assembly, OutboxStores, Namespace], Coroutine[Any, Any, None]]


def run(settings: Settings, reactor: Any, parsed: Namespace) -> int:
    """Run ``kinmqtt outbox``; ``parsed`` has its arguments. Raises :class:`~kinmqtt_spi.errors.SpiError`."""
    _show_warnings()
    assembly, _ = build_assembly(settings, reactor)
    run_once(reactor, lambda: _run(assembly, parsed))
    return 0


async def _run(assembly: Assembly, parsed: Namespace) -> None:
    async with opened(assembly) as stores:
        await ACTIONS[parsed.action](assembly, stores, parsed)


def _show_warnings() -> None:
    """Show the warnings of the plugins, as other messages of a command are shown."""
    observer = FileLogObserver(sys.stderr, lambda event: f"kinmqtt: {formatEvent(event)}\n")
    warnings = LogLevelFilterPredicate(defaultLogLevel=LogLevel.warn)
    globalLogBeginner.beginLoggingTo([FilteringLogObserver(observer, [warnings])], redirectStandardIO=False)


# List


async def _list(assembly: Assembly, stores: OutboxStores, parsed: Namespace) -> None:
    rows: list[tuple[StoredOutbox, Contents, Contents, str]] = []
    for outbox in await found_in(stores):
        contents = [await contents_of(stores, each) for each in (outbox.client_id, outbox.parked_id)]
        rows.append((outbox, contents[0], contents[1], waits_for(assembly, outbox)))
    if parsed.json:
        print(json.dumps([_plain(stores.now, *row) for row in rows], indent=2))
    elif rows:
        lines = table([_shown(stores.now, *row) for row in rows], ("messages", "bytes", "in flight", "parked"))
        print("\n".join(lines))
    else:
        print(f"{stores.where} has no outboxes")


def _plain(now: float, outbox: StoredOutbox, contents: Contents, parked: Contents, waits: str) -> dict[str, Any]:
    return {
        "node": outbox.node,
        "plugin": outbox.plugin,
        "name": outbox.name,
        "client_id": outbox.client_id,
        **_plain_contents(now, contents),
        "in_flight": contents.in_flight,
        "parked": _plain_contents(now, parked),
        "in_use": outbox.in_use,
        "waits_for": waits,
    }


def _plain_contents(now: float, contents: Contents) -> dict[str, Any]:
    return {
        "messages": contents.messages,
        "bytes": contents.bytes,
        "oldest_s": None if contents.oldest_at is None else round(max(0.0, now - contents.oldest_at), 3),
    }


def _shown(now: float, outbox: StoredOutbox, contents: Contents, parked: Contents, waits: str) -> Mapping[str, str]:
    return {
        "node": outbox.node,
        "outbox": outbox.shown,
        "messages": str(contents.messages),
        "bytes": str(contents.bytes),
        "in flight": str(contents.in_flight),
        "oldest": "-" if contents.oldest_at is None else _age(max(0.0, now - contents.oldest_at)),
        "parked": str(parked.messages),
        "waits for": waits,
    }


def _age(age_s: float) -> str:
    """Return an age in its two largest units."""
    parts: list[str] = []
    left = int(age_s)
    for unit, unit_s in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        count, left = divmod(left, unit_s)
        if count or parts or unit == "s":
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


# Export


async def _export(assembly: Assembly, stores: OutboxStores, parsed: Namespace) -> None:
    outbox = await _chosen(stores, parsed)
    client_id = _meant(outbox, parsed)
    if client_id not in outbox.sessions:
        raise _empty(outbox, parsed)
    count = 0
    with _output(parsed.to) as write:
        async for line in _lines(stores, client_id, *outbox.sessions[client_id]):
            write(line_text(line))
            count += 1
        # The last line shows that the export is complete.
        write(line_text({"kind": "end", "lines": count + 1}))


async def _lines(
    stores: OutboxStores, client_id: str, epoch: int, session: StoredSession
) -> AsyncIterator[Mapping[str, Any]]:
    """Yield the lines of a store with one outbox, without the last one."""
    yield {HEADER: FORMAT}
    yield {"kind": "epochs", "floor": 0}
    yield session_line(epoch, session)
    for line in queue_lines(client_id, epoch, await stores.state(client_id)):
        yield line
    after = 0
    while page := await stores.waiting(client_id, after):
        for line in queued_lines(client_id, page):
            yield line
        after = page[-1].sequence


@contextmanager
def _output(path: Path | None) -> Iterator[Callable[[str], None]]:
    """Yield what writes a line, to a new file for this user alone or to standard output.

    The file has its name at the end only: before, ``.partial`` follows it, and a failure removes it.
    """
    if path is None:
        what = "standard output"
        yield partial(_write_line, what, sys.stdout)
        with _writing(what):
            sys.stdout.flush()
        return
    what = f"--to: {path}"
    partly = path.with_name(path.name + ".partial")
    _must_be_new(path)
    try:
        file: TextIO = os.fdopen(os.open(partly, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii")
    except FileExistsError:
        raise OutboxCommandError(f"--to: {partly} is there already, of another export: remove it") from None
    except OSError as error:
        raise OutboxCommandError(f"{what} can't be made: {error.strerror}") from error
    try:
        try:
            yield partial(_write_line, what, file)
            with _writing(what):
                file.flush()
                os.fsync(file.fileno())
        finally:
            with _writing(what):
                file.close()
        _must_be_new(path)
        with _writing(what):
            partly.rename(path)
    except BaseException:
        partly.unlink()
        raise


def _must_be_new(path: Path) -> None:
    if path.exists():
        raise OutboxCommandError(f"--to: {path} is there already: name a new file")


def _write_line(what: str, file: TextIO, line: str) -> None:
    with _writing(what):
        print(line, file=file)


@contextmanager
def _writing(what: str) -> Iterator[None]:
    """Raise for errors of an output, which are not those of a store."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutboxCommandError(f"{what} can't be written to: {error.strerror}") from error


# Drop


async def _drop(assembly: Assembly, stores: OutboxStores, parsed: Namespace) -> None:
    outbox = await _chosen(stores, parsed)
    client_id = _meant(outbox, parsed)
    if client_id not in outbox.sessions:
        raise _empty(outbox, parsed)
    async with stores.claimed(client_id) as held:
        contents = await contents_of(stores, client_id)
        kind = "parked messages" if parsed.parked else "messages"
        what = f"{contents.messages} {kind} of {outbox.shown}, node {outbox.node}: {contents.bytes} bytes"
        if not parsed.yes:
            await _confirm(what, contents.messages)
        await stores.write([Purge(client_id, held.epoch)], [DiscardSession(client_id, held.epoch)])
        held.session = None
    print(f"dropped {what}")
    parked = await contents_of(stores, outbox.parked_id)
    if parked.messages and not parsed.parked:
        print(f"{parked.messages} parked messages stay: `unpark {outbox.shown}`, or `drop {outbox.shown} --parked`")


async def _confirm(what: str, count: int) -> None:
    print(f"{what}\ntype the number of messages to drop them: ", end="", file=sys.stderr, flush=True)
    # In a thread, because leases must be renewed. Nothing is changed yet, so an interrupt may end the process.
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    answer = "" if sys.stdin is None else await deferToThread(sys.stdin.readline)
    signal.signal(signal.SIGINT, before)
    if answer.strip() != str(count):
        raise OutboxCommandError(f"nothing is dropped: expected {count} (or --yes), not {answer.strip()!r}")


# Unpark


async def _unpark(assembly: Assembly, stores: OutboxStores, parsed: Namespace) -> None:
    outbox = await _chosen(stores, parsed)
    bounds = bounds_of(assembly, outbox)
    done = await unpark(stores, outbox, bounds)
    if not done.moved and not done.left:
        raise OutboxCommandError(f"{outbox.shown} of node {outbox.node} has no parked messages")
    reason = f"its outbox is full (max_messages = {bounds.max_messages}, max_bytes = {bounds.max_bytes})"
    if not done.moved:
        raise OutboxCommandError(f"{outbox.shown}: all {done.left} parked messages stay: {reason}")
    print(f"{done.moved} parked messages are in the outbox of {outbox.shown} again, after those that wait")
    if done.left:
        print(f"{done.left} parked messages stay: {reason}")


# The outbox that is meant


async def _chosen(stores: OutboxStores, parsed: Namespace) -> StoredOutbox:
    """Return the outbox of the arguments; raises :class:`OutboxInUse` if a broker that runs has it."""
    outbox = named(await found_in(stores), parsed.name, stores.where)
    if outbox.in_use:
        raise OutboxInUse(outbox.client_id)
    return outbox


def _meant(outbox: StoredOutbox, parsed: Namespace) -> str:
    return outbox.parked_id if parsed.parked else outbox.client_id


def _empty(outbox: StoredOutbox, parsed: Namespace) -> OutboxCommandError:
    if parsed.parked:
        return OutboxCommandError(f"{outbox.shown} of node {outbox.node} has no parked messages")
    return OutboxCommandError(f"{outbox.shown} of node {outbox.node} has parked messages only: add --parked")


ACTIONS: Final[Mapping[str, Action]] = {"list": _list, "export": _export, "drop": _drop, "unpark": _unpark}
