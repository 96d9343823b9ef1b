"""Resyncs the local counters with Redis, and removes stale entries from the indexes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from kinmqtt_redis_session.counters import Counters
from kinmqtt_redis_session.keys import SHARDS, Keys, decoded, encoded, shard_of
from kinmqtt_redis_session.retained import shard_counters
from kinmqtt_redis_session.scripts import SIZES, Command, Execute

PAGE: Final = 500


class Resync:
    """Reads the counters of all clients and of the retained messages from Redis."""

    def __init__(self, keys: Keys, counters: Counters) -> None:
        self._keys = keys
        self._counters = counters
        self.home_nodes: set[int] = set()
        """The uids of the home nodes of stored sessions, as of the last run."""

    async def run(self, execute: Execute) -> None:
        """Read the counters of all clients, page by page, and forget clients that are gone."""
        await self.retained(execute)
        self.home_nodes.clear()
        before = self._counters.clients()
        seen: set[str] = set()
        for shard in range(SHARDS):
            index, start = self._keys.index(shard, b"a"), b"-"
            while True:
                (names,) = await execute([("ZRANGE", index, start, "+", "BYLEX", "LIMIT", 0, PAGE)])
                if not names:
                    break
                start = b"(" + names[-1]
                empty = await self._clients(execute, names)
                seen.update(decoded(name) for name in names)
                await self._sweep(execute, index, empty)
        for client_id in before - seen:
            # A client may have been added since its page was read.
            await self._clients(execute, [encoded(client_id)])

    async def epochs(self, execute: Execute) -> dict[str, int]:
        """The clients for which anything is stored, with their epochs."""
        names = [encoded(client_id) for client_id in sorted(self._counters.clients())]
        found: dict[str, int] = {}
        for at in range(0, len(names), PAGE):
            page = names[at : at + PAGE]
            answers = await execute([("HGET", self._keys.client(name, b"s")[0], "e") for name in page])
            found.update((decoded(name), int(epoch or 0)) for name, epoch in zip(page, answers, strict=True))
        return found

    async def uncertain(self, execute: Execute) -> None:
        """Read the counters of the clients whose last writes may or may not have been stored."""
        await self.retained(execute)
        names = [encoded(client_id) for client_id in self._counters.uncertain]
        for at in range(0, len(names), PAGE):
            await self._clients(execute, names[at : at + PAGE])
        self._counters.uncertain.clear()

    async def retained(self, execute: Execute) -> None:
        """Read the counters of retained messages."""
        keys = [self._keys.retained(shard, b"c")[0] for shard in range(SHARDS)]
        for shard, numbers in enumerate(
            shard_counters(await execute([("HMGET", key, "n", "b", "v") for key in keys]))
        ):
            self._counters.retained(shard, *numbers)

    async def _clients(self, execute: Execute, names: Sequence[bytes]) -> list[bytes]:
        """Read the counters of some clients; returns those for which nothing is stored."""
        scripts = [SIZES(self._keys.client(name, b"s", b"q", b"i", b"r", b"x")) for name in names]
        empty: list[bytes] = []
        marks: list[Command] = []
        for name, (*sizes, first, home) in zip(names, await execute(scripts), strict=True):
            self._counters.client(decoded(name), sizes)
            if sizes[0]:
                self.home_nodes.add(int(home))
            if first:
                marks.append(("ZADD", self._keys.index(shard_of(name), b"q"), "LT", first, name))
            if not any(int(each) for each in sizes):
                empty.append(name)
        if marks:
            await execute(marks)
        return empty

    async def _sweep(self, execute: Execute, index: bytes, names: Iterable[bytes]) -> None:
        gone = list(names)
        if not gone:
            return
        await execute([("ZREM", index, *gone)])
        still_gone = set(await self._clients(execute, gone))
        back: list[Command] = [("ZADD", index, 0, name) for name in gone if name not in still_gone]
        if back:
            await execute(back)
