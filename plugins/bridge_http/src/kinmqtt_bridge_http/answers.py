"""What a server's answer means."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

from attrs import frozen

from kinmqtt_spi.errors import SinkRefused
from kinmqtt_spi.services.bridge import Poison, Retry

MAX_QUOTED: Final = 200
"""Characters of an answer's body in a log line."""

MAX_RETRY_AFTER_S: Final = 600.0
"""The longest pause that a server can ask for, in seconds."""

_LATER: Final = frozenset({408, 425, 429})
_NOT_THERE: Final = frozenset({404, 405, 410})


@frozen(slots=True)
class Reply:
    """An answer, as far as it counts."""

    status: int
    reason: str = ""
    body: bytes = b""
    """Its beginning."""
    location: str = ""
    retry_after: str = ""


def meaning(reply: Reply, now: float, has_one_url: bool, secrets: Iterable[str] = ()) -> Retry | Poison | None:
    """Return what an answer means for its messages; raises ``SinkRefused``.

    ``now`` is in seconds since the epoch. ``has_one_url``: whether all messages go to one URL. If that is not there,
    this says nothing about the message. ``secrets`` are not quoted.
    """
    status = reply.status
    if 200 <= status < 300:
        return None
    text = f"the server answers {status}{_quoted(reply, secrets)}"
    if status in _LATER or status >= 500:
        return Retry(text, retry_after_s(reply.retry_after, now))
    if 300 <= status < 400:
        where = f" to {reply.location[:MAX_QUOTED]!a}" if reply.location else ""
        raise SinkRefused(f"url: the server redirects{where} ({status}), which is not followed: write the final URL")
    if status in (401, 403):
        raise SinkRefused(f"{text}: check secret_headers, signature_secret_file and tls")
    if status in _NOT_THERE and has_one_url:
        raise SinkRefused(f"url, method: {text}")
    return Poison(text)


def retry_after_s(text: str, now: float) -> float | None:
    """Return for how many seconds the header ``Retry-After`` asks; ``None`` for no time that is to come.

    It has a number of seconds or a date (RFC 9110, 10.2.3).
    """
    if text.isdecimal() and text.isascii():
        seconds = float(text[:9])
    else:
        try:
            date = parsedate_to_datetime(text)
        except ValueError:
            return None
        seconds = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now
    return min(seconds, MAX_RETRY_AFTER_S) if seconds > 0 else None


def _quoted(reply: Reply, secrets: Iterable[str]) -> str:
    text = reply.body.decode("utf-8", "replace")
    for secret in secrets:
        text = text.replace(secret, "***")
    reason = f" {ascii(reply.reason[:MAX_QUOTED])[1:-1]}" if reply.reason else ""
    return f"{reason}: {text[:MAX_QUOTED]!a}" if text else reason
