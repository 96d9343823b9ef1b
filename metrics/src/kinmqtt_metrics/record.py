"""What a line of the landing folder says: the one form that the broker writes and every reader reads.

A line is a JSON object in UTF-8. Keys that say nothing are left out. ``docs/pipeline.md`` shows lines; this module
says what each key means. It is read by the sink in the broker and by Spark's side, and imports neither.

A record is known by ``node``, ``boot`` and ``seq``: a second line with these three is the same record, come again.
"""

from __future__ import annotations

import re
from typing import Any, Final, TypeAlias

FORMAT: Final = 1
"""``v`` of every line. A reader sets lines of a newer form aside, and says so."""

Record: TypeAlias = dict[str, Any]

COUNTER: Final = "counter"
GAUGE: Final = "gauge"
HISTOGRAM: Final = "histogram"
TRAFFIC: Final = "traffic"
EVENT: Final = "event"
MESSAGE: Final = "message"

KINDS: Final = (COUNTER, GAUGE, HISTOGRAM, TRAFFIC, EVENT, MESSAGE)

SHOWN_USERNAME: Final = 256
"""Characters of a user name that are told: it is the client's choice, up to 65,535 bytes."""


def shortened(username: str) -> str:
    """A user name as it is told: of a longer one the beginning, and an ellipsis."""
    return username if len(username) <= SHOWN_USERNAME else username[: SHOWN_USERNAME - 1] + "\u2026"


def memory_bytes(*texts: str) -> int:
    """What texts take in memory, or somewhat more."""
    return sum(len(text) if text.isascii() else 4 * len(text) for text in texts)


FIELDS: Final[dict[str, str]] = {
    "v": "int",
    "t": "bigint",
    "node": "string",
    "boot": "string",
    "seq": "bigint",
    "kind": "string",
    "name": "string",
    "unit": "string",
    "labels": "map<string,string>",
    "value": "bigint",
    "delta": "bigint",
    "number": "double",
    "bounds": "array<double>",
    "counts": "array<bigint>",
    "sum": "double",
    "client": "string",
    "topic": "string",
    "reason": "string",
    "bytes": "bigint",
    "payload": "string",
}
"""The keys in their order, each with its type in Spark's words.

=========  ========================================================================================================
``v``      :data:`FORMAT`
``t``      event time, microseconds since the epoch, UTC: as the broker's clock said, which may go back
``node``   the broker's name
``boot``   which life of that broker: its uid, 16 hexadecimal digits
``seq``    from 1, one more for each record of that life that was taken; what was dropped has none
``kind``   one of :data:`KINDS`
``name``   of a sample the metric's; of an event what happened, one of :data:`EVENTS`; of traffic and messages nothing
``unit``   of a sample: ``messages``, ``bytes``, ``seconds``, …
``labels``  of a sample the metric's; of an event and a message what else there is to say
``value``  of a counter: what it has reached in this life of the broker
``delta``  of a counter: how far it has come since the sample that was taken before (in the first one, since 0), so
           that the sum of all is the last ``value``; a counter that has counted nothing yet has no record, and one
           whose ``value`` went back has begun anew: its ``delta`` is since 0 again, and never negative; of
           traffic: messages; of an event: for how many it stands (absent: 1)
``number``  of a gauge: its value; of ``disconnected``: how long the connection lasted, in seconds
``bounds``  of a histogram: upper bounds of its buckets, rising; the last bucket has none
``counts``  of a histogram: observations in each bucket since the sample before, or since 0 where one went back; one
           more than ``bounds``
``sum``    of a histogram: of these observations
``client``  the client id of events, traffic and messages; who is called ``(others)`` is told as ``((others))``
``topic``  of events, traffic and messages
``reason``  of an event: why; a reason code's name in lower case, or a word of the broker's
``bytes``  of traffic: of the PUBLISH packets; of a message: of its payload
``payload``  of a message: in base64; absent where it is larger than the settings allow, which ``bytes`` tells
=========  ========================================================================================================
"""

OF_BROKER: Final = ("started", "stopped")

EVENTS: Final = (
    *OF_BROKER,
    "connected",
    "disconnected",
    "taken_over",
    "session_expired",
    "subscribed",
    "unsubscribed",
    "retained",
    "retain_cleared",
    "dropped",
    "authentication_refused",
    "authorization_refused",
    "limited",
)
"""What happens. :data:`OF_BROKER` tell of the broker; the others of a client or a topic.

``dropped``, ``authentication_refused``, ``authorization_refused``, ``limited``, ``retained`` and ``retain_cleared``
are summed over an interval, by client, topic, reason and labels: ``delta`` says how many there were, and ``t`` when
the interval ended. A flood of them is a few lines.

Labels: ``connected``, ``disconnected`` and ``taken_over`` have ``address``, ``listener`` and, where there is one,
``username``, cut to :data:`SHOWN_USERNAME` characters; ``connected`` also ``protocol`` (3, 4 or 5) and ``session``
(``new``, ``resumed``), ``disconnected`` also ``by`` (``client``, ``broker``, ``network``), ``taken_over`` also
``old_address``; ``subscribed`` has ``qos``. What was refused has ``by``, the plugin or the rule:
``authorization_refused`` also ``action``, ``limited`` also ``resource`` and ``verdict``. Messages have ``qos`` and
``retain`` (``true``, ``false``).
"""

OTHERS: Final = "(others)"
"""Stands for client or topic where there were too many to tell of each: their sum. See :func:`as_told`."""

_LIKE_OTHERS: Final = re.compile(r"\(+others\)+")


def as_told(name: str) -> str:
    """A client id or topic as it is told: one that looks like :data:`OTHERS` has one more pair of parentheses."""
    return f"({name})" if name[:1] == "(" and _LIKE_OTHERS.fullmatch(name) else name
