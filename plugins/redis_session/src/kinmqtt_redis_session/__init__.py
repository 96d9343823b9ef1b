"""Stores sessions, queues and retained messages in Redis."""

from kinmqtt_redis_session._plugin import RedisSession
from kinmqtt_redis_session.settings import RedisSessionSettings

__all__ = ["RedisSession", "RedisSessionSettings"]
