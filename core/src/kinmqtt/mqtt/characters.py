"""Code points that MQTT senders should not use (section 1.5.4), and that a receiver may treat as malformed.

They are the control characters U+0001 to U+001F and U+007F to U+009F and Unicode's 66 non-characters. In a name (a
topic, a filter, a client identifier, a user name) they split log lines, and a strict subscriber closes its connection
when it receives one.
"""

from __future__ import annotations

import re
from typing import Final

from kinmqtt.mqtt.errors import MalformedPacket

_LAST_TWO: Final = "".join(chr(plane << 16 | last) for plane in range(17) for last in (0xFFFE, 0xFFFF))
_DISALLOWED: Final = re.compile(f"[\x01-\x1f\x7f-\x9f\ufdd0-\ufdef{_LAST_TWO}]")


def disallowed_in(name: str) -> str | None:
    """Return the first of these code points in ``name``, as ``"U+0007"``, or ``None``."""
    # All of them are not printable, and nearly every name is printable.
    if name.isprintable():
        return None
    found = _DISALLOWED.search(name)
    return None if found is None else f"U+{ord(found[0]):04X}"


def check_characters(*names: str | None) -> None:
    """Raise :class:`MalformedPacket` if a name contains one of these code points; ``None`` is ignored."""
    for name in names:
        found = None if name is None else disallowed_in(name)
        if found is not None:
            raise MalformedPacket(f"{found} in a name: a control character or a non-character", "section 1.5.4")
