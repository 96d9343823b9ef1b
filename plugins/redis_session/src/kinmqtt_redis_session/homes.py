"""Where sessions have their home: at the node that claimed them last, as long as it lives.

A node keeps an index of what has its home there (``o``), which has at least what is so. What is in it is looked up in
the client's own keys, and what is stale is swept.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from itertools import islice
from typing import Any, Final

from kinmqtt_redis_session.asking import Asker
from kinmqtt_redis_session.keys import SHARDS, Keys, decoded, encoded, shard_of
from kinmqtt_redis_session.leases import Leases
from kinmqtt_redis_session.scripts import HAND, Command
from kinmqtt_redis_session.turn import Ledger
from kinmqtt_spi.values import NodeIdentity

PAGE: Final = 500


class Homes:
    """What has its home where, and what was left behind."""

    def __init__(
        self, ledger: Ledger, asker: Asker, leases: Leases, uid: int, claiming: Callable[[], Collection[str]]
    ) -> None:
        """``uid`` is this node's; ``claiming`` tells whose claims are under way here."""
        self._uid = uid
        self._ledger = ledger
        self._asker = asker
        self._keys: Keys = ledger.keys
        self._leases = leases
        self._claiming = claiming
        self._told: dict[int, dict[str, None]] = {}
        """By the uid of a node, what it was told to adopt and has not claimed yet."""

    async def orphaned(self, node: NodeIdentity, limit: int) -> list[str]:
        """Clients whose home is gone, and now is here; those that were told before come again until claimed."""
        told = await self._still_told(node, limit)
        await self._leases.look(self._ask)
        for gone in self._leases.gone():
            if gone != node.uid and len(told) < limit:
                told += await self._taken(gone, node, limit - len(told), set(told))
        self._told.setdefault(node.uid, {}).update(dict.fromkeys(told))
        return told

    def claimed(self, client_id: str, uid: int) -> None:
        """A client was claimed by a node."""
        told = self._told.get(uid)
        if told is not None:
            told.pop(client_id, None)

    async def put_down(self, ask: Callable[[Sequence[Command]], Awaitable[Any]]) -> None:
        """Put down again what has its home here: others may have swept it while they took this node for gone."""
        owned: dict[bytes, list[bytes]] = {}
        claiming = dict.fromkeys(self._claiming(), self._uid)
        for client_id, uid in (claiming | self._ledger.owners).items():
            name = encoded(client_id)
            owned.setdefault(self._keys.owned(shard_of(name), uid), []).append(name)
        for index, names in owned.items():
            for at in range(0, len(names), PAGE):
                await ask([_marked(index, names[at : at + PAGE])])

    async def sweep(self, node: NodeIdentity) -> None:
        """Take out of this node's index what has its home elsewhere by now, or is gone."""
        for shard in range(SHARDS):
            index, start = self._keys.owned(shard, node.uid), b"-"
            while True:
                (names,) = await self._asker.ask(("ZRANGE", index, start, "+", "BYLEX", "LIMIT", 0, PAGE))
                if not names:
                    break
                start = b"(" + names[-1]
                stale = await self._not_of(names, node.uid)
                if stale:
                    await self._asker.ask(("ZREM", index, *stale))
                    still = set(await self._not_of(stale, node.uid))
                    claiming = {encoded(client_id) for client_id in self._claiming()}
                    # What was claimed since, or is being claimed.
                    back = [name for name in stale if name not in still or name in claiming]
                    if back:
                        await self._asker.ask(_marked(index, back))

    async def _still_told(self, node: NodeIdentity, limit: int) -> list[str]:
        waiting = self._told.setdefault(node.uid, {})
        names = list(islice(waiting, limit))
        answers = await self._asker.ask(*(("HGET", self._keys.client(encoded(name), b"s")[0], "h") for name in names))
        for name, handed in zip(names, answers, strict=True):
            if handed != b"%d" % node.uid:
                waiting.pop(name, None)
        return [name for name in names if name in waiting]

    async def _taken(self, gone: int, node: NodeIdentity, limit: int, known: Collection[str]) -> list[str]:
        """Give what a node that is gone left behind a home here, as much of it as there is room for."""
        indexes = [self._keys.owned(shard, gone) for shard in range(SHARDS)]
        most = min(limit, PAGE)
        answers = await self._asker.ask(*(("ZRANGE", key, "-", "+", "BYLEX", "LIMIT", 0, most) for key in indexes))
        if not any(answers):
            await self._leases.forget(gone, self._ask)
            return []
        found: list[str] = []
        for shard, names in enumerate(answers):
            some = list(names[: limit - len(found)])
            if some:
                taken = await self._handed(shard, some, gone, node)
                found += [client_id for client_id in taken if client_id not in known]
        return found

    async def _handed(self, shard: int, names: Sequence[bytes], gone: int, node: NodeIdentity) -> list[str]:
        there = await self._left_at(names, gone, node.uid)
        answers: list[Any] = []
        if there:
            # The index first: where this node dies in between, another finds it at who is gone still.
            await self._asker.ask(_marked(self._keys.owned(shard, node.uid), there))
            answers = await self._asker.ask(*(HAND(self._keys.client(name, b"s"), gone, node.uid) for name in there))
        await self._asker.ask(("ZREM", self._keys.owned(shard, gone), *names))
        return [decoded(name) for name, handed in zip(there, answers, strict=True) if handed]

    async def _left_at(self, names: Sequence[bytes], gone: int, uid: int) -> list[bytes]:
        """Those that have their home at who is gone, or were given one here and an answer that was lost."""
        answers = await self._asker.ask(
            *(("HMGET", self._keys.client(name, b"s")[0], "u", "j", "h") for name in names)
        )
        return [
            name
            for name, (home, stored, handed) in zip(names, answers, strict=True)
            if stored is not None and (int(home or 0) == gone or (int(home or 0) == uid and int(handed or 0) == uid))
        ]

    async def _not_of(self, names: Sequence[bytes], uid: int) -> list[bytes]:
        """Those of whom nothing is stored, or who have their home elsewhere."""
        answers = await self._asker.ask(*(("HMGET", self._keys.client(name, b"s")[0], "u", "j") for name in names))
        return [
            name
            for name, (home, stored) in zip(names, answers, strict=True)
            if stored is None or int(home or 0) != uid
        ]

    async def _ask(self, commands: Sequence[Command]) -> list[Any]:
        return await self._asker.ask(*commands)


def _marked(index: bytes, names: Sequence[bytes]) -> Command:
    words: list[bytes | str | int] = ["ZADD", index]
    for name in names:
        words += (0, name)
    return tuple(words)
