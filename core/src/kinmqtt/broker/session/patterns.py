"""Bounds the steps that one client's filters add to matching one message.

A topic is matched level by level. At each ``+`` in a filter the match branches, so filters with ``+`` in every
combination of ten levels cause a thousand branches. The cost depends on the pattern of a filter, the positions of its
``+``: of all filters with one pattern (``a/+/b``, ``c/+/d``) a topic follows only one. So each distinct pattern of a
client counts its levels from the first ``+`` on. This bounds the steps for this client, whatever the topic. A shared
subscription gets a delivery of its own, so patterns are counted per group.
"""

from __future__ import annotations

from typing import Final

from kinmqtt_spi.values import Subscription

STEPS_OF_SHARED: Final = 10
"""The approximate cost of a shared subscription's delivery, in match steps."""


class Patterns:
    """The distinct patterns of one client's filters."""

    __slots__ = ("_filters", "steps")

    def __init__(self) -> None:
        self._filters: dict[tuple[str, int], int] = {}
        """The number of filters by group (empty for none) and pattern."""
        self.steps = 0
        """The most steps that all filters together add to a match."""

    def added_by(self, subscription: Subscription) -> int:
        """Return the number of steps that another subscription would add."""
        key, steps = _pattern(subscription)
        return 0 if key in self._filters else steps

    def add(self, subscription: Subscription) -> None:
        """Count a new subscription."""
        key, steps = _pattern(subscription)
        if not steps:
            return
        filters = self._filters.get(key, 0)
        if not filters:
            self.steps += steps
        self._filters[key] = filters + 1

    def remove(self, subscription: Subscription) -> None:
        """Uncount a removed subscription."""
        key, steps = _pattern(subscription)
        if not steps:
            return
        self._filters[key] -= 1
        if not self._filters[key]:
            del self._filters[key]
            self.steps -= steps


def _pattern(subscription: Subscription) -> tuple[tuple[str, int], int]:
    """Return the group and the pattern, one bit for each level, and the steps that they add."""
    group = subscription.share_group
    filter = subscription.filter
    if group is None and "+" not in filter:
        return ("", 1), 0
    levels = filter.split("/")
    many = levels[-1] == "#"
    if many:
        levels.pop()
    pattern = 1
    for level in levels:
        pattern = pattern << 1 | (level == "+")
    steps = len(levels) - levels.index("+") if "+" in levels else 0
    if group is None:
        return ("", pattern), steps
    # A topic that matches "a/#" and "a/b" of a group is delivered once for each.
    return (group, pattern << 1 | many), steps + STEPS_OF_SHARED
