"""A limiter after Sentinel's model: flow, degrade, system and hot-parameter rules.

The rules are in the settings section, or in a separate file that is watched and reloaded when it changes.
"""

from kinmqtt_sentinel_limiter._plugin import SentinelLimiter
from kinmqtt_sentinel_limiter._settings import Rules, SentinelSettings

__all__ = ["Rules", "SentinelLimiter", "SentinelSettings"]
