"""Signs bodies, so that the receiver knows who sent them, and when."""

from __future__ import annotations

import hmac
from typing import Final

SIGNATURE: Final = "X-Kinmqtt-Signature"


def signature(secret: bytes, at_s: int, body: bytes) -> str:
    """Return the header's value: HMAC-SHA256 of the time (seconds since the epoch, UTC), a dot, and the body."""
    return f"t={at_s},v1={hmac.digest(secret, b'%d.%b' % (at_s, body), 'sha256').hex()}"
