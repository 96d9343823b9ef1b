"""Limits, learned: what is usual for each client and topic becomes rules of the limiter, in the shadow.

Spark reads the table ``usual`` (:mod:`.reading`, :mod:`.job`) and says what rules would have done
(:mod:`.replaying`). What makes rules of these figures (:mod:`.deciding`), and the file of rules (:mod:`.writing`,
:mod:`.file`), know nothing of Spark. ``metrics/README.md`` says what counts as usual, and why.
"""

from __future__ import annotations

from kinmqtt_metrics.learning.command import add_parser, run
from kinmqtt_metrics.learning.deciding import decide, limit
from kinmqtt_metrics.learning.file import check_replaceable, switched, write_whole
from kinmqtt_metrics.learning.job import learn
from kinmqtt_metrics.learning.model import (
    EXEMPT,
    KINDS,
    LEAST_COUNT,
    Kind,
    Learned,
    LearningError,
    Options,
    Replayed,
    Rule,
    Summed,
    Usual,
)
from kinmqtt_metrics.learning.replaying import replay, rules_in
from kinmqtt_metrics.learning.writing import text_of

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
    "decide",
    "learn",
    "limit",
    "replay",
    "rules_in",
    "run",
    "switched",
    "text_of",
    "write_whole",
]
