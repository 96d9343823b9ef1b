"""One line of ``topics``, in Mosquitto's syntax: ``PATTERN [out|in|both [QOS [LOCAL_PREFIX [REMOTE_PREFIX]]]]``."""

from __future__ import annotations

from typing import Final

from attrs import frozen

from kinmqtt_spi.settings import did_you_mean
from kinmqtt_spi.topics import matches

DIRECTIONS: Final = ("out", "in", "both")

NOTHING: Final = '""'
"""How Mosquitto writes an empty pattern or prefix."""

MAX_TOPIC_BYTES: Final = 65_535


@frozen(slots=True)
class TopicLine:
    """Which topics are bridged, in which direction, and how their names differ."""

    pattern: str
    """A topic filter; empty for the one topic that the prefixes name."""
    direction: str = "out"
    qos: int = 0
    """The most that messages are sent with."""
    local_prefix: str = ""
    remote_prefix: str = ""

    @classmethod
    def parse(cls, text: str) -> TopicLine:
        """Read a line; raises ``ValueError``."""
        words = text.split()
        if not words:
            raise ValueError("a topic line is empty: write PATTERN DIRECTION QOS, as in sensors/# out 1")
        if len(words) > 5:
            raise ValueError(
                f"{text!r}: more than PATTERN DIRECTION QOS LOCAL_PREFIX REMOTE_PREFIX; the rest is unused"
            )
        pattern, direction, qos, local, remote = words + ["", "out", "0", NOTHING, NOTHING][len(words) :]
        if direction not in DIRECTIONS:
            hint = did_you_mean(direction, DIRECTIONS)
            raise ValueError(f"{text!r}: {direction!r} is no direction{hint}; use out, in or both")
        if qos not in ("0", "1", "2"):
            raise ValueError(f"{text!r}: {qos!r} is no QoS; use 0, 1 or 2")
        line = cls(_unquoted(pattern), direction, int(qos), _unquoted(local), _unquoted(remote))
        line._check(text)
        return line

    @property
    def goes_out(self) -> bool:
        """Whether messages go to the far broker."""
        return self.direction != "in"

    @property
    def comes_in(self) -> bool:
        """Whether messages come from the far broker."""
        return self.direction != "out"

    @property
    def local_filter(self) -> str:
        """The topic filter in this broker."""
        return self.local_prefix + self.pattern

    @property
    def remote_filter(self) -> str:
        """The topic filter in the far broker."""
        return self.remote_prefix + self.pattern

    def to_remote(self, topic: str) -> str | None:
        """Return the name that a local topic has at the far broker; ``None`` if the line is not about it."""
        if not matches(self.local_filter, topic):
            return None
        return _moved(topic, self.local_prefix, self.remote_prefix)

    def to_local(self, topic: str) -> str | None:
        """Return the name that a topic of the far broker has here; ``None`` if the line is not about it."""
        if not matches(self.remote_filter, topic):
            return None
        return _moved(topic, self.remote_prefix, self.local_prefix)

    def _check(self, text: str) -> None:
        if not self.pattern and not (self.local_prefix and self.remote_prefix):
            raise ValueError(f"{text!r}: an empty pattern needs both prefixes: they are the two topics")
        for prefix in (self.local_prefix, self.remote_prefix):
            if {"+", "#"} & set(prefix):
                raise ValueError(f"{text!r}: the prefix {prefix!r} has a wildcard")
        for filter in (self.local_filter, self.remote_filter):
            levels = filter.split("/")
            whole = all(level in ("#", "+") or not {"#", "+"} & set(level) for level in levels)
            if "\0" in filter or not whole or "#" in levels[:-1]:
                raise ValueError(f"{text!r}: {filter!r} is not a topic filter")
            if levels[0] in ("$share", "$queue"):
                raise ValueError(f"{text!r}: write the filter without {levels[0]}; share names a group")
            if len(filter.encode()) > MAX_TOPIC_BYTES:
                raise ValueError(f"a topic filter has more than {MAX_TOPIC_BYTES} bytes")
        if self.comes_in and self.local_filter.startswith("$"):
            raise ValueError(
                f"{text!r}: topics that begin with $ are the broker's own: give a local prefix without it"
            )


def _unquoted(word: str) -> str:
    return "" if word == NOTHING else word


def _moved(topic: str, old: str, new: str) -> str | None:
    """Replace a prefix. The filter `a/#` matches the topic `a`, too, which lacks the slash of the prefix `a/`."""
    if topic.startswith(old):
        return new + topic[len(old) :] or None
    return new.removesuffix("/") or None
