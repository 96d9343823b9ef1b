"""Lives of the plugin over a real Redis, for tests that look closer than the contract suites do."""

from __future__ import annotations

from typing import Any

from attrs import define
from redis_stores import SOON

from kinmqtt_redis_session import RedisSession, RedisSessionSettings
from kinmqtt_redis_session.queues import RedisQueueStore
from kinmqtt_redis_session.retained import RedisRetainStore
from kinmqtt_redis_session.sessions import RedisSessionStore
from kinmqtt_spi.memory.plugin import BareContext
from kinmqtt_spi.values import NodeIdentity


@define(slots=True)
class Life:
    """A plugin that was started, and its stores."""

    plugin: RedisSession
    context: BareContext
    sessions: RedisSessionStore
    queues: RedisQueueStore
    retained: RedisRetainStore

    @property
    def parts(self) -> Any:
        """What the plugin is made of."""
        return self.plugin._parts


async def begun(node: NodeIdentity | None = None, **settings: Any) -> Life:
    """A life over what the settings name."""
    plugin = RedisSession()
    more = {} if node is None else {"node": node}
    context = BareContext("redis_session", RedisSessionSettings(**{**SOON, **settings}), **more)
    plugin.configure(context)
    stores: Any = (plugin.session_store(), plugin.queue_store(), plugin.retain_store())
    await plugin.start(context)
    return Life(plugin, context, *stores)
