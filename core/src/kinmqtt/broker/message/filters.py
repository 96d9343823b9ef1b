"""The topic filters of outboxes and taps."""

from __future__ import annotations

from collections.abc import Sequence

from kinmqtt.mqtt.errors import RemoteError
from kinmqtt.mqtt.topics import split_shared
from kinmqtt.settings import LimitSettings


def checked_filters(limits: LimitSettings, filters: Sequence[str]) -> tuple[str, ...]:
    """Return filters without repetitions; raises ``ValueError`` for an invalid or shared one."""
    for filter in filters:
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
