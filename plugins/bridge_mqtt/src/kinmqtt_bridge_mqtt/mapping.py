"""The topics of a connection: which line a message belongs to, and its topic on the other side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kinmqtt_bridge_mqtt.topic_line import MAX_TOPIC_BYTES, TopicLine

CACHED_TOPICS: Final = 4096
"""The topics whose names on the other side are remembered. Clients choose topics, so the memory must be bounded."""

LONGEST_CACHED: Final = 256
"""In characters."""

MOST_QOS: Final = 1
"""The most that a bridge sends or asks for, see the README."""


class Mapping:
    """The lines of a connection; of those that a topic matches the first one counts, as in Mosquitto."""

    def __init__(self, lines: Sequence[TopicLine]) -> None:
        self._out = [line for line in lines if line.goes_out]
        self._in = [line for line in lines if line.comes_in]
        self._cached: dict[str, tuple[str, int] | None] = {}

    @property
    def local_filters(self) -> tuple[str, ...]:
        """The filters of what goes out, in this broker."""
        return tuple(dict.fromkeys(line.local_filter for line in self._out))

    @property
    def remote_filters(self) -> dict[str, int]:
        """The filters of what comes in, in the far broker, with the QoS to ask for."""
        found: dict[str, int] = {}
        for line in self._in:
            found.setdefault(line.remote_filter, min(line.qos, MOST_QOS))
        return found

    def out(self, topic: str) -> tuple[str, int] | None:
        """Return a message's topic at the far broker and its line's QoS; ``None`` if no line is about it."""
        try:
            return self._cached[topic]
        except KeyError:
            pass
        found = self._find_out(topic)
        if len(topic) <= LONGEST_CACHED:
            if len(self._cached) >= CACHED_TOPICS:
                self._cached.clear()
            self._cached[topic] = found
        return found

    def into(self, topic: str) -> str | None:
        """Return the topic here of a message from the far broker; ``None`` if no line is about it."""
        for line in self._in:
            found = line.to_local(topic)
            if found is not None:
                return None if found.startswith("$") or _is_too_long(found) else found
        return None

    def response_out(self, topic: str) -> str:
        """Return a response topic as the far broker must name it, so that an answer to it comes in."""
        for line in self._in:
            found = line.to_remote(topic) if line.local_prefix or line.remote_prefix else None
            if found is not None:
                return found
        return topic

    def response_into(self, topic: str) -> str:
        """Return a response topic of the far broker as it is called here, so that an answer to it goes out."""
        for line in self._out:
            found = line.to_local(topic) if line.local_prefix or line.remote_prefix else None
            if found is not None:
                return found
        return topic

    def _find_out(self, topic: str) -> tuple[str, int] | None:
        for line in self._out:
            found = line.to_remote(topic)
            if found is not None:
                return None if _is_too_long(found) else (found, min(line.qos, MOST_QOS))
        return None


def _is_too_long(topic: str) -> bool:
    return len(topic) * 4 > MAX_TOPIC_BYTES and len(topic.encode()) > MAX_TOPIC_BYTES
