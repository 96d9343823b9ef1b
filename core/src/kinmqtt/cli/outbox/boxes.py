"""The outboxes of a store by plugin and name, each together with its parked messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import define, field, frozen

from kinmqtt.broker.bridging import PARKED_SUFFIX
from kinmqtt.broker.outboxes.table import client_id_of, owner_of
from kinmqtt.cli.outbox.stores import OutboxStores
from kinmqtt_spi.errors import SpiError
from kinmqtt_spi.services.session import StoredSession
from kinmqtt_spi.settings import did_you_mean


class OutboxCommandError(SpiError):
    """The command failed; the text says why, in one line."""


@define(slots=True)
class StoredOutbox:
    """An outbox of one node."""

    node: str
    plugin: str
    name: str
    sessions: dict[str, tuple[int, StoredSession]] = field(factory=dict)
    """By client id, its own session and that of its parked messages, each with its epoch."""
    in_use: bool = False
    """Whether a broker that runs has one of them."""

    @property
    def client_id(self) -> str:
        """The client id of its session."""
        return client_id_of(self.node, self.plugin, self.name)

    @property
    def parked_id(self) -> str:
        """The client id of its parked messages."""
        return self.client_id + PARKED_SUFFIX

    @property
    def shown(self) -> str:
        """Its name as logs and metrics have it."""
        return f"{self.plugin}:{self.name}"

    @property
    def names(self) -> tuple[str, str, str]:
        """What an operator may call it; the last is unique."""
        return self.name, self.shown, f"{self.node}/{self.plugin}/{self.name}"


@frozen(slots=True)
class Contents:
    """How much an outbox has."""

    messages: int = 0
    """Including those in flight."""
    bytes: int = 0
    """Their approximate size in memory."""
    in_flight: int = 0
    """Handed to the sink before the broker stopped, and not acknowledged."""
    oldest_at: float | None = None
    """When the first of them was received, in seconds since the epoch."""


async def found_in(stores: OutboxStores) -> list[StoredOutbox]:
    """Return all outboxes, by plugin, name and node."""
    found: dict[tuple[str, str, str], StoredOutbox] = {}
    async for epoch, session, in_use in stores.sessions():
        owner = owner_of(session.client_id)
        if owner is None:
            continue
        node, plugin, name = owner
        name = name.removesuffix(PARKED_SUFFIX)
        outbox = found.setdefault((plugin, name, node), StoredOutbox(node, plugin, name))
        outbox.sessions[session.client_id] = (epoch, session)
        outbox.in_use = outbox.in_use or in_use
    return [found[key] for key in sorted(found)]


def named(found: Sequence[StoredOutbox], name: str, where: str) -> StoredOutbox:
    """Return the outbox that an operator has named; ``where`` is what was searched.

    Raises :class:`OutboxCommandError` if there is none, or more than one.
    """
    matching = [outbox for outbox in found if name in outbox.names]
    if len(matching) == 1:
        return matching[0]
    if matching:
        full = ", ".join(outbox.names[-1] for outbox in matching)
        raise OutboxCommandError(f"{where} has several outboxes {name!r}: name one of {full}")
    bare = name.removesuffix(PARKED_SUFFIX)
    if bare != name and any(bare in outbox.names for outbox in found):
        raise OutboxCommandError(
            f"{name} has the parked messages of {bare}: `unpark {bare}`, or `export` or `drop {bare} --parked`"
        )
    hint = did_you_mean(name, [each for outbox in found for each in outbox.names], quote="")
    if not hint:
        hint = f"; it has {', '.join(outbox.shown for outbox in found)}" if found else "; it has none"
    raise OutboxCommandError(f"{where} has no outbox {name!r}{hint}")


async def contents_of(stores: OutboxStores, client_id: str) -> Contents:
    """Return how much the outbox with a client id has; nothing for an unknown one."""
    state = await stores.state(client_id)
    held = [each.entry for each in state.inflight if each.entry is not None]
    first = [*held[:1], *await stores.waiting(client_id, limit=1)]
    return Contents(
        len(held) + state.sizes.queued,
        sum(entry.size_bytes for entry in held) + state.sizes.queued_bytes,
        len(held),
        min((entry.message.received_at for entry in first), default=None),
    )


def table(rows: Sequence[Mapping[str, str]], numbers: Sequence[str]) -> list[str]:
    """Return lines with aligned columns under headings; those in ``numbers`` are aligned at the right."""
    headings = list(rows[0])
    widths = {each: max(len(each), *(len(row[each]) for row in rows)) for each in headings}
    lines = [dict(zip(headings, headings, strict=True)), *rows]
    return [
        "  ".join(
            row[each].rjust(widths[each]) if each in numbers else row[each].ljust(widths[each]) for each in headings
        ).rstrip()
        for row in lines
    ]
