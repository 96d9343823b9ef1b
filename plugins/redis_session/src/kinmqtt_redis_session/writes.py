"""Encodes writes as arguments of the client script, and derives the index updates that must precede them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from kinmqtt_redis_session import codec
from kinmqtt_redis_session.codec import Messages
from kinmqtt_redis_session.keys import Keys, encoded, shard_of
from kinmqtt_redis_session.scripts import CLIENT, Command, Part
from kinmqtt_spi.services.queue import (
    Append,
    InboundClose,
    InboundOpen,
    Purge,
    QueueWrite,
    Release,
    Remove,
    Requeue,
    Send,
)
from kinmqtt_spi.services.session import (
    ClearWill,
    DiscardSession,
    OpenSession,
    ReleaseSession,
    RemoveSubscriptions,
    ResumeSession,
    SaveSubscriptions,
    SessionWrite,
)

ClientWrite = SessionWrite | QueueWrite


def _append(write: Append, messages: Messages) -> list[Part]:
    entry = write.entry
    packet_id: Part = "" if write.packet_id is None else write.packet_id
    return [entry.sequence, packet_id, codec.entry_blob(entry, messages)]


_PARTS: Final[Mapping[type[ClientWrite], tuple[str, Callable[[Any, Messages], list[Part]]]]] = {
    OpenSession: ("open", lambda write, _: codec.opened(write)),
    ResumeSession: (
        "resume",
        lambda write, _: [codec.changing(write), codec.verified(write), codec.will_json(write.will)],
    ),
    SaveSubscriptions: ("subscribe", lambda write, _: codec.subscriptions(write.subscriptions)),
    RemoveSubscriptions: (
        "unsubscribe",
        lambda write, _: [len(write.filters), *(codec.text(each) for each in write.filters)],
    ),
    ClearWill: ("clear will", lambda write, _: []),
    ReleaseSession: (
        "release session",
        lambda write, _: [codec.timestamp(write.expires_at), codec.timestamp(write.will_due_at)],
    ),
    DiscardSession: ("discard", lambda write, _: []),
    Append: ("append", _append),
    Send: ("send", lambda write, _: [write.sequence, write.packet_id]),
    Release: ("release", lambda write, _: [write.sequence]),
    Remove: ("remove", lambda write, _: [write.sequence]),
    Requeue: ("requeue", lambda write, _: []),
    InboundOpen: ("inbound open", lambda write, _: [write.packet_id, codec.message_id(write.message)]),
    InboundClose: ("inbound close", lambda write, _: [write.packet_id]),
    Purge: ("purge", lambda write, _: []),
}


Expected = tuple[tuple[bytes, int], ...]
"""Keys of sessions, each with the highest epoch that it may have."""

MAX_RUN: Final = 1000
"""The most writes in one run: Lua limits the number of arguments of a call."""


class ClientCall:
    """Builds the one script call that carries out the writes for one client, in runs of the same kind."""

    def __init__(self, forget: int) -> None:
        """``forget`` is how long to remember a client without stored state, in ms."""
        self._arguments: list[Any] = [forget]
        self._run: tuple[str, int] | None = None
        self._count_at = 0
        self._expects: Expected = ()

    def add(self, kind: str, epoch: int, parts: list[Part], expects: Expected = ()) -> None:
        """Append a write; the script skips it if a session in ``expects`` has a higher epoch."""
        arguments = self._arguments
        if expects != self._expects:
            self._expects = expects
            self._run = None
            arguments += ("expect", 0, len(expects))
            for each in expects:
                arguments += each
        if self._run == (kind, epoch) and arguments[self._count_at] < MAX_RUN:
            arguments[self._count_at] += 1
        else:
            self._run = (kind, epoch)
            self._count_at = len(arguments) + 2
            arguments += (kind, epoch, 1)
        arguments += parts

    def command(self, keys: Keys, client_id: str) -> Command:
        """The command that calls the script."""
        its = keys.client(encoded(client_id), b"s", b"f", b"q", b"d", b"i", b"p", b"r", b"x", b"k")
        return CLIENT(its, *self._arguments)


def parts_of(write: ClientWrite, messages: Messages) -> tuple[str, int, list[Part]]:
    """A write's kind, epoch and arguments for the script."""
    kind, parts = _PARTS[type(write)]
    return kind, write.epoch, parts(write, messages)


class IndexUpdates:
    """Collects the updates of the indexes over clients, which must precede the writes to the clients' own keys."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._scores: dict[tuple[bytes, bool], dict[bytes, str]] = {}

    def note(self, write: ClientWrite, owner: int | None, known: bool) -> None:
        """Add the index updates for a write; ``owner`` is the uid of the node that claimed the client.

        ``known`` says that the client already has stored state, so that it is in the index of all clients.
        """
        if isinstance(write, Append):
            if write.entry.message.expires_at is not None:
                self._mark(write.client_id, b"q", repr(write.entry.message.expires_at), lowest=True)
            if not known:
                self._mark(write.client_id, b"a", "0")
        elif isinstance(write, Requeue):
            # A requeued entry may expire; the next check of the queue finds out when.
            self._mark(write.client_id, b"q", "0", lowest=True)
        elif isinstance(write, OpenSession):
            self._mark(write.client_id, b"a", "0")
            self._mark_times(write.client_id, write.session.expires_at, write.session.will_due_at)
            if owner is not None:
                self._mark(write.client_id, b"o:%d" % owner, "0")
        elif isinstance(write, ReleaseSession):
            self._mark_times(write.client_id, write.expires_at, write.will_due_at)
        elif isinstance(write, InboundOpen) and not known:
            self._mark(write.client_id, b"a", "0")

    def commands(self) -> list[Command]:
        """The commands that update the indexes."""
        commands: list[Command] = []
        for (key, lowest), scores in self._scores.items():
            words: list[Part] = ["ZADD", key]
            if lowest:
                words.append("LT")
            for name, score in scores.items():
                words += (score, name)
            commands.append(tuple(words))
        return commands

    def _mark_times(self, client_id: str, expires_at: float | None, will_due_at: float | None) -> None:
        if expires_at is not None:
            self._mark(client_id, b"x", codec.timestamp(expires_at))
        if will_due_at is not None:
            self._mark(client_id, b"w", codec.timestamp(will_due_at))

    def _mark(self, client_id: str, part: bytes, score: str, *, lowest: bool = False) -> None:
        name = encoded(client_id)
        scores = self._scores.setdefault((self._keys.index(shard_of(name), part), lowest), {})
        if not lowest or name not in scores or float(score) < float(scores[name]):
            scores[name] = score
