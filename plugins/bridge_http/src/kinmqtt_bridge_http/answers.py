"""What a server's answer means."""

from __future__ import annotations

from base64 import b64decode
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
    hidden = _hidden(secrets)
    text = f"the server answers {status}{_quoted(reply, hidden)}"
    if status in _LATER or status >= 500:
        return Retry(text, retry_after_s(reply.retry_after, now))
    if 300 <= status < 400:
        where = f" to {_masked(reply.location, hidden)[:MAX_QUOTED]!a}" if reply.location else ""
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


def _hidden(secrets: Iterable[str]) -> list[str]:
    """Return the texts that are not quoted, the longest first: a server may quote a token without ``Bearer``.

    Of ``Basic`` (RFC 7617) that is what is encoded, and the password in it.
    """
    found: set[str] = set()
    for secret in secrets:
        found.add(secret)
        scheme, _, rest = secret.partition(" ")
        if not rest:
            continue
        found.add(rest.strip())
        if scheme.lower() == "basic":
            try:
                pair = b64decode(rest, validate=True).decode()
            except ValueError:
                continue
            found |= {pair, pair.partition(":")[2]}
    return sorted(found - {""}, key=len, reverse=True)


def _masked(text: str, hidden: Iterable[str]) -> str:
    for each in hidden:
        text = text.replace(each, "***")
    return text


def _quoted(reply: Reply, hidden: Iterable[str]) -> str:
    text = _masked(reply.body.decode("utf-8", "replace"), hidden)
    reason = f" {ascii(_masked(reply.reason, hidden)[:MAX_QUOTED])[1:-1]}" if reply.reason else ""
    return f"{reason}: {text[:MAX_QUOTED]!a}" if text else reason
