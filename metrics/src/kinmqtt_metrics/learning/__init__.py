"""Limits, learned: what is usual for each client and topic becomes rules of the limiter, in the shadow.

Spark reads the table ``usual`` (:mod:`.reading`, :mod:`.job`) and says what rules would have done
(:mod:`.replay`). What makes rules of these figures (:mod:`.policy`), and the file of rules (:mod:`.rules_file`,
:mod:`.existing_rules`), know nothing of Spark. ``metrics/README.md`` says what counts as usual, and why.
"""

from __future__ import annotations

from kinmqtt_metrics.errors import LearningError
from kinmqtt_metrics.learning.command import add_parser, run
from kinmqtt_metrics.learning.existing_rules import check_replaceable, switched, write_whole
from kinmqtt_metrics.learning.job import learn
from kinmqtt_metrics.learning.model import (
    EXEMPT,
    KINDS,
    LEAST_COUNT,
    Kind,
    Learned,
    Options,
    Replayed,
    Rule,
    Summed,
    Usual,
)
from kinmqtt_metrics.learning.policy import limit, rules_for
from kinmqtt_metrics.learning.replay import replay_rules, rules_in
from kinmqtt_metrics.learning.rules_file import text_of

__all__ = [
    "EXEMPT",
    "KINDS",
    "LEAST_COUNT",
    "Kind",
    "Learned",
    "LearningError",
    "Options",
    "Replayed",
    "Rule",
    "Summed",
    "Usual",
    "add_parser",
    "check_replaceable",
    "learn",
    "limit",
    "replay_rules",
    "rules_for",
    "rules_in",
    "run",
    "switched",
    "text_of",
    "write_whole",
]
