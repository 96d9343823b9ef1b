"""``[plugins.metrics]``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

import attrs

from kinmqtt_metrics.landing import NODE_BYTES, quoted
from kinmqtt_metrics.record import EVENTS, OF_BROKER
from kinmqtt_spi.errors import AssemblyError
from kinmqtt_spi.settings import setting

ON_REQUEST: Final = ("dropped", "retained", "retain_cleared")
"""Events that somebody must ask for: where a plugin hears of these, the broker has more to do for each message."""

BY_ITSELF: Final = tuple(name for name in EVENTS if name not in (*OF_BROKER, *ON_REQUEST))

CHOICES: Final = (*BY_ITSELF, *ON_REQUEST)

LEAST_WAITING_BYTES: Final = 2 << 20
"""The largest message that can be archived fits: a payload of 1 MiB, with its topic and client id."""


def _check_filters(_: object, attribute: attrs.Attribute[Any], filters: Sequence[str]) -> None:
    """Refuse what matches no topic: a mistyped filter would archive nothing, and nobody would notice."""
    for filter in filters:
        levels = filter.split("/")
        whole = all(level in ("#", "+") or not {"#", "+"} & set(level) for level in levels)
        if not filter or "\0" in filter or not whole or "#" in levels[:-1] or levels[0] == "$share":
            raise ValueError(f"{filter!r} is not a topic filter that matches a topic")


@attrs.frozen(slots=True)
class MetricsSettings:
    """Where records go, and which."""

    sink: Literal["landing", "kafka"] = setting("landing", help="where records go: the folder `landing`, or Kafka")
    landing: Path | None = setting(
        None,
        path="folder",
        help="the folder for records; several brokers may share it, each under its own name",
    )
    roll_s: float = setting(5.0, help="how often a segment is published", unit="s", minimum=2, maximum=10)
    roll_bytes: int = setting(
        8 << 20,
        help="the size at which a segment is published earlier",
        unit="bytes",
        minimum=1 << 16,
        maximum=1 << 28,
    )
    max_waiting_bytes: int = setting(
        64 << 20,
        help="memory for records that wait to be written; further records are dropped and counted",
        unit="bytes",
        minimum=LEAST_WAITING_BYTES,
    )
    keep_free_bytes: int = setting(
        256 << 20, help="free space of the disk below which nothing is written", unit="bytes", minimum=0
    )
    events: tuple[str, ...] = setting(
        BY_ITSELF,
        help="the events to record; empty for none. `dropped`, `retained` and `retain_cleared` slow the message path",
        one_of=CHOICES,
    )
    max_pairs: int = setting(
        1000,
        help="how many pairs of client and topic an interval reports, and how many counts of each event; "
        "the rest is one sum",
        minimum=1,
        maximum=1_000_000,
    )
    capture: tuple[str, ...] = setting(
        (), help="topic filters: each message that clients publish there is archived", validator=_check_filters
    )
    capture_max_payload_bytes: int = setting(
        65_536,
        help="the largest payload to archive; of a larger one only the size is recorded",
        unit="bytes",
        minimum=0,
        maximum=1 << 20,
    )


def check_node_name(node: str) -> None:
    """Raises ``AssemblyError`` for a broker's name that the name of a segment can't have."""
    try:
        size_bytes = len(quoted(node))
    except UnicodeEncodeError:
        raise AssemblyError(
            f"plugins.metrics: the broker's name {node!r} is not valid Unicode: set broker.node_name"
        ) from None
    if not 0 < size_bytes <= NODE_BYTES:
        raise AssemblyError(
            f"plugins.metrics: the broker's name (broker.node_name), {node[:20]!r}…, takes {size_bytes} bytes in "
            f"names of files, and may take {NODE_BYTES}: give it a shorter one; letters and digits of ASCII, '.', "
            "'_' and '-' take one byte, each byte of others three"
            if node
            else "plugins.metrics: the broker has no name, nor has this machine: set broker.node_name"
        )
