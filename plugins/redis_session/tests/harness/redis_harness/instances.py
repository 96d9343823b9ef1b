"""Started instances of the plugin over a real Redis, for tests of what the contract suites can't see."""

from __future__ import annotations

from typing import Any

from attrs import define

from kinmqtt_redis_session import RedisSession, RedisSessionSettings
from kinmqtt_redis_session.queues import RedisQueueStore
from kinmqtt_redis_session.retained import RedisRetainStore
from kinmqtt_redis_session.sessions import RedisSessionStore
from kinmqtt_spi.memory.plugin import BareContext
from kinmqtt_spi.values import NodeIdentity
from redis_harness.redis_stores import SOON


@define(slots=True)
class Instance:
    """A started plugin and its stores."""

    plugin: RedisSession
    context: BareContext
    sessions: RedisSessionStore
    queues: RedisQueueStore
    retained: RedisRetainStore

    @property
    def parts(self) -> Any:
        """The plugin's internal parts."""
        return self.plugin._parts


async def start_instance(node: NodeIdentity | None = None, **settings: Any) -> Instance:
    """Start an instance with these settings."""
    plugin = RedisSession()
    more: dict[str, Any] = {} if node is None else {"node": node}
    context = BareContext("redis_session", RedisSessionSettings(**{**SOON, **settings}), **more)
    plugin.configure(context)
    stores: Any = (plugin.session_store(), plugin.queue_store(), plugin.retain_store())
    await plugin.start(context)
    return Instance(plugin, context, *stores)
