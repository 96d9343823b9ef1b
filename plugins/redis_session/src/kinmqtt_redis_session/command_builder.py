"""Builds the commands of a pipeline of writes: one script call for each client and for each shard of topics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from kinmqtt_redis_session import codec
from kinmqtt_redis_session.codec import Messages
from kinmqtt_redis_session.keys import RETAIN_PARTS, Keys, encoded, topic_shard
from kinmqtt_redis_session.phases import Numbered, Targets
from kinmqtt_redis_session.scripts import RETAIN, Command
from kinmqtt_redis_session.writes import ClientCall, Expected, parts_of
from kinmqtt_spi.plain import to_plain
from kinmqtt_spi.services.queue import InboundOpen
from kinmqtt_spi.services.retain import RetainWrite, retained_bytes

UNKNOWN_TOPIC_S: Final = 3600.0
"""How long a deletion is remembered for a topic without a message; else unused topics would fill Redis."""


class CommandBuilder:
    """Builds the commands that carry out writes."""

    def __init__(self, keys: Keys, *, now: Callable[[], float], remember_s: float, is_cluster: bool = False) -> None:
        """``is_cluster``: a script can't read the keys of other slots."""
        self._keys = keys
        self._is_cluster = is_cluster
        self._now = now
        self._remember_s = remember_s
        self._remember_ms = int(remember_s * 1000)

    def client_commands(
        self, clients: dict[str, Numbered], targets: Targets | None = None
    ) -> tuple[list[Command], list[str]]:
        """One call for each client, and the clients in the same order.

        With ``targets`` the script stores a packet identifier only if no target session has a newer owner.
        """
        messages = Messages()
        commands = []
        for client_id, writes in clients.items():
            call = ClientCall(self._remember_ms)
            for number, write in writes:
                expects: Expected = ()
                if targets and isinstance(write, InboundOpen):
                    epochs = targets.get((number, client_id), {})
                    expects = tuple((self._keys.client(encoded(name), b"s")[0], epochs[name]) for name in epochs)
                call.add(*parts_of(write, messages), expects)
            commands.append(call.command(self._keys, client_id))
        return commands, list(clients)

    def purge_commands(self, clients: Iterable[tuple[str, int]]) -> list[Command]:
        """One call for each client and epoch; it removes the client's queue."""
        commands = []
        for client_id, epoch in clients:
            call = ClientCall(self._remember_ms)
            call.add("purge", epoch, [])
            commands.append(call.command(self._keys, client_id))
        return commands

    def _publisher(self, write: RetainWrite) -> tuple[bytes, int]:
        """The key of the publisher's session, and the highest epoch that it may have; 0 for any."""
        if not write.publisher_epoch or self._is_cluster:
            return b"", 0
        return self._keys.client(encoded(write.message.publisher.client_id), b"s")[0], write.publisher_epoch

    def retain_commands(self, writes: Sequence[RetainWrite]) -> tuple[list[Command], list[int]]:
        """One call for each shard, and the shards in the same order."""
        now = self._now()
        forgotten_at = codec.timestamp(now + self._remember_s)
        soon = codec.timestamp(now + min(UNKNOWN_TOPIC_S, self._remember_s))
        shards: dict[int, list[Any]] = {}
        for write in writes:
            message = write.message
            topic = codec.text(message.topic)
            json = codec.dumps(to_plain(message)) if message.payload else ""
            shards.setdefault(topic_shard(topic), []).extend(
                (
                    topic,
                    codec.version_hex(write.version),
                    retained_bytes(message),
                    codec.expiry(message),
                    json,
                    "" if write.expected is None else codec.version_hex(write.expected),
                    *self._publisher(write),
                )
            )
        commands = [
            RETAIN(self._keys.retained(shard, *RETAIN_PARTS), forgotten_at, soon, *parts)
            for shard, parts in shards.items()
        ]
        return commands, list(shards)
