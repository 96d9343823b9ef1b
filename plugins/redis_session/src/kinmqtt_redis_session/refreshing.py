"""Reads anew what is held of each client and in all, and sweeps what the indexes have too much."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

from kinmqtt_redis_session.keys import SHARDS, Keys, decoded, encoded, shard_of
from kinmqtt_redis_session.mirror import Mirror
from kinmqtt_redis_session.retained import counters
from kinmqtt_redis_session.scripts import SIZES, Command

PAGE: Final = 500

Ask = Callable[[Sequence[Command]], Awaitable[list[Any]]]


class Refresh:
    """Brings the mirror in line with what Redis holds."""

    def __init__(self, keys: Keys, mirror: Mirror) -> None:
        self._keys = keys
        self._mirror = mirror
        self.homes: set[int] = set()
        """The nodes at which stored sessions were seen to have their home."""

    async def everything(self, ask: Ask) -> None:
        """Look at all clients, page by page; of those that are gone nothing is left."""
        await self.retained(ask)
        self.homes.clear()
        before = self._mirror.clients()
        seen: set[str] = set()
        for shard in range(SHARDS):
            index, start = self._keys.index(shard, b"a"), b"-"
            while True:
                (names,) = await ask([("ZRANGE", index, start, "+", "BYLEX", "LIMIT", 0, PAGE)])
                if not names:
                    break
                start = b"(" + names[-1]
                empty = await self._clients(ask, names)
                seen.update(decoded(name) for name in names)
                await self._sweep(ask, index, empty)
        for client_id in before - seen:
            # It may have come since its page was read.
            await self._clients(ask, [encoded(client_id)])

    async def epochs(self, ask: Ask) -> dict[str, int]:
        """The clients of whom anything is held, with their epochs."""
        names = [encoded(client_id) for client_id in sorted(self._mirror.clients())]
        found: dict[str, int] = {}
        for at in range(0, len(names), PAGE):
            page = names[at : at + PAGE]
            answers = await ask([("HGET", self._keys.client(name, b"s")[0], "e") for name in page])
            found.update((decoded(name), int(epoch or 0)) for name, epoch in zip(page, answers, strict=True))
        return found

    async def doubtful(self, ask: Ask) -> None:
        """Look at the clients of whom it is not known what was kept."""
        await self.retained(ask)
        names = [encoded(client_id) for client_id in self._mirror.doubtful]
        for at in range(0, len(names), PAGE):
            await self._clients(ask, names[at : at + PAGE])
        self._mirror.doubtful.clear()

    async def retained(self, ask: Ask) -> None:
        """Read the counters of retained messages."""
        keys = [self._keys.retained(shard, b"c")[0] for shard in range(SHARDS)]
        for shard, numbers in enumerate(counters(await ask([("HMGET", key, "n", "b", "v") for key in keys]))):
            self._mirror.retained(shard, *numbers)

    async def _clients(self, ask: Ask, names: Sequence[bytes]) -> list[bytes]:
        """Take over what is held of clients; answers those of whom nothing is."""
        scripts = [SIZES(self._keys.client(name, b"s", b"q", b"i", b"r", b"x")) for name in names]
        empty: list[bytes] = []
        marks: list[Command] = []
        for name, (*sizes, first, home) in zip(names, await ask(scripts), strict=True):
            self._mirror.client(decoded(name), sizes)
            if sizes[0]:
                self.homes.add(int(home))
            if first:
                marks.append(("ZADD", self._keys.index(shard_of(name), b"q"), "LT", first, name))
            if not any(int(each) for each in sizes):
                empty.append(name)
        if marks:
            await ask(marks)
        return empty

    async def _sweep(self, ask: Ask, index: bytes, names: Iterable[bytes]) -> None:
        gone = list(names)
        if not gone:
            return
        await ask([("ZREM", index, *gone)])
        still_gone = set(await self._clients(ask, gone))
        back: list[Command] = [("ZADD", index, 0, name) for name in gone if name not in still_gone]
        if back:
            await ask(back)
