"""What one client's filters may add to the work of matching one message.

A topic is matched level by level. Where a filter has a ``+``, the match goes two ways, so a client whose filters have
``+`` in every possible combination of places makes it go a thousand ways after ten levels. What counts is the pattern
of a filter, the places of its ``+``: of any number of filters with one pattern (``a/+/b``, ``c/+/d``) each topic
follows one. So each distinct pattern of a client counts its levels from the first ``+`` on, which bounds the steps
that a match takes for this client's sake, whatever the topic. A shared subscription gets a message for itself, in
addition to the client's others; so each pattern counts anew for each group.
"""

from __future__ import annotations

from typing import Final

from kinmqtt_spi.values import Subscription

STEPS_OF_SHARED: Final = 10
"""What a delivery by a shared subscription costs beside a step of a match, about."""


class Patterns:
    """The distinct patterns of one client's filters."""

    __slots__ = ("_filters", "steps")

    def __init__(self) -> None:
        self._filters: dict[tuple[str, int], int] = {}
        """How many filters there are of a group (empty for none) and a pattern."""
        self.steps = 0
        """What all of them together add to a match, at most."""

    def added_by(self, subscription: Subscription) -> int:
        """How many steps a further subscription would add."""
        key, steps = _pattern(subscription)
        return 0 if key in self._filters else steps

    def add(self, subscription: Subscription) -> None:
        """The client has a new subscription."""
        key, steps = _pattern(subscription)
        if not steps:
            return
        filters = self._filters.get(key, 0)
        if not filters:
            self.steps += steps
        self._filters[key] = filters + 1

    def remove(self, subscription: Subscription) -> None:
        """The client has a subscription no more."""
        key, steps = _pattern(subscription)
        if not steps:
            return
        self._filters[key] -= 1
        if not self._filters[key]:
            del self._filters[key]
            self.steps -= steps


def _pattern(subscription: Subscription) -> tuple[tuple[str, int], int]:
    """The group and the pattern, a bit for each level, and the steps that they add."""
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
    # "a/#" and "a/b" are deliveries of their own, where a topic matches both.
    return (group, pattern << 1 | many), steps + STEPS_OF_SHARED
