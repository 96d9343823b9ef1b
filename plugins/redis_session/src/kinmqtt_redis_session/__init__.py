"""Sessions, queues and retained messages in Redis."""

from kinmqtt_redis_session._plugin import RedisSession, RedisSessionSettings

__all__ = ["RedisSession", "RedisSessionSettings"]
