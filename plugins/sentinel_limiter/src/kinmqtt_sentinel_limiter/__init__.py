"""A limiter after Sentinel's model: flow, degrade, system and hot-parameter rules.

They stand in the settings section, or in a file of their own that is watched and taken anew when it changes.
"""

from kinmqtt_sentinel_limiter._plugin import SentinelLimiter
from kinmqtt_sentinel_limiter._settings import Rules, SentinelSettings

__all__ = ["Rules", "SentinelLimiter", "SentinelSettings"]
