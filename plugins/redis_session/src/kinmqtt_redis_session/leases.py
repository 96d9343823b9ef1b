"""Which nodes live: each keeps a lease in Redis, a key that expires unless it is renewed.

A node is gone that said so, whose process has ended on this very machine, or whose lease has ended. The last counts
only for who has seen Redis there, and has kept its own lease, for a while: where Redis itself was away, or everybody
stood still, all leases end together, and living nodes need a moment to renew theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

from attrs import define

from kinmqtt_redis_session.keys import Keys
from kinmqtt_redis_session.machine import Machine
from kinmqtt_redis_session.scripts import FORGET, Command
from kinmqtt_spi.services.plugin import Clock, Log
from kinmqtt_spi.values import NodeIdentity

NOBODY: Final = 0
"""The uid of who is home of what no node has ever claimed: what was imported."""

STOPPED: Final = b"-"
"""What stands of a node that has stopped in good order, until nothing has its home there."""

LOOKS: Final = 20
"""How often in the time of a lease a start looks whether another node renews its own."""

Ask = Callable[[Sequence[Command]], Awaitable[list[Any]]]


@define(slots=True)
class _Seen:
    """What was seen of another node's lease."""

    place: bytes | None = None
    """Where its process is; ``None`` where Redis knows nothing of it."""
    lease: bytes | None = None
    since: float = 0.0
    """When it was last seen to be renewed, or else first looked at."""
    renews: bool = False
    forgotten: bool = False
    """Whether it is gone, and its index empty: nothing is to be looked for there any more."""


class Leases:
    """This node's lease, and what is known of the others."""

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
        """``grace_s`` is how long Redis must have been there before a lease that has ended says anything."""
        self._keys = keys
        self._uid = node.uid
        self._clock = clock
        self._log = log
        self._lease_s = lease_s
        self._grace_s = grace_s
        self._machine = Machine() if machine is None else machine
        self._renewals = 0
        self._answered: bytes | None = None
        """The last renewal of which Redis has said that it was made."""
        self._up_since: float | None = None
        self._others: dict[int, _Seen] = {}
        self.is_held = False
        """Whether this node has joined, and not left."""

    @property
    def pause_s(self) -> float:
        """How long to wait between renewals."""
        return self._lease_s / 3

    async def join(self, ask: Ask) -> None:
        """Redis is there for the first time."""
        self.is_held = True
        await self.back(ask)

    async def back(self, ask: Ask) -> bool:
        """Redis is there again: renew the lease at once; answers whether it had not ended meanwhile."""
        self._up_since = self._clock.monotonic()
        return await self.renew(ask)

    async def renew(self, ask: Ask) -> bool:
        """Renew the lease; answers whether it is certain that it had not ended meanwhile.

        What is there must be the renewal before. It is another where that one's answer never came: then it may have
        found that the lease had ended, and nobody knows.
        """
        self._renewals += 1
        renewal = b"%d" % self._renewals
        place = self._machine.here()
        lease = self._keys.lease(self._uid)
        _, before, _ = await ask(
            [
                ("HSET", self._keys.nodes(), self._uid, place),
                # By itself: of what SET answers with GET the client library leaves only whether it is "OK".
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
        """Redis is away."""
        self._up_since = None

    async def leave(self, ask: Ask) -> None:
        """This node stops; what has its home here is left behind."""
        if self.is_held:
            self.is_held = False
            await self.bury(self._uid, ask)

    async def bury(self, uid: int, ask: Ask) -> None:
        """Have a node count as gone, at once and for everybody."""
        await ask([("HSET", self._keys.nodes(), uid, STOPPED), ("DEL", self._keys.lease(uid))])

    async def forget(self, uid: int, ask: Ask) -> None:
        """Nothing has its home at a node that is gone."""
        if uid != NOBODY:
            await ask([FORGET([self._keys.nodes(), self._keys.lease(uid)], uid)])
            seen = self._others.get(uid)
            if seen is not None:
                seen.forgotten = True

    async def look(self, ask: Ask, more: Iterable[int] = ()) -> None:
        """Look at the leases of all nodes that Redis knows, and of ``more``."""
        asked = set(more)
        known = dict.fromkeys([*self._others, *asked])
        known.pop(self._uid, None)
        known.pop(NOBODY, None)
        plain, own, *leases = await ask(
            [("HGETALL", self._keys.nodes()), *(("GET", self._keys.lease(uid)) for uid in (self._uid, *known))]
        )
        places = {int(uid): place for uid, place in plain.items()}
        found = dict(zip(known, leases, strict=True))
        new = [uid for uid in places if uid not in found and uid != self._uid]
        if new:
            answers = await ask([("GET", self._keys.lease(uid)) for uid in new])
            found.update(zip(new, answers, strict=True))
        now = self._clock.monotonic()
        if own is None:
            # Whatever has ended this node's may have ended the others'.
            self._up_since = now
        for uid, lease in found.items():
            seen = self._others.get(uid)
            if seen is None:
                seen = self._others[uid] = _Seen(since=now)
            elif lease is not None and lease != seen.lease:
                seen.renews = True
                seen.since = now
            seen.place = places.get(uid)
            seen.lease = lease
            seen.forgotten = seen.forgotten and seen.place is None and lease is None
        for uid in [uid for uid, seen in self._others.items() if seen.forgotten and uid not in asked]:
            del self._others[uid]

    def gone(self) -> list[int]:
        """The nodes that are gone, as of the last look, and may have left something behind; and nobody."""
        return [NOBODY, *(uid for uid, seen in self._others.items() if self.is_gone(uid) and not seen.forgotten)]

    def is_gone(self, uid: int) -> bool:
        """Whether a node is gone, as of the last look; one that was not looked at counts as living."""
        if uid == NOBODY:
            return True
        seen = self._others.get(uid)
        if seen is None or seen.forgotten:
            return seen is not None
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
        """Whether it is known of a node that it lives or that it is gone."""
        if uid == self._uid or self.is_gone(uid):
            return True
        seen = self._others.get(uid)
        if seen is None or seen.lease is None:
            return False
        return seen.renews or (seen.place is not None and self._machine.is_running(seen.place))

    async def settled(self, ask: Ask, homes: Iterable[int]) -> None:
        """Wait until of each of these nodes it is known whether it lives.

        Whoever starts waits for it: what comes for the sessions of a node that is gone would be lost until then.
        """
        several = set(homes)
        await self.look(ask, several)
        waits = [uid for uid in several if not self.is_known(uid)]
        if waits:
            self._log.info(
                "waiting for at most {limit:g} s, to see whether {count} other nodes that hold sessions still live",
                limit=round(self._grace_s + self._lease_s / LOOKS, 1),
                count=len(waits),
            )
        while any(not self.is_known(uid) for uid in waits):
            await self._pause(self._lease_s / LOOKS)
            await self.look(ask, waits)

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
