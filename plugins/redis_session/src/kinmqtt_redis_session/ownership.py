"""Session ownership: a session's home is the node that claimed it last, until that node is gone.

Each node has an index of the sessions whose home it is (``o``). The index is never missing a session, but may contain
stale ones: readers check the client's own keys and remove stale entries.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import islice
from typing import Any, Final

from kinmqtt_redis_session.batch_reader import BatchReader
from kinmqtt_redis_session.keys import SHARDS, Keys, decoded, encoded, shard_of
from kinmqtt_redis_session.leases import Leases
from kinmqtt_redis_session.scripts import HAND_OVER, Command, Execute
from kinmqtt_redis_session.write_pipeline import WritePipeline
from kinmqtt_spi.values import NodeIdentity

PAGE: Final = 500


class Ownership:
    """Finds orphaned sessions, gives them a new home, and maintains the index of this node's sessions."""

    def __init__(
        self,
        pipeline: WritePipeline,
        reader: BatchReader,
        leases: Leases,
        uid: int,
        claiming: Callable[[], Collection[str]],
    ) -> None:
        """``uid`` is this node's; ``claiming`` returns the clients whose claims are in flight here."""
        self._uid = uid
        self._pipeline = pipeline
        self._reader = reader
        self._keys: Keys = pipeline.keys
        self._leases = leases
        self._claiming = claiming
        self._offered: dict[int, dict[str, None]] = {}
        """By node uid, the sessions offered to the node for adoption and not claimed yet."""

    async def orphaned(self, node: NodeIdentity, limit: int) -> list[str]:
        """Give orphaned sessions this home; returns them, and earlier ones again until they are claimed."""
        offered = await self._still_offered(node, limit)
        await self._leases.look(self._execute)
        for gone in self._leases.gone():
            if gone != node.uid and len(offered) < limit:
                offered += await self._adopt(gone, node, limit - len(offered), set(offered))
        self._offered.setdefault(node.uid, {}).update(dict.fromkeys(offered))
        return offered

    def claimed(self, client_id: str, uid: int) -> None:
        """Record that a node has claimed a client."""
        offered = self._offered.get(uid)
        if offered is not None:
            offered.pop(client_id, None)

    async def restore_index(self, execute: Execute) -> None:
        """Add this node's sessions to its index again: others may have removed them while its lease had expired."""
        owned: dict[bytes, list[bytes]] = {}
        claiming = dict.fromkeys(self._claiming(), self._uid)
        for client_id, uid in (claiming | self._pipeline.owners).items():
            name = encoded(client_id)
            owned.setdefault(self._keys.owned(shard_of(name), uid), []).append(name)
        for index, names in owned.items():
            for at in range(0, len(names), PAGE):
                await execute([_marked(index, names[at : at + PAGE])])

    async def sweep(self, node: NodeIdentity) -> None:
        """Remove sessions from this node's index that have another home or no longer exist."""
        for shard in range(SHARDS):
            index, start = self._keys.owned(shard, node.uid), b"-"
            while True:
                (names,) = await self._reader.execute(("ZRANGE", index, start, "+", "BYLEX", "LIMIT", 0, PAGE))
                if not names:
                    break
                start = b"(" + names[-1]
                stale = await self._not_of(names, node.uid)
                if stale:
                    await self._reader.execute(("ZREM", index, *stale))
                    still = set(await self._not_of(stale, node.uid))
                    claiming = {encoded(client_id) for client_id in self._claiming()}
                    # Put back what was claimed since, or is being claimed.
                    back = [name for name in stale if name not in still or name in claiming]
                    if back:
                        await self._reader.execute(_marked(index, back))

    async def _still_offered(self, node: NodeIdentity, limit: int) -> list[str]:
        waiting = self._offered.setdefault(node.uid, {})
        names = list(islice(waiting, limit))
        answers = await self._reader.execute(
            *(("HGET", self._keys.client(encoded(name), b"s")[0], "h") for name in names)
        )
        for name, handed in zip(names, answers, strict=True):
            if handed != b"%d" % node.uid:
                waiting.pop(name, None)
        return [name for name in names if name in waiting]

    async def _adopt(self, gone: int, node: NodeIdentity, limit: int, known: Collection[str]) -> list[str]:
        """Give up to ``limit`` orphaned sessions of a node that is gone their home at ``node``."""
        indexes = [self._keys.owned(shard, gone) for shard in range(SHARDS)]
        most = min(limit, PAGE)
        answers = await self._reader.execute(
            *(("ZRANGE", key, "-", "+", "BYLEX", "LIMIT", 0, most) for key in indexes)
        )
        if not any(answers):
            await self._leases.forget(gone, self._execute)
            return []
        found: list[str] = []
        for shard, names in enumerate(answers):
            some = list(names[: limit - len(found)])
            if some:
                taken = await self._hand_over(shard, some, gone, node)
                found += [client_id for client_id in taken if client_id not in known]
        return found

    async def _hand_over(self, shard: int, names: Sequence[bytes], gone: int, node: NodeIdentity) -> list[str]:
        there = await self._left_at(names, gone, node.uid)
        answers: list[Any] = []
        if there:
            # Update the new index first: if this node dies in between, the old index still has the sessions.
            await self._reader.execute(_marked(self._keys.owned(shard, node.uid), there))
            answers = await self._reader.execute(
                *(HAND_OVER(self._keys.client(name, b"s"), gone, node.uid) for name in there)
            )
        await self._reader.execute(("ZREM", self._keys.owned(shard, gone), *names))
        return [decoded(name) for name, handed in zip(there, answers, strict=True) if handed]

    async def _left_at(self, names: Sequence[bytes], gone: int, uid: int) -> list[bytes]:
        """The clients whose home is ``gone``, or that were handed over to ``uid`` by a call whose answer was lost."""
        answers = await self._reader.execute(
            *(("HMGET", self._keys.client(name, b"s")[0], "u", "j", "h") for name in names)
        )
        return [
            name
            for name, (home, stored, handed) in zip(names, answers, strict=True)
            if stored is not None and (int(home or 0) == gone or (int(home or 0) == uid and int(handed or 0) == uid))
        ]

    async def _not_of(self, names: Sequence[bytes], uid: int) -> list[bytes]:
        """The clients without a stored session, or with another home."""
        answers = await self._reader.execute(
            *(("HMGET", self._keys.client(name, b"s")[0], "u", "j") for name in names)
        )
        return [
            name
            for name, (home, stored) in zip(names, answers, strict=True)
            if stored is None or int(home or 0) != uid
        ]

    async def _execute(self, commands: Sequence[Command]) -> list[Any]:
        return await self._reader.execute(*commands)


def _marked(index: bytes, names: Sequence[bytes]) -> Command:
    words: list[bytes | str | int] = ["ZADD", index]
    for name in names:
        words += (0, name)
    return tuple(words)
