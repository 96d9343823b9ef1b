"""Exports the stores as lines, and reads such lines: the format of ``kinmqtt store export`` (docs/store.md)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Any, Final

from attrs import define, field

from kinmqtt_spi.errors import SpiError
from kinmqtt_spi.plain import from_plain, to_plain
from kinmqtt_spi.services.queue import (
    Append,
    Entry,
    InboundOpen,
    InflightEntry,
    QueueStore,
    QueueWrite,
    Release,
    Remove,
    Send,
)
from kinmqtt_spi.services.retain import RetainStore, RetainWrite
from kinmqtt_spi.services.session import OpenSession, SessionStore, StoredSession
from kinmqtt_spi.values import Message

FORMAT: Final = 1
_HEADER: Final = "kinmqtt_store"
_PAGE: Final = 500
_GONE: Final = Message("released")
"""Replaces a message that is gone, in writes that restore what it left behind."""


class TransferError(SpiError):
    """An export or import failed; the text says why."""


async def lines(
    sessions: SessionStore, queues: QueueStore, retained: RetainStore, clients: Mapping[str, int]
) -> AsyncIterator[dict[str, Any]]:
    """Yield all lines but the last; ``clients`` are those with stored state, with their epochs."""
    yield {_HEADER: FORMAT}
    yield {"kind": "epochs", "floor": max(clients.values(), default=0)}
    cursor: object = None
    while True:
        page: Any = sessions.iterate(cursor, _PAGE)
        page = await page
        for epoch, session in page.sessions:
            yield {"kind": "session", "epoch": epoch, "session": to_plain(session)}
        cursor = page.cursor
        if cursor is None:
            break
    for client_id, epoch in clients.items():
        async for line in _queue_lines(queues, client_id, epoch):
            yield line
    while True:
        contents: Any = retained.iterate(cursor, _PAGE)
        contents = await contents
        for write in contents.writes:
            yield {"kind": "retained", **to_plain(write)}
        cursor = contents.cursor
        if cursor is None:
            return


async def _queue_lines(queues: QueueStore, client_id: str, epoch: int) -> AsyncIterator[dict[str, Any]]:
    state: Any = queues.load(client_id)
    state = await state
    if not (state.last_sequence or state.inbound):
        return
    last, inbound = state.last_sequence, sorted(state.inbound)
    yield {"kind": "queue", "client_id": client_id, "epoch": epoch, "last_sequence": last, "inbound": inbound}
    for held in state.inflight:
        yield {"kind": "inflight", "client_id": client_id, **to_plain(held)}
    after = 0
    while True:
        page: Any = queues.read(client_id, after, _PAGE)
        page = await page
        if not page:
            return
        for entry in page:
            yield {"kind": "queued", "client_id": client_id, **to_plain(entry)}
        after = page[-1].sequence


@define(slots=True)
class _Queue:
    epoch: int
    last_sequence: int
    inbound: list[int]
    entries: dict[int, Entry | None] = field(factory=dict)
    inflight: list[InflightEntry] = field(factory=list)


@define(slots=True)
class Contents:
    """The contents of an export."""

    sessions: list[OpenSession] = field(factory=list)
    queues: dict[str, _Queue] = field(factory=dict)
    retained: list[RetainWrite] = field(factory=list)
    left_out: int = 0
    """The number of lines of events and of their consumers' positions, which another plugin stores."""

    def queue_writes(self) -> Iterator[list[QueueWrite]]:
        """Yield the writes that restore the queues, client by client."""
        for client_id, queue in self.queues.items():
            yield list(_writes_of(client_id, queue))


def read(source: Iterable[bytes]) -> Contents:
    """Parse lines; raises :class:`TransferError` with the number of the line that is invalid or missing."""
    contents = Contents()
    number = 0
    ended = False
    for number, line in enumerate(source, 1):
        try:
            if ended:
                raise ValueError("no line may follow the line of kind end")
            ended = _take_line(contents, json.loads(line), number)
        except (ValueError, KeyError, TypeError) as error:
            problem = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
            raise TransferError(f"line {number}: {problem}") from None
    if not ended:
        raise TransferError(f"line {number + 1}: the line of kind end is missing: the export is incomplete")
    return contents


def _take_line(contents: Contents, plain: dict[str, Any], number: int) -> bool:
    """Add a line; returns whether it is the last one."""
    if number == 1:
        if plain != {_HEADER: FORMAT}:
            raise ValueError(f"this is not a kinmqtt store export of format {FORMAT}")
        return False
    kind = plain.pop("kind")
    if kind == "end":
        if plain["lines"] != number:
            raise ValueError(f"the export has {plain['lines']} lines, but this is line {number}")
        return True
    if kind == "session":
        contents.sessions.append(OpenSession(plain["epoch"], from_plain(StoredSession, plain["session"])))
    elif kind == "retained":
        contents.retained.append(from_plain(RetainWrite, plain))
    elif kind == "queue":
        queue = _Queue(plain["epoch"], plain["last_sequence"], plain["inbound"])
        contents.queues[plain["client_id"]] = queue
    elif kind in ("inflight", "queued"):
        _add_entry(contents.queues[plain.pop("client_id")], kind, plain)
    elif kind in ("event", "consumer"):
        contents.left_out += 1
    elif kind != "epochs":  # New clients get Redis's clock as their epoch, which is above all exported epochs.
        raise ValueError(f"unknown kind {kind!r}")
    return False


def _add_entry(queue: _Queue, kind: str, plain: dict[str, Any]) -> None:
    if kind == "queued":
        entry = from_plain(Entry, plain)
        queue.entries[entry.sequence] = entry
    else:
        held = from_plain(InflightEntry, plain)
        queue.entries[held.sequence] = held.entry
        queue.inflight.append(held)


def _writes_of(client_id: str, queue: _Queue) -> Iterator[QueueWrite]:
    epoch, last = queue.epoch, queue.last_sequence
    for sequence, entry in sorted(queue.entries.items()):
        yield Append(client_id, epoch, Entry(sequence, _GONE, 2) if entry is None else entry)
    if last and last not in queue.entries:
        yield Append(client_id, epoch, Entry(last, _GONE, 2))
        yield Remove(client_id, epoch, last)
    for held in queue.inflight:
        yield Send(client_id, epoch, held.sequence, held.packet_id)
        if held.entry is None:
            yield Release(client_id, epoch, held.sequence)
    for packet_id in queue.inbound:
        yield InboundOpen(client_id, epoch, packet_id)
