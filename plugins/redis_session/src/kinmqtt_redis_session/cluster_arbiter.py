"""The arbiter that decides splits of the cluster: one key with the last term and its side."""

from __future__ import annotations

from kinmqtt_redis_session.connection import Link
from kinmqtt_redis_session.keys import Keys
from kinmqtt_redis_session.scripts import CLUSTER_ARBITER, Command
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.services.cluster import ClusterArbiter, check_term


class RedisClusterArbiter(ClusterArbiter):
    """The arbiter of all brokers with the same prefix.

    Redis's replication is asynchronous: after a failover that has lost a decision, a second side may get the same
    term. With ``replicas`` a side has it only when that many replicas have the decision too.
    """

    def __init__(self, link: Link, keys: Keys, replicas: int = 0, *, timeout_s: float) -> None:
        """``timeout_s`` is the link's limit for an answer."""
        self._link = link
        self._keys = [keys.cluster_arbiter()]
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
