"""The session store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence, Set
from contextlib import suppress
from typing import Any, Final

from kinmqtt_redis_session import codec
from kinmqtt_redis_session.batch_reader import BatchReader
from kinmqtt_redis_session.keys import SHARDS, decoded, encoded, shard_of
from kinmqtt_redis_session.leases import NOBODY, Leases
from kinmqtt_redis_session.ownership import Ownership
from kinmqtt_redis_session.scripts import CLAIM, RELEASE, SESSION, UNDO_CLAIM, Command, Execute
from kinmqtt_redis_session.write_pipeline import WritePipeline
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.services.plugin import Log
from kinmqtt_spi.services.session import (
    Claim,
    Claimant,
    OpenSession,
    SessionPage,
    SessionStore,
    SessionWrite,
    StoredSession,
)
from kinmqtt_spi.values import Commit, NodeIdentity

PAGE: Final = 200
"""Clients read in one step."""

OTHERS: Final = b"others"
"""claim.lua's answer if the client id belongs to another user."""

BURIED: Final = b"buried"
"""claim.lua's answer if the node was declared dead."""

Seen = tuple[int, NodeIdentity | None, StoredSession | None, int]
"""Epoch, owner, session, and the uid of its home node."""


class RedisSessionStore(SessionStore):
    """Sessions in Redis."""

    is_shared = True

    def __init__(
        self,
        pipeline: WritePipeline,
        reader: BatchReader,
        leases: Leases,
        log: Log,
        *,
        uid: int,
        remember_s: float,
        live: bool,
    ) -> None:
        """``uid`` is this node's."""
        self._log = log
        self._pipeline = pipeline
        self._reader = reader
        self._keys = pipeline.keys
        self._remember_ms = int(remember_s * 1000)
        self._live = live
        self._epochs = pipeline.epochs
        self._claims = 0
        self._claiming: dict[str, str] = {}
        """Client ids by claim token, of claims in flight and of claims whose answers were lost."""
        self.local_claims = 0
        """For metrics: claims answered locally while Redis was away."""
        self._uid = uid
        self._passed: dict[bytes, int] = {}
        """By index with more due sessions than one call reads: how many sessions of other nodes to skip."""
        self._leases = leases
        self._taken: Callable[[str, int], object] = lambda client_id, epoch: None
        self.ownership = Ownership(pipeline, reader, leases, uid, self._claiming.values)
        self.spawn: Callable[[Awaitable[Any]], object] = lambda answer: None

    @property
    def transaction(self) -> object:
        return self if self._pipeline.link.cluster else self._pipeline

    def commit(self) -> Commit:
        return self._pipeline.commit()

    def apply(self, writes: Sequence[SessionWrite]) -> None:
        if not self._leases.is_held:
            # Imported sessions have no home; the first broker that looks for orphaned sessions adopts them.
            for write in writes:
                if isinstance(write, OpenSession):
                    self._pipeline.owners.setdefault(write.client_id, NOBODY)
        self._pipeline.gather(writes)

    async def claim(self, client_id: str, node: NodeIdentity, above: int = 0) -> Claim:
        claim = await self._claim(client_id, node, None, above)
        assert claim is not None
        return claim

    async def claim_for(self, client_id: str, node: NodeIdentity, claimant: Claimant, above: int = 0) -> Claim | None:
        """See :meth:`SessionStore.claim_for`; claims made while Redis is away are not visible there."""
        return await self._claim(client_id, node, claimant, above)

    async def _claim(self, client_id: str, node: NodeIdentity, claimant: Claimant | None, above: int) -> Claim | None:
        try:
            if not self._reader.is_up:
                raise self._pipeline.link.away()
            return await self._claimed(client_id, node, claimant, above)
        except ServiceUnavailable:
            # Accepting a client without its stored session would discard that session. If Redis is up and refuses,
            # there is no outage to bridge.
            if not self._live or self._reader.is_up or self._pipeline.counters.has_session(client_id):
                raise
            if above > self._epochs.get(client_id, 0):
                raise
        # Use the known epoch and never a higher one: if Redis knows a later owner, it refuses writes under this
        # epoch.
        self.local_claims += 1
        return Claim(self._epochs.get(client_id, 0))

    async def adopt(self, client_id: str, node: NodeIdentity) -> Claim | None:
        if not self._reader.is_up:
            raise self._pipeline.link.away()
        return await self._claimed(client_id, node, None, orphaned=True)

    def release(self, client_id: str, epoch: int) -> None:
        if not self._pipeline.link.is_up:
            if not self._pipeline.counters.has_session(client_id) and self._epochs.get(client_id, epoch) == epoch:
                # No stored session is known, and writes without an epoch never override another owner.
                self._epochs.pop(client_id, None)
                self._pipeline.owners.pop(client_id, None)
            return  # Redis may have a stored session that this node does not know of.
        if self._epochs.get(client_id) == epoch:
            del self._epochs[client_id]
        owner = self._pipeline.owners.pop(client_id, None)
        if epoch:
            self.spawn(self._released(client_id, epoch, owner))

    async def expired(self, now: float, limit: int) -> Sequence[tuple[int, StoredSession]]:
        def is_due(seen: Seen) -> bool:
            _, owner, session, _ = seen
            return owner is None and session is not None and (session.expires_at or now + 1) <= now

        return await self._due(b"x", now, limit, is_due)

    async def due_wills(self, now: float, limit: int) -> Sequence[tuple[int, StoredSession]]:
        def is_due(seen: Seen) -> bool:
            _, owner, session, _ = seen
            return owner is None and session is not None and (session.will_due_at or now + 1) <= now

        return await self._due(b"w", now, limit, is_due)

    async def iterate(self, cursor: object = None, limit: int = 1000) -> SessionPage:
        """See :meth:`SessionStore.iterate`; sessions come in index order, so that each comes once."""
        ownership: dict[str, int] = {}
        shard, after = cursor if isinstance(cursor, tuple) else (0, b"")
        found: list[tuple[int, StoredSession]] = []
        while shard < SHARDS and len(found) < limit:
            names = await self._names(self._keys.index(shard, b"a"), after, min(PAGE, limit - len(found)))
            if not names:
                shard, after = shard + 1, b""
                continue
            after = names[-1]
            for epoch, _, session, home in await self._seen(names):
                if session is not None:
                    found.append((epoch, session))
                    ownership[session.client_id] = home
        return SessionPage(tuple(found), (shard, after) if shard < SHARDS else None, await self._elsewhere(ownership))

    async def orphaned(self, node: NodeIdentity, limit: int) -> Sequence[str]:
        """See :meth:`SessionStore.orphaned`; returns nothing while Redis is away."""
        if self._reader.is_up:
            with suppress(ServiceUnavailable):
                return await self.ownership.orphaned(node, limit)
        return ()

    async def owned_by(self, node: NodeIdentity, limit: int) -> Sequence[str]:
        found: list[str] = []
        for shard in range(SHARDS):
            index, after = self._keys.owned(shard, node.uid), b""
            while len(found) < limit:
                names = await self._names(index, after, PAGE)
                if not names:
                    break
                after = names[-1]
                stale = []
                for name, (_, owner, session, home) in zip(names, await self._seen(names), strict=True):
                    if owner == node and session is not None:
                        found.append(decoded(name))
                    elif home != node.uid or session is None:
                        stale.append(name)
                if stale:
                    await self._sweep_owned(index, stale, node)
        return tuple(found[:limit])

    async def is_stored(self, client_id: str) -> bool:
        (found,) = await self._reader.execute(("HEXISTS", self._keys.client(encoded(client_id), b"s")[0], "j"))
        return bool(found)

    async def bury(self, node: NodeIdentity) -> None:
        await self._leases.bury(node.uid, self._execute)

    async def living(self, uids: Set[int]) -> Set[int]:
        others = set(uids) - {self._uid, NOBODY}
        if not others:
            return others
        await self._leases.look(self._execute, others)
        return {uid for uid in others if not self._leases.is_gone(uid)}

    def on_taken_over(self, call: Callable[[str, int], object]) -> None:
        self._taken = call

    async def check_taken_over(self, execute: Execute) -> None:
        """Report sessions claimed here that now have another home, or that Redis has lost.

        Their writes would be refused, but a client that only subscribes writes nothing and would never notice.
        Entries written for a session that does not exist would never be found.
        """
        lost = 0
        held = list(self._epochs.items())
        for at in range(0, len(held), PAGE):
            page = held[at : at + PAGE]
            ownership = await execute([("HGET", self._keys.client(encoded(name), b"s")[0], "u") for name, _ in page])
            for (client_id, epoch), home in zip(page, ownership, strict=True):
                # Skip clients that were claimed again meanwhile.
                if self._epochs.get(client_id) != epoch:
                    continue
                if home is None and self._pipeline.counters.has_session(client_id):
                    lost += 1
                elif home is None or int(home) == self._uid:
                    continue
                del self._epochs[client_id]
                self._pipeline.owners.pop(client_id, None)
                self._taken(client_id, epoch)
        if lost:
            self._log.error("Redis has lost {count} sessions: it was emptied, or restarted without them", count=lost)

    def count(self) -> int:
        return self._pipeline.counters.sessions

    async def repair(self, execute: Execute, claims: dict[str, str] | None = None) -> None:
        """Undo claims whose answers were lost (by default all): their epochs are above those of the next writes."""
        lost = list((self._claiming if claims is None else claims).items())
        for at in range(0, len(lost), PAGE):
            page = lost[at : at + PAGE]
            await execute([UNDO_CLAIM(self._keys.client(encoded(name), b"s"), token) for token, name in page])
            for token, _ in page:
                self._claiming.pop(token, None)

    async def _elsewhere(self, ownership: dict[str, int]) -> frozenset[str]:
        """The sessions whose home is another node that is not known to be gone."""
        others = set(ownership.values()) - {self._uid, NOBODY}
        if not self._leases.is_held or not others:
            return frozenset()
        await self._leases.look(self._execute, others)
        living = {uid for uid in others if not self._leases.is_gone(uid)}
        return frozenset(client_id for client_id, home in ownership.items() if home in living)

    async def _execute(self, commands: Sequence[Command]) -> list[Any]:
        return await self._reader.execute(*commands)

    async def _claimed(
        self, client_id: str, node: NodeIdentity, claimant: Claimant | None, above: int = 0, *, orphaned: bool = False
    ) -> Claim | None:
        """Claim a client; returns ``None``, with no effect, if another user or node has it."""
        answer = await self._send_claim(client_id, node, claimant, orphaned, above)
        if answer is not None and answer[0] == OTHERS:
            # Without a stored session, Redis may not know yet that the claim was released.
            if not answer[1] or not await self._has_released(client_id, int(answer[1])):
                return None
            answer = await self._send_claim(client_id, node, claimant, orphaned, above, int(answer[1]))
            if answer[0] == OTHERS:
                return None
        self.ownership.claimed(client_id, node.uid)
        if answer is None:
            return None
        epoch, before, previous, head, filters, home = answer
        number = int(epoch)
        if node.uid == self._uid:
            self._epochs[client_id] = number
        self._pipeline.owners[client_id] = node.uid
        session = codec.session_of(head[2:], filters)
        return Claim(number, codec.owner_of(previous), session, int(before), int(home) if home else None)

    async def _has_released(self, client_id: str, holder: int) -> bool:
        """Whether a node is gone or has released the client, although Redis still names it as the holder."""
        if holder == self._uid:
            return client_id not in self._epochs
        await self._leases.look(self._execute, {holder})
        return self._leases.is_gone(holder)

    async def _send_claim(
        self,
        client_id: str,
        node: NodeIdentity,
        claimant: Claimant | None,
        orphaned: bool,
        above: int,
        lost: int | None = None,
    ) -> Any:
        """Run the claim script; ``lost`` is the uid of a node that no longer holds the client."""
        self._claims += 1
        token = f"{node.uid:x}-{self._claims:x}"
        self._claiming[token] = client_id
        name = encoded(client_id)
        owned = self._keys.owned(shard_of(name), node.uid)
        buried = self._keys.buried(node.uid)
        is_cluster = self._pipeline.link.cluster
        keys = self._keys.client(name, b"s", b"f", b"q", b"i", b"r")
        script = CLAIM(
            # In a Redis Cluster no script reaches keys of several slots.
            keys if is_cluster else [*keys, buried],
            codec.owner_json(node),
            node.uid,
            self._remember_ms,
            token,
            node.uid if orphaned else "",
            codec.claimant_json(claimant),
            "" if lost is None else lost,
            above,
        )
        ahead: Command = ("ZADD", owned, 0, name)
        try:
            if is_cluster:
                _, is_buried = await self._reader.execute(ahead, ("EXISTS", buried))
                (answer,) = ([BURIED],) if is_buried else await self._reader.execute(script)
            else:
                _, answer = await self._reader.execute(ahead, script)
        except ServiceUnavailable:
            if self._reader.is_up:
                # Redis refused, so no reconnect will undo what the claim may have done: undo it now.
                self.spawn(self.repair(self._execute, {token: client_id}))
            raise
        del self._claiming[token]
        if answer is not None and answer[0] == BURIED:
            self.spawn(self._reader.execute(("ZREM", owned, name)))
            raise ServiceUnavailable(f"node {node.name} was declared dead: it can't claim {client_id!r}")
        return answer

    async def _released(self, client_id: str, epoch: int, owner: int | None) -> None:
        name = encoded(client_id)
        commands = [RELEASE(self._keys.client(name, b"s"), str(epoch))]
        if owner is not None:
            commands.append(("ZREM", self._keys.owned(shard_of(name), owner), name))
        await self._reader.execute(*commands)

    async def _due(
        self, part: bytes, now: float, limit: int, is_due: Callable[[Seen], bool]
    ) -> list[tuple[int, StoredSession]]:
        """Sessions that are due by an index and by their own keys; none while Redis is away.

        A session whose home is another node is left to that node, or to the node that adopts it.
        """
        found: list[tuple[int, StoredSession]] = []
        if self._reader.is_up:
            with suppress(ServiceUnavailable):
                await self._find_due(part, now, limit, is_due, found)
        return found[:limit]

    async def _find_due(
        self,
        part: bytes,
        now: float,
        limit: int,
        is_due: Callable[[Seen], bool],
        found: list[tuple[int, StoredSession]],
    ) -> None:
        indexes = [self._keys.index(shard, part) for shard in range(SHARDS)]
        most = limit + PAGE
        passed = self._passed
        queries = [
            ("ZRANGE", index, "-inf", repr(now), "BYSCORE", "LIMIT", passed.get(index, 0), most) for index in indexes
        ]
        for index, names in zip(indexes, await self._reader.execute(*queries), strict=True):
            stale = []
            others = 0
            for at in range(0, len(names), PAGE):
                if len(found) >= limit:
                    break
                page = names[at : at + PAGE]
                for name, seen in zip(page, await self._seen(page), strict=True):
                    epoch, _, session, home = seen
                    if not is_due(seen) or session is None:
                        stale.append(name)
                    elif self._leases.is_held and home != self._uid:
                        others += 1
                    else:
                        found.append((epoch, session))
            # The next call continues after them; after the last one it starts over.
            passed[index] = passed.get(index, 0) + others if len(names) == most else 0
            if stale:
                await self._sweep(index, part, stale)

    async def _names(self, index: bytes, after: bytes, limit: int) -> list[bytes]:
        start = b"(" + after if after else b"-"
        (names,) = await self._reader.execute(("ZRANGE", index, start, "+", "BYLEX", "LIMIT", 0, limit))
        return list(names)

    async def _seen(self, names: Sequence[bytes]) -> list[Seen]:
        answers = await self._reader.execute(*(SESSION(self._keys.client(name, b"s", b"f")) for name in names))
        return [
            (int(head[0] or 0), codec.owner_of(head[1]), codec.session_of(head[2:], filters), int(home))
            for head, filters, home in answers
        ]

    async def _sweep(self, index: bytes, part: bytes, names: Sequence[bytes]) -> None:
        """Remove stale sessions from an index, and put back those that are due again meanwhile."""
        await self._reader.execute(("ZREM", index, *names))
        back: list[Command] = []
        for name, (_, _, session, _) in zip(names, await self._seen(names), strict=True):
            at = None if session is None else session.expires_at if part == b"x" else session.will_due_at
            if at is not None:
                back.append(("ZADD", index, repr(at), name))
        await self._reader.execute(*back)

    async def _sweep_owned(self, index: bytes, names: Sequence[bytes], node: NodeIdentity) -> None:
        await self._reader.execute(("ZREM", index, *names))
        seen = zip(names, await self._seen(names), strict=True)
        back = [name for name, (_, _, session, home) in seen if session is not None and home == node.uid]
        await self._reader.execute(*(("ZADD", index, 0, name) for name in back))
