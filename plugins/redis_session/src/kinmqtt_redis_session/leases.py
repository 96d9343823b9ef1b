"""Node leases: each node has a key in Redis that expires unless the node renews it.

A node is gone if it stopped cleanly, if its process on this machine has ended, or if its lease has expired. An
expired lease counts only if this node has seen Redis and kept its own lease for a while: when Redis was away or all
nodes stood still, all leases expire together, and living nodes need time to renew theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from attrs import define

from kinmqtt_redis_session.keys import Keys
from kinmqtt_redis_session.machine import Machine
from kinmqtt_redis_session.scripts import FORGET, Execute
from kinmqtt_spi.services.plugin import Clock, Log
from kinmqtt_spi.values import NodeIdentity

NOBODY: Final = 0
"""The home uid of sessions that no node has claimed yet: imported ones."""

STOPPED: Final = b"-"
"""The location of a node that has stopped cleanly, until no session has its home there."""

BURIED_MS: Final = 7 * 86_400_000
"""How long it is remembered that a node was declared dead: longer than any process may stand still and go on."""

MOST_BURIED: Final = 10_000
"""How many nodes that were declared dead here are remembered; Redis remembers all of them for its time."""

LOOKS: Final = 20
"""How many times per lease duration a starting node checks whether other nodes renew their leases."""


@define(slots=True)
class _Seen:
    """The observed state of another node's lease."""

    place: bytes | None = None
    """The location of its process; ``None`` if Redis has none."""
    lease: bytes | None = None
    since: float = 0.0
    """When a renewal was last seen; else when the node was first seen."""
    renews: bool = False
    buried: bool = False
    """Whether any node has declared it dead: it may still renew its lease if only the cluster has lost it."""
    forgotten: bool = False
    """Whether the node is gone and its index empty, so that nothing is left to adopt."""


