"""Moves parked messages back into their sink's outbox."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from attrs import frozen

from kinmqtt.cli.outbox.boxes import StoredOutbox, contents_of
from kinmqtt.cli.outbox.stores import PAGE, Claimed, OutboxStores
from kinmqtt.settings import NEVER_EXPIRES
from kinmqtt_spi.bridging.parking import unparked
from kinmqtt_spi.services.outbox import OutboxSettings
from kinmqtt_spi.services.queue import Append, Entry, Remove
from kinmqtt_spi.services.session import OpenSession, StoredSession

COMMIT_BYTES: Final = 1 << 20
"""The size of messages in memory at which they are committed, also if they are fewer than a page."""


@frozen(slots=True)
class Unparked:
    """What was done."""

    moved: int
    left: int
    """Messages that stay parked, because the outbox is full."""


async def unpark(stores: OutboxStores, outbox: StoredOutbox, bounds: OutboxSettings) -> Unparked:
    """Move an outbox's parked messages behind those that wait, in order and with their ids, up to the bounds.

    Raises :class:`~kinmqtt.cli.outbox.stores.OutboxInUse`.
    """
    if outbox.parked_id not in outbox.sessions:
        return Unparked(0, 0)
    async with stores.claimed(outbox.parked_id) as source, stores.claimed(outbox.client_id) as target:
        parked = (await contents_of(stores, source.client_id)).messages
        if not parked:
            return Unparked(0, 0)
        if target.session is None:
            await _open(stores, target)
        state = await stores.state(target.client_id)
        sequence, count, size_bytes = state.last_sequence, state.sizes.queued, state.sizes.queued_bytes
        moved = page_bytes = 0
        page: list[tuple[int, Entry]] = []
        async for entry in stores.entries(source.client_id):
            if count >= bounds.max_messages or size_bytes + page_bytes >= bounds.max_bytes:
                break
            sequence += 1
            count += 1
            back = entry._replace(sequence=sequence, message=unparked(entry.message))
            page.append((entry.sequence, back))
            page_bytes += back.size_bytes
            if len(page) == PAGE or page_bytes >= COMMIT_BYTES:
                await _move(stores, source, target, page)
                moved += len(page)
                size_bytes += page_bytes
                page, page_bytes = [], 0
        if page:
            await _move(stores, source, target, page)
            moved += len(page)
        return Unparked(moved, parked - moved)


async def _open(stores: OutboxStores, target: Claimed) -> None:
    """Begin the outbox's session: it was dropped, and its sink has not run since."""
    target.session = StoredSession(target.client_id, NEVER_EXPIRES, created_at=stores.now, protocol_version=5)
    await stores.write(sessions=[OpenSession(target.epoch, target.session)])


async def _move(stores: OutboxStores, source: Claimed, target: Claimed, page: Sequence[tuple[int, Entry]]) -> None:
    """Commit messages in the outbox, then their removal: a crash in between doubles them, and loses none."""
    await stores.write([Append(target.client_id, target.epoch, entry) for _, entry in page])
    await stores.write([Remove(source.client_id, source.epoch, number) for number, _ in page])
