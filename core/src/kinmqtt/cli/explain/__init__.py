"""``kinmqtt explain``: what each plugin answers about a client and an action, in order, and how long it took.

The plugins are configured and started as a broker's are, and asked one by one; no listener opens and no store is
touched. Plugins that intercept messages are named and not called: they may act on what they get.
"""

from kinmqtt.cli.explain.explanation import Question, explain, plan_named, run_once
from kinmqtt.cli.explain.report import Part, Vote

__all__ = ["Part", "Question", "Vote", "explain", "plan_named", "run_once"]
