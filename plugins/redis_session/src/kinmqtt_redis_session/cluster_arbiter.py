"""The arbiter that decides splits of the cluster: a key with the last term and its side, and one with the members."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from kinmqtt_redis_session.connection import Link
from kinmqtt_redis_session.keys import Keys
from kinmqtt_redis_session.scripts import CLUSTER_ARBITER, CLUSTER_MEMBERS, Command
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.services.cluster_arbiter import ClusterArbiter, check_note, check_term


class RedisClusterArbiter(ClusterArbiter):
    """The arbiter of all brokers with the same prefix.

    Redis's replication is asynchronous: after a failover that has lost a decision, a second side may get the same
    term. With ``replicas`` a side has it only when that many replicas have the decision too.
    """

    def __init__(self, link: Link, keys: Keys, replicas: int = 0, *, timeout_s: float) -> None:
        """``timeout_s`` is the link's limit for an answer."""
        self._link = link
        self._keys = [keys.cluster_arbiter()]
        self._members = [keys.cluster_members()]
        self._replicas = replicas
        # The answer must come before the link's limit ends, or Redis would count as away.
        self._wait: Command = ("WAIT", replicas, int(timeout_s * 900))

    async def term(self) -> int:
        # By the script that writes: a server that is no longer the master refuses it, instead of an old answer.
        ((_, term),) = await self._link.execute([CLUSTER_ARBITER(self._keys, 0, 0)])
        return int(term)

    async def decide(self, term: int, side: int) -> bool:
        check_term(term, side)
        command = CLUSTER_ARBITER(self._keys, term, side)
        ((has_it, _),) = await self._link.execute([command])
        if has_it and self._replicas:
            # Again, now that the script is surely loaded: WAIT covers only earlier writes of its connection.
            (has_it, _), acknowledged = await self._link.execute([command, self._wait])
            if has_it and acknowledged < self._replicas:
                raise ServiceUnavailable(f"fewer than {self._replicas} replicas have the decision")
        return bool(has_it)

    async def members(self) -> Sequence[str]:
        _, members = await self._note("", 0)
        return members

    async def note_member(self, address: str, limit_s: float, *, only_first: bool = False) -> bool:
        check_note(address, limit_s)
        is_noted, _ = await self._note(address, ceil(limit_s * 1000), only_first)
        return is_noted

    async def forget_member(self, address: str) -> None:
        await self._note(address, 0)

    async def _note(self, address: str, limit_ms: int, only_first: bool = False) -> tuple[bool, list[str]]:
        # A failover may lose a note: the member makes it again.
        [(is_noted, members)] = await self._link.execute(
            [CLUSTER_MEMBERS(self._members, address.encode(), limit_ms, int(only_first))]
        )
        return bool(is_noted), [member.decode() for member in members]