class Leases:
    """This node's lease, and the observed leases of other nodes."""

    def __init__(
        self,
        keys: Keys,
        node: NodeIdentity,
        clock: Clock,
        log: Log,
        *,
        lease_s: float,
        grace_s: float,
        machine: Machine | None = None,
    ) -> None:
        """``grace_s`` is how long Redis must have been up before an expired lease counts."""
        self._keys = keys
        self._uid = node.uid
        self._clock = clock
        self._log = log
        self._lease_s = lease_s
        self._grace_s = grace_s
        self._machine = Machine() if machine is None else machine
        self._renewals = 0
        self._answered: bytes | None = None
        """The last renewal that Redis has confirmed."""
        self._up_since: float | None = None
        self._others: dict[int, _Seen] = {}
        self._buried: dict[int, None] = {}
        """Nodes that were declared dead here. One may still renew its lease if only the cluster has lost it."""
        self.is_held = False
        """Whether this node has joined, and not left."""

    @property
    def pause_s(self) -> float:
        """The pause between renewals."""
        return self._lease_s / 3

    async def join(self, execute: Execute) -> None:
        """Take the first lease."""
        self.is_held = True
        await self.back(execute)

    async def back(self, execute: Execute) -> bool:
        """Renew the lease after a reconnect; returns whether it certainly had not expired."""
        self._up_since = self._clock.monotonic()
        return await self.renew(execute)

    async def renew(self, execute: Execute) -> bool:
        """Renew the lease; returns whether it certainly had not expired.

        The key must hold the last confirmed renewal. It holds another one if the last answer was lost; then that
        renewal may have found an expired lease.
        """
        self._renewals += 1
        renewal = b"%d" % self._renewals
        place = self._machine.here()
        lease = self._keys.lease(self._uid)
        _, before, _ = await execute(
            [
                ("HSET", self._keys.nodes(), self._uid, place),
                # A separate GET, because the client library reduces the answer to SET with GET to a boolean.
                ("GET", lease),
                ("SET", lease, renewal, "PX", int(self._lease_s * 1000)),
            ]
        )
        lasted = before is not None and before == self._answered
        self._answered = renewal
        if not lasted:
            self._up_since = self._clock.monotonic()
        return lasted

    def lost(self) -> None:
        """Record that Redis is away."""
        self._up_since = None

    async def leave(self, execute: Execute) -> None:
        """Record that this node stops; other nodes may adopt its sessions."""
        if self.is_held:
            self.is_held = False
            await self.mark_stopped(self._uid, execute)

    async def mark_stopped(self, uid: int, execute: Execute) -> None:
        """Mark a node as stopped, so that all nodes treat it as gone at once."""
        await execute([("HSET", self._keys.nodes(), uid, STOPPED), ("DEL", self._keys.lease(uid))])

    async def bury(self, uid: int, execute: Execute) -> None:
        """Treat a node as gone from now on, whether it renews its lease or not; a uid never comes back."""
        self._buried[uid] = None
        if len(self._buried) > MOST_BURIED:
            del self._buried[next(iter(self._buried))]
        # First: what it has claimed until now is found when its orphaned sessions are looked for.
        await execute([("SET", self._keys.buried(uid), 1, "PX", BURIED_MS)])
        await self.mark_stopped(uid, execute)
        await self.look(execute, {uid})

    async def forget(self, uid: int, execute: Execute) -> None:
        """Forget a node that is gone and home of no session."""
        if uid != NOBODY:
            await execute([FORGET([self._keys.nodes(), self._keys.lease(uid)], uid)])
            seen = self._others.get(uid)
            if seen is not None:
                seen.forgotten = True

    async def look(self, execute: Execute, more: Iterable[int] = ()) -> None:
        """Read the leases of all nodes that Redis knows, and of ``more``."""
        wanted = set(more)
        known = dict.fromkeys([*self._others, *wanted])
        known.pop(self._uid, None)
        known.pop(NOBODY, None)
        plain, own, *leases = await execute(
            [("HGETALL", self._keys.nodes()), *(("GET", self._keys.lease(uid)) for uid in (self._uid, *known))]
        )
        places = {int(uid): place for uid, place in plain.items()}
        found = dict(zip(known, leases, strict=True))
        new = [uid for uid in places if uid not in found and uid != self._uid]
        if new:
            answers = await execute([("GET", self._keys.lease(uid)) for uid in new])
            found.update(zip(new, answers, strict=True))
        buried = await execute([("EXISTS", self._keys.buried(uid)) for uid in found]) if found else []
        now = self._clock.monotonic()
        if own is None:
            # This node's lease has expired, so the others' may have expired for the same reason.
            self._up_since = now
        for (uid, lease), is_buried in zip(found.items(), buried, strict=True):
            seen = self._others.get(uid)
            if seen is None:
                seen = self._others[uid] = _Seen(since=now)
            elif lease is not None and lease != seen.lease:
                seen.renews = True
                seen.since = now
            seen.buried = bool(is_buried)
            seen.place = places.get(uid)
            seen.lease = lease
            seen.forgotten = seen.forgotten and seen.place is None and lease is None
        for uid in [uid for uid, seen in self._others.items() if seen.forgotten and uid not in wanted]:
            del self._others[uid]

    def gone(self) -> list[int]:
        """The nodes that were gone at the last look and may have orphaned sessions; and ``NOBODY``."""
        return [NOBODY, *(uid for uid, seen in self._others.items() if self.is_gone(uid) and not seen.forgotten)]

    def is_gone(self, uid: int) -> bool:
        """Whether a node was gone at the last look; a node that was not looked at counts as alive."""
        if uid == NOBODY or uid in self._buried:
            return True
        seen = self._others.get(uid)
        if seen is None or seen.forgotten:
            return seen is not None
        if seen.buried:
            return True
        if seen.place is not None and (seen.place == STOPPED or self._machine.has_ended(seen.place)):
            return True
        now = self._clock.monotonic()
        return (
            seen.lease is None
            and now - seen.since >= self._lease_s / 2
            and self._up_since is not None
            and now - self._up_since >= self._grace_s
        )

    def is_known(self, uid: int) -> bool:
        """Whether a node is known to be alive or known to be gone."""
        if uid == self._uid or self.is_gone(uid):
            return True
        seen = self._others.get(uid)
        if seen is None or seen.lease is None:
            return False
        return seen.renews or (seen.place is not None and self._machine.is_running(seen.place))

    async def wait_until_known(self, execute: Execute, ownership: Iterable[int]) -> None:
        """Wait until each of these nodes is known to be alive or gone.

        A starting node waits for this, because messages for the sessions of a node that is gone would be lost until
        they are adopted.
        """
        several = set(ownership)
        await self.look(execute, several)
        waits = [uid for uid in several if not self.is_known(uid)]
        if waits:
            self._log.info(
                "waiting up to {limit:g} s to see whether {count} other nodes that hold sessions are alive",
                limit=round(self._grace_s + self._lease_s / LOOKS, 1),
                count=len(waits),
            )
        while any(not self.is_known(uid) for uid in waits):
            await self._pause(self._lease_s / LOOKS)
            await self.look(execute, waits)

    async def _pause(self, seconds: float) -> None:
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def end() -> None:
            if not over.done():
                over.set_result(None)

        timer = self._clock.later(seconds, end)
        try:
            await over
        finally:
            timer.cancel()
