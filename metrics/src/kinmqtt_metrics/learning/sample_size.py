"""Rules that were learned from little: a percentile of a few values says little, a high one only which is highest."""

from __future__ import annotations

import math
from typing import Final

from kinmqtt_metrics import formatting
from kinmqtt_metrics.learning.model import KINDS, Kind, Learned, Options, Rule

LEAST: Final = 20
"""So many at least, whatever the share: of fewer one is more than 5 %."""


def needed(share: float) -> int:
    """How many values a quantile must be of, so that one at least lies above it: 100 for 0.99; never below the least.

    Of the quantile 1, which is the highest by definition, it is the least.
    """
    return LEAST if share >= 1 else max(LEAST, math.ceil(1 / (1 - share) - 1e-9))


def known(learned: Learned, kind: Kind) -> int:
    """Of how many clients or topics it is known what is usual."""
    return learned.seen.get(kind, 0) - learned.unknown.get(kind, 0)


def about(rule: Rule, learned: Learned, options: Options) -> str | None:
    """What a rule was learned from, where that is little."""
    if rule.usual is not None:
        windows = needed(options.quantile)
        if rule.usual.windows < windows:
            return f"{formatting.some(rule.usual.windows, 'window')}, fewer than {windows}"
        return None
    others = needed(options.others)
    number = known(learned, rule.kind)
    return f"{formatting.some(number, rule.kind)}, fewer than {others}" if number < others else None


def sentences(learned: Learned, options: Options) -> list[str]:
    """For the command's output and the head of the file; none where enough was there to learn from."""
    told = []
    for kind in KINDS:
        own = [rule.usual.windows for rule in learned.rules if rule.kind == kind and rule.usual is not None]
        few = [windows for windows in own if windows < needed(options.quantile)]
        if few:
            told.append(
                f"{len(few)} of {formatting.some(len(own), 'rule')} for {kind}s "
                f"{'was' if len(few) == 1 else 'were'} learned from fewer than {needed(options.quantile)} windows, "
                f"the least from {min(few)}: --quantile {options.quantile:g} of so few says little."
            )
        others = [rule for rule in learned.rules if rule.kind == kind and rule.usual is None]
        if others and (from_what := about(others[0], learned, options)) is not None:
            told.append(
                f"The rule for all other {kind}s was learned from {from_what}: "
                f"--others {options.others:g} of so few says little."
            )
    if told:
        told.append("Learn again, over a longer span or from more, before you enable these: the file marks each.")
    return [f"Warning: {sentence}" for sentence in told[:-1]] + told[-1:]
