"""What the stores hold as lines: the format of ``kinmqtt store export`` (docs/store.md)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from kinmqtt_spi.errors import SpiError
from kinmqtt_spi.export import FORMAT, HEADER, queue_lines, queued_lines, retained_line, session_line
from kinmqtt_spi.services.queue import QueueStore
from kinmqtt_spi.services.retain import RetainStore
from kinmqtt_spi.services.session import SessionStore

_PAGE: Final = 500


class TransferError(SpiError):
    """What was to be moved can't be; the text says why."""


async def lines(
    sessions: SessionStore, queues: QueueStore, retained: RetainStore, clients: Mapping[str, int]
) -> AsyncIterator[dict[str, Any]]:
    """All lines but the last; ``clients`` are those of whom anything is held, with their epochs."""
    yield {HEADER: FORMAT}
    yield {"kind": "epochs", "floor": max(clients.values(), default=0)}
    cursor: object = None
    while True:
        page: Any = sessions.iterate(cursor, _PAGE)
        page = await page
        for epoch, session in page.sessions:
            yield session_line(epoch, session)
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
            yield retained_line(write)
        cursor = contents.cursor
        if cursor is None:
            return


async def _queue_lines(queues: QueueStore, client_id: str, epoch: int) -> AsyncIterator[dict[str, Any]]:
    state: Any = queues.load(client_id)
    state = await state
    if not (state.last_sequence or state.inbound or state.pending):
        return
    for line in queue_lines(client_id, epoch, state):
        yield line
    after = 0
    while True:
        page: Any = queues.read(client_id, after, _PAGE)
        page = await page
        if not page:
            return
        for line in queued_lines(client_id, page):
            yield line
        after = page[-1].sequence
