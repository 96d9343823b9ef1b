"""The topic filters of outboxes and taps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kinmqtt.mqtt.errors import RemoteError
from kinmqtt.mqtt.topics import split_shared
from kinmqtt.settings import LimitSettings


def checked_filters(limits: LimitSettings, filters: Sequence[str]) -> tuple[str, ...]:
    """Return filters without repetitions; raises ``ValueError`` for an invalid or shared one, and for a text."""
    given: Any = filters  # by a plugin, which need not be typed
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise ValueError(f"{given!r} is no list of topic filters")
    filters = tuple(given)
    for filter in filters:
        given = filter
        if not isinstance(given, str):
            raise ValueError(f"{given!r} is no topic filter: it is a {type(given).__name__}")
        try:
            group, _ = split_shared(filter)
        except RemoteError as error:
            raise ValueError(f"{filter!r} is no topic filter: {error.text}") from None
        if group is not None:
            raise ValueError(f"{filter!r} is a shared subscription, which a plugin can't have")
        problem = limits.problem_with(filter)
        if problem is not None:
            raise ValueError(f"the filter {filter!r}: {problem}")
    return tuple(dict.fromkeys(filters))
