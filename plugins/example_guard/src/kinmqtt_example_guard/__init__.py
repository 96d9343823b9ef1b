"""An example plugin: refuses to let clients publish to some topics, and counts how often.

It is small but complete: settings, a veto, a metric, a ``$SYS`` topic, reload and health.
"""

from kinmqtt_example_guard._guard import Guard, GuardSettings

__all__ = ["Guard", "GuardSettings"]
