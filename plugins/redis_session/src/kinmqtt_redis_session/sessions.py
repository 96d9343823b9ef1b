"""The session store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from kinmqtt_redis_session import codec
from kinmqtt_redis_session.asking import Asker
from kinmqtt_redis_session.homes import Homes
from kinmqtt_redis_session.keys import SHARDS, decoded, encoded, shard_of
from kinmqtt_redis_session.leases import NOBODY, Leases
from kinmqtt_redis_session.scripts import CLAIM, RELEASE, SESSION, UNDO, Command
from kinmqtt_redis_session.turn import Ledger
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
"""Clients looked at in one step."""

OTHERS: Final = b"others"
"""What claim.lua answers of a client id that is another user's."""

Seen = tuple[int, NodeIdentity | None, StoredSession | None, int]
"""Epoch, owner, session, and the uid of the node where it has its home."""


class RedisSessionStore(SessionStore):
    """Sessions in Redis."""

    def __init__(
        self, ledger: Ledger, asker: Asker, leases: Leases, log: Log, *, uid: int, remember_s: float, live: bool
    ) -> None:
        """``uid`` is this node's."""
        self._log = log
        self._ledger = ledger
        self._asker = asker
        self._keys = ledger.keys
        self._remember_ms = int(remember_s * 1000)
        self._live = live
        self._epochs = ledger.epochs
        self._claims = 0
        self._claiming: dict[str, str] = {}
        """Client ids of claims that are under way, or whose answers were lost, by what names the claim."""
        self.local_claims = 0
        """For metrics: claims that were answered while Redis was away."""
        self._uid = uid
        self._passed: dict[bytes, int] = {}
        """Of indexes in which more is due than is looked at in one go: how much of others is not looked at again."""
        self._leases = leases
        self._taken: Callable[[str, int], object] = lambda client_id, epoch: None
        self.homes = Homes(ledger, asker, leases, uid, self._claiming.values)
        self.spawn: Callable[[Awaitable[Any]], object] = lambda answer: None

    @property
    def transaction(self) -> object:
        return self if self._ledger.link.cluster else self._ledger

    def commit(self) -> Commit:
        return self._ledger.commit()

    def apply(self, writes: Sequence[SessionWrite]) -> None:
        if not self._leases.is_held:
            # Nobody has claimed what is imported: the first broker to look for what was left behind finds it.
            for write in writes:
                if isinstance(write, OpenSession):
                    self._ledger.owners.setdefault(write.client_id, NOBODY)
        self._ledger.gather(writes)

    async def claim(self, client_id: str, node: NodeIdentity) -> Claim:
        claim = await self._claim(client_id, node, None)
        assert claim is not None
        return claim

    async def claim_for(self, client_id: str, node: NodeIdentity, claimant: Claimant) -> Claim | None:
        """See :meth:`SessionStore.claim_for`; what is claimed while Redis is away nobody can look at there."""
        return await self._claim(client_id, node, claimant)

    async def _claim(self, client_id: str, node: NodeIdentity, claimant: Claimant | None) -> Claim | None:
        try:
            if not self._asker.is_up:
                raise self._ledger.link.away()
            return await self._claimed(client_id, node, claimant)
        except ServiceUnavailable:
            # Without its stored session a client would be let in as if it had none, and that be discarded.
            # Where Redis is there and refuses there is nothing to bridge.
            if not self._live or self._asker.is_up or self._ledger.mirror.has_session(client_id):
                raise
        # An epoch that is known, and never one above it: where Redis knows a later owner, it refuses whatever is
        # written under this one.
        self.local_claims += 1
        return Claim(self._epochs.get(client_id, 0))

    async def adopt(self, client_id: str, node: NodeIdentity) -> Claim | None:
        if not self._asker.is_up:
            raise self._ledger.link.away()
        return await self._claimed(client_id, node, None, orphaned=True)

    def release(self, client_id: str, epoch: int) -> None:
        if not self._ledger.link.is_up:
            if not self._ledger.mirror.has_session(client_id) and self._epochs.get(client_id, epoch) == epoch:
                # Nothing is known to be stored of it, and whatever is written under no epoch outranks nobody.
                self._epochs.pop(client_id, None)
                self._ledger.owners.pop(client_id, None)
            return  # What is stored of it may only have been out of sight.
        if self._epochs.get(client_id) == epoch:
            del self._epochs[client_id]
        owner = self._ledger.owners.pop(client_id, None)
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
        """See :meth:`SessionStore.iterate`; the order is that of the index, so that a session has one place."""
        homes: dict[str, int] = {}
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
                    homes[session.client_id] = home
        return SessionPage(tuple(found), (shard, after) if shard < SHARDS else None, await self._elsewhere(homes))

    async def orphaned(self, node: NodeIdentity, limit: int) -> Sequence[str]:
        """See :meth:`SessionStore.orphaned`; while Redis is away, nothing."""
        if self._asker.is_up:
            with suppress(ServiceUnavailable):
                return await self.homes.orphaned(node, limit)
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

    def on_taken_over(self, call: Callable[[str, int], object]) -> None:
        self._taken = call

    async def look_for_taken(self, ask: Callable[[Sequence[Command]], Awaitable[list[Any]]]) -> None:
        """Tell of what was claimed here and has its home at another node by now, and of what Redis has lost.

        A write would be refused; but who writes nothing, a client that only listens, would wait for ever. And what is
        kept for a session that is not there would be found by nobody.
        """
        lost = 0
        held = list(self._epochs.items())
        for at in range(0, len(held), PAGE):
            page = held[at : at + PAGE]
            homes = await ask([("HGET", self._keys.client(encoded(name), b"s")[0], "u") for name, _ in page])
            for (client_id, epoch), home in zip(page, homes, strict=True):
                # What was claimed again while Redis was asked is here.
                if self._epochs.get(client_id) != epoch:
                    continue
                if home is None and self._ledger.mirror.has_session(client_id):
                    lost += 1
                elif home is None or int(home) == self._uid:
                    continue
                del self._epochs[client_id]
                self._ledger.owners.pop(client_id, None)
                self._taken(client_id, epoch)
        if lost:
            self._log.error(
                "Redis has lost {count} sessions that it held: it was emptied, or began anew without them", count=lost
            )

    def count(self) -> int:
        return self._ledger.mirror.sessions

    async def repair(
        self, ask: Callable[[Sequence[Command]], Awaitable[Any]], claims: dict[str, str] | None = None
    ) -> None:
        """Undo the claims whose answers were lost, or some: their epochs are above those under which writes go on."""
        lost = list((self._claiming if claims is None else claims).items())
        for at in range(0, len(lost), PAGE):
            page = lost[at : at + PAGE]
            await ask([UNDO(self._keys.client(encoded(name), b"s"), token) for token, name in page])
            for token, _ in page:
                self._claiming.pop(token, None)

    async def _elsewhere(self, homes: dict[str, int]) -> frozenset[str]:
        """Those of sessions that have their home at another node, unless it is known to be gone."""
        others = set(homes.values()) - {self._uid, NOBODY}
        if not self._leases.is_held or not others:
            return frozenset()
        await self._leases.look(self._ask, others)
        living = {uid for uid in others if not self._leases.is_gone(uid)}
        return frozenset(client_id for client_id, home in homes.items() if home in living)

    async def _ask(self, commands: Sequence[Command]) -> list[Any]:
        return await self._asker.ask(*commands)

    async def _claimed(
        self, client_id: str, node: NodeIdentity, claimant: Claimant | None, *, orphaned: bool = False
    ) -> Claim | None:
        """The answer to a claim; ``None`` where somebody else's is in its way, and nothing was done."""
        answer = await self._asked_to_claim(client_id, node, claimant, orphaned)
        if answer is not None and answer[0] == OTHERS:
            # Of what is not stored Redis may not know yet that nobody holds it any more.
            if not answer[1] or not await self._holds_no_more(client_id, int(answer[1])):
                return None
            answer = await self._asked_to_claim(client_id, node, claimant, orphaned, int(answer[1]))
            if answer[0] == OTHERS:
                return None
        self.homes.claimed(client_id, node.uid)
        if answer is None:
            return None
        epoch, before, previous, head, filters = answer
        number = int(epoch)
        if node.uid == self._uid:
            self._epochs[client_id] = number
        self._ledger.owners[client_id] = node.uid
        return Claim(number, codec.owner_of(previous), codec.session_of(head[2:], filters), int(before))

    async def _holds_no_more(self, client_id: str, holder: int) -> bool:
        """Whether a node is gone, or has released what Redis says that it holds."""
        if holder == self._uid:
            return client_id not in self._epochs
        await self._leases.look(self._ask, {holder})
        return self._leases.is_gone(holder)

    async def _asked_to_claim(
        self,
        client_id: str,
        node: NodeIdentity,
        claimant: Claimant | None,
        orphaned: bool,
        lost: int | None = None,
    ) -> Any:
        """What Redis answers to a claim; ``lost`` is the uid of a node that holds nothing any more."""
        self._claims += 1
        token = f"{node.uid:x}-{self._claims:x}"
        self._claiming[token] = client_id
        name = encoded(client_id)
        owned = self._keys.owned(shard_of(name), node.uid)
        script = CLAIM(
            self._keys.client(name, b"s", b"f", b"q", b"i", b"r"),
            codec.owner_json(node),
            node.uid,
            self._remember_ms,
            token,
            node.uid if orphaned else "",
            codec.claimant_json(claimant),
            "" if lost is None else lost,
        )
        ahead: Command = ("ZADD", owned, 0, name)
        try:
            if self._ledger.link.cluster:
                await self._asker.ask(ahead)
                (answer,) = await self._asker.ask(script)
            else:
                _, answer = await self._asker.ask(ahead, script)
        except ServiceUnavailable:
            if self._asker.is_up:
                # It was refused, and not lost: nobody comes back who would undo what may have been done.
                self.spawn(self.repair(self._ask, {token: client_id}))
            raise
        del self._claiming[token]
        return answer

    async def _released(self, client_id: str, epoch: int, owner: int | None) -> None:
        name = encoded(client_id)
        commands = [RELEASE(self._keys.client(name, b"s"), str(epoch))]
        if owner is not None:
            commands.append(("ZREM", self._keys.owned(shard_of(name), owner), name))
        await self._asker.ask(*commands)

    async def _due(
        self, part: bytes, now: float, limit: int, is_due: Callable[[Seen], bool]
    ) -> list[tuple[int, StoredSession]]:
        """What an index finds and the clients' own keys confirm; while Redis is away, nothing.

        What has its home at another node is that node's to end, or whoever's it is when that one is gone.
        """
        found: list[tuple[int, StoredSession]] = []
        if self._asker.is_up:
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
        ask = [
            ("ZRANGE", index, "-inf", repr(now), "BYSCORE", "LIMIT", passed.get(index, 0), most) for index in indexes
        ]
        for index, names in zip(indexes, await self._asker.ask(*ask), strict=True):
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
            # The next look goes on behind them, and after the last the one behind it begins anew.
            passed[index] = passed.get(index, 0) + others if len(names) == most else 0
            if stale:
                await self._sweep(index, part, stale)

    async def _names(self, index: bytes, after: bytes, limit: int) -> list[bytes]:
        start = b"(" + after if after else b"-"
        (names,) = await self._asker.ask(("ZRANGE", index, start, "+", "BYLEX", "LIMIT", 0, limit))
        return list(names)

    async def _seen(self, names: Sequence[bytes]) -> list[Seen]:
        answers = await self._asker.ask(*(SESSION(self._keys.client(name, b"s", b"f")) for name in names))
        return [
            (int(head[0] or 0), codec.owner_of(head[1]), codec.session_of(head[2:], filters), int(home))
            for head, filters, home in answers
        ]

    async def _sweep(self, index: bytes, part: bytes, names: Sequence[bytes]) -> None:
        """Take out of an index what is not so; what has become so meanwhile is put back."""
        await self._asker.ask(("ZREM", index, *names))
        back: list[Command] = []
        for name, (_, _, session, _) in zip(names, await self._seen(names), strict=True):
            at = None if session is None else session.expires_at if part == b"x" else session.will_due_at
            if at is not None:
                back.append(("ZADD", index, repr(at), name))
        await self._asker.ask(*back)

    async def _sweep_owned(self, index: bytes, names: Sequence[bytes], node: NodeIdentity) -> None:
        await self._asker.ask(("ZREM", index, *names))
        seen = zip(names, await self._seen(names), strict=True)
        back = [name for name, (_, _, session, home) in seen if session is not None and home == node.uid]
        await self._asker.ask(*(("ZADD", index, 0, name) for name in back))
