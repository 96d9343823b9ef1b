"""The lease that decides a split of the cluster: one key, which expires by Redis's clock."""

from __future__ import annotations

import asyncio
from math import ceil, isfinite

from kinmqtt_redis_session.connection import Link
from kinmqtt_redis_session.keys import Keys
from kinmqtt_redis_session.scripts import CLUSTER_LEASE, Command
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.services.cluster import ClusterLease
from kinmqtt_spi.values import NodeIdentity


class RedisClusterLease(ClusterLease):
    """The lease of all brokers with the same prefix.

    Redis's replication is asynchronous: after a failover that has lost the key, a second node may get the lease while
    the first still counts on it. With ``replicas`` a node has it only when that many replicas have the key too.
    """

    def __init__(self, link: Link, keys: Keys, replicas: int = 0, *, timeout_s: float) -> None:
        """``timeout_s`` is the link's limit for an answer."""
        self._link = link
        self._key = keys.cluster_lease()
        self._replicas = replicas
        # The answer must come before the link's limit ends, or Redis would count as away.
        self._wait: Command = ("WAIT", replicas, int(timeout_s * 900))
        self._turn = asyncio.Lock()
        self._calls: set[asyncio.Task[bool]] = set()

    async def acquire(self, holder: NodeIdentity, ttl_s: float) -> bool:
        if not (isfinite(ttl_s) and ttl_s > 0):
            raise ValueError(f"a lease must last a positive, finite number of seconds, not {ttl_s!r}")
        # Rounded up, because the holder counts on all of it.
        return await self._call(holder, ceil(ttl_s * 1000))

    async def release(self, holder: NodeIdentity) -> None:
        await self._call(holder, 0)

    async def _call(self, holder: NodeIdentity, ttl_ms: int) -> bool:
        """Run the script after earlier calls.

        A call that nobody waits for any more is carried out all the same: Redis may have its command already, and a
        late release must not end a lease that was acquired after it.
        """
        task = asyncio.ensure_future(self._in_turn(holder, ttl_ms))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        return await asyncio.shield(task)

    async def _in_turn(self, holder: NodeIdentity, ttl_ms: int) -> bool:
        command = CLUSTER_LEASE([self._key], holder.uid, ttl_ms)
        async with self._turn:
            (has_it,) = await self._link.execute([command])
            if has_it and self._replicas:
                # Again, now that the script is surely loaded: WAIT covers only earlier writes of its connection.
                has_it, acknowledged = await self._link.execute([command, self._wait])
                if has_it and acknowledged < self._replicas:
                    raise ServiceUnavailable(f"fewer than {self._replicas} replicas have the lease")
        return bool(has_it)
