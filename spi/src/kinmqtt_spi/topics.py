"""Rules for topic names and topic filters (MQTT, section 4.7)."""

from __future__ import annotations

from collections.abc import Iterable


def matches(filter: str, topic: str) -> bool:
    """Tell whether a topic filter matches a topic name (MQTT-4.7.1-1 to MQTT-4.7.3-4).

    Both must be valid, and the filter must have no ``$share/group/`` in front.
    """
    if topic[:1] == "$" and filter[:1] in ("+", "#"):
        return False  # MQTT-4.7.2-1
    wanted = filter.split("/")
    levels = topic.split("/")
    for place, level in enumerate(wanted):
        if level == "#":
            return True  # the parent level too: "a/#" matches "a"
        if place == len(levels):
            return False
        if level not in ("+", levels[place]):
            return False
    return len(wanted) == len(levels)


def covers(filter: str, other: str) -> bool:
    """Tell whether ``filter`` matches every topic that ``other``, a topic or a filter, matches.

    Levels are compared one by one, so the answer for ``+/#`` and ``#`` is ``False``, although they are equal.
    """
    if other.startswith("$") and filter.startswith(("+", "#")):
        return False  # MQTT-4.7.2-1
    wanted = filter.split("/")
    levels = other.split("/")
    for place, level in enumerate(wanted):
        if level == "#":
            return True
        if place == len(levels) or levels[place] == "#":
            return False
        if level not in ("+", levels[place]):
            return False
    return len(wanted) == len(levels)


def overlaps(filter: str, other: str) -> bool:
    """Tell whether any topic matches both filters."""
    for one, two in ((filter, other), (other, filter)):
        if one.startswith("$") and two.startswith(("+", "#")):
            return False  # MQTT-4.7.2-1
    ours = filter.split("/")
    theirs = other.split("/")
    for mine, its in zip(ours, theirs, strict=False):
        if "#" in (mine, its):
            return True
        if mine != its and "+" not in (mine, its):
            return False
    # "a/#" and "a" share the topic "a", so the longer filter may end with one more "#".
    return len(ours) == len(theirs) or (ours[len(theirs) :] or theirs[len(ours) :]) == ["#"]


def check_filters(filters: Iterable[str]) -> None:
    """Raise ``ValueError`` for a topic filter that is invalid or shared; a validator for settings and outboxes."""
    for filter in filters:
        levels = filter.split("/")
        whole = all(level in ("#", "+") or not {"#", "+"} & set(level) for level in levels)
        if not filter or "\0" in filter or not whole or "#" in levels[:-1] or levels[0] == "$share":
            raise ValueError(f"{filter!r} is not a topic filter that a topic can match")
