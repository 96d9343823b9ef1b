"""``kinmqtt explain``: shows each plugin's answer about a client and an action, in order, and how long it took.

The plugins are configured and started as in a broker, and asked one by one; no listener is opened and no store is
used. Plugins that intercept messages are listed but not called, because they may act on the messages.
"""

from kinmqtt.cli.explain.explanation import Question, explain, plan_named, run_once
from kinmqtt.cli.explain.report import Part, Vote

__all__ = ["Part", "Question", "Vote", "explain", "plan_named", "run_once"]
