"""What is usual becomes rules: it knows nothing of Spark."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from typing import Final

from kinmqtt_metrics.learning.model import Kind, Options, Rule, Usual

_LONGEST_IN_NAME: Final = 48


def limit(rate: float, options: Options) -> float:
    """What a usual rate is allowed: ``factor`` times as much, rounded up to three digits; not below the least."""
    return max(_up(rate * options.factor), options.least)


def _up(value: float) -> float:
    if value <= 0:
        return 0.0
    digits = 2 - math.floor(math.log10(value))
    # A hair less than what the multiplication may have put on top.
    return float(round(math.ceil(value * 10.0**digits * (1 - 1e-12)) * 10.0**-digits, max(0, digits)))


def rules_for(kind: Kind, heaviest: Iterable[Usual], others_rate: float, options: Options) -> list[Rule]:
    """Rules of their own for those above what others may, and the rule for the others, which comes last.

    ``heaviest`` has those with the highest rates, one more than ``most_rules`` where there are as many. Where there
    are too many for rules of their own, the others may more: nobody who is known is limited below what is
    allowed for his own rate.
    """
    ranked = sorted(heaviest, key=lambda usual: (-usual.rate, usual.name))
    default = limit(others_rate, options)
    nameable = [usual for usual in ranked if _can_be_named(kind, usual.name)]
    unnamed = [usual for usual in ranked if not _can_be_named(kind, usual.name)]
    for usual in [*unnamed, *nameable[options.most_rules :]]:
        default = max(default, limit(usual.rate, options))
    names: set[str] = set()
    rules = []
    for usual in nameable[: options.most_rules]:
        count = limit(usual.rate, options)
        if count > default:
            rules.append(
                Rule(kind, _rule_name(kind, usual.name, names), usual.name, count, _burst(count, options), usual)
            )
    rules.append(Rule(kind, f"learned other {kind}s", None, default, _burst(default, options)))
    return rules


def _burst(count: float, options: Options) -> float:
    """A whole window's worth: within a window nobody knows when messages came."""
    return float(max(1, math.ceil(count * options.over_s)))


def _can_be_named(kind: Kind, name: str) -> bool:
    """Whether the limiter takes it as an exact name; a topic stands in a rule as a filter."""
    if not name or "\0" in name:
        return False
    return kind == "client" or not ({"+", "#"} & set(name) or name.split("/", 1)[0] == "$share")


def _rule_name(kind: Kind, of: str, taken: set[str]) -> str:
    """Printable, and no other rule's."""
    name = f"learned {kind} {of}"
    if not of.isprintable() or len(of) > _LONGEST_IN_NAME:
        digest = hashlib.sha256(of.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        shown = "".join(c if c.isprintable() else "?" for c in of[:_LONGEST_IN_NAME])
        name = f"learned {kind} {shown}… {digest}"
    while name in taken:
        name += "'"
    taken.add(name)
    return name
