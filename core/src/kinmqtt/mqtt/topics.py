"""Validates and matches Topic Names and Topic Filters (MQTT 5.0 sections 4.7 and 4.8.2).

:func:`matches` implements the rules directly, level by level. Subscription indexes are tested against it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kinmqtt.mqtt.errors import RemoteError
from kinmqtt_spi.reasons import ReasonCode

MAX_TOPIC_BYTES: Final = 65_535

_SHARE_PREFIX: Final = "$share/"


def check_topic_name(topic: str, max_levels: int | None = None) -> None:
    """Raise :class:`RemoteError` with 0x90 unless a message may be published to ``topic``.

    ``max_levels`` is a limit of this broker, not of MQTT; ``None`` for no limit.
    """
    if "+" in topic or "#" in topic:
        raise _bad_name("a Topic Name must not contain wildcard characters", "MQTT-3.3.2-2")
    _check_common(topic, max_levels, _bad_name)


def check_topic_filter(filter: str, max_levels: int | None = None) -> None:
    """Raise :class:`RemoteError` with 0x8F unless ``filter`` can be subscribed to.

    A Shared Subscription is taken apart by :func:`split_shared` first: to this function, ``$share`` is a
    level like any other.
    """
    _check_common(filter, max_levels, _bad_filter)
    if "#" not in filter and "+" not in filter:
        return
    levels = filter.split("/")
    last = len(levels) - 1
    for index, level in enumerate(levels):
        if "#" in level and (level != "#" or index != last):
            raise _bad_filter("'#' must be the whole of the last level of a Topic Filter", "MQTT-4.7.1-1")
        if "+" in level and level != "+":
            raise _bad_filter("'+' must be the whole of a level of a Topic Filter", "MQTT-4.7.1-2")


def split_shared(filter: str, max_levels: int | None = None) -> tuple[str | None, str]:
    """Split ``$share/{ShareName}/{filter}``: (ShareName, filter), or (None, filter) if it is not shared.

    Both parts are validated; raises :class:`RemoteError` with 0x8F. The levels of the prefix are not counted.
    """
    if not filter.startswith(_SHARE_PREFIX):
        check_topic_filter(filter, max_levels)
        return None, filter
    group, slash, rest = filter[len(_SHARE_PREFIX) :].partition("/")
    if not group:
        raise _bad_filter("a Shared Subscription needs a ShareName", "MQTT-4.8.2-1")
    if "+" in group or "#" in group:
        raise _bad_filter("a ShareName must not contain wildcard characters", "MQTT-4.8.2-2")
    if not slash or not rest:
        raise _bad_filter("a ShareName must be followed by '/' and a Topic Filter", "MQTT-4.8.2-2")
    check_topic_filter(rest, max_levels)
    if "\0" in group:
        raise _bad_filter("a ShareName must not contain U+0000", "MQTT-4.7.3-2")
    return group, rest


def _check_common(text: str, max_levels: int | None, bad: Callable[[str, str], RemoteError]) -> None:
    """Raise ``bad``'s error for a violation of a rule that names and filters share."""
    if not text:
        raise bad("a Topic Name or Topic Filter is at least one character long", "MQTT-4.7.3-1")
    if "\0" in text:
        raise bad("a Topic Name or Topic Filter must not contain U+0000", "MQTT-4.7.3-2")
    if len(text) * 4 > MAX_TOPIC_BYTES and len(text.encode("utf-8", "surrogatepass")) > MAX_TOPIC_BYTES:
        raise bad(f"a Topic Name or Topic Filter takes at most {MAX_TOPIC_BYTES} bytes", "MQTT-4.7.3-3")
    if max_levels is not None and text.count("/") >= max_levels:
        raise bad(f"a Topic Name or Topic Filter has at most {max_levels} levels here", "")


def _bad_name(text: str, clause: str) -> RemoteError:
    return RemoteError(ReasonCode.TOPIC_NAME_INVALID, text, clause)


def _bad_filter(text: str, clause: str) -> RemoteError:
    return RemoteError(ReasonCode.TOPIC_FILTER_INVALID, text, clause)
