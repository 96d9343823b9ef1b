"""What is wrong with topic filters in rules."""

from __future__ import annotations


def problem_with_source(filter: str) -> str | None:
    """Return why rules can't select from a filter; ``None`` if they can."""
    first = filter.partition("/")[0]
    if first in ("$bridges", "$sources"):
        return "is not known here: a source publishes to a topic; select FROM that"
    if first in ("$SYS", "$share"):
        return f"can't be selected from: rules have no messages of {first}"
    return problem_with_filter(filter)


def problem_with_filter(filter: str) -> str | None:
    """Return why a text is no topic filter; ``None`` if it is one."""
    levels = filter.split("/")
    is_whole = all(level in ("#", "+") or not {"#", "+"} & set(level) for level in levels)
    if not filter or "\0" in filter or not is_whole or "#" in levels[:-1] or len(filter.encode()) > 65_535:
        return "is not a topic filter"
    return None
