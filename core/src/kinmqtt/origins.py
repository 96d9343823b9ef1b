"""Whose pages may connect by WebSocket: a browser says where a script comes from (RFC 6455 sections 4.1 and 10.2).

Without that any page that somebody visits could speak MQTT with a broker that its browser reaches, on loopback or
behind a firewall. Clients that are no browsers send no Origin, or whichever they like: it protects a user's browser
from pages, and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

ANY: Final = "*"

_ORIGIN: Final = re.compile(r"(https?)://(\[[0-9a-f:.]+\]|[^\s/?#@:\[\]]+)(?::([0-9]{1,5}))?")
_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[^\s/?#@:\[\]]+)(?::([0-9]{1,5}))?")
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def refusal(origins: Sequence[str] | None, found: Sequence[str], host: str) -> str | None:
    """Why a request may not connect; ``None`` where it may.

    ``origins`` are those of the settings, ``None`` for the page's own host; ``found`` the request's Origin headers.
    """
    if not found or (origins is not None and ANY in origins):
        return None
    if len(found) > 1:
        return "it has more than one Origin"
    [origin] = found
    if origins is None:
        if is_same(origin, host):
            return None
        return f"a page of {origin[:100]!r} is not of the host {host[:100]!r}; websocket.origins names others"
    if origin.lower() in (each.lower() for each in origins):
        return None
    return f"a page of {origin[:100]!r} is not among websocket.origins"


def is_same(origin: str, host: str) -> bool:
    """Whether a page comes from the host and port that it connects to.

    The scheme is not compared: behind a proxy that ends TLS nobody can tell what it was. A port that a URL leaves out
    is its scheme's, so that of a ``host`` without one is 80 or 443.
    """
    page = _ORIGIN.fullmatch(origin.lower())
    here = _HOST.fullmatch(host.lower())
    if page is None or here is None or page[2] != here[1]:
        return False
    port = _DEFAULT_PORTS[page[1]] if page[3] is None else int(page[3])
    return port in _DEFAULT_PORTS.values() if here[2] is None else port == int(here[2])


def check_origin(origin: str) -> None:
    """Raise ``ValueError`` for an origin in the settings that no browser would ever send."""
    if origin == ANY:
        return
    scheme, separator, rest = origin.partition("://")
    if not separator or not scheme:
        raise ValueError(f"origin {origin!r} has no scheme: write https://{origin}, or * for all pages")
    if not rest or any(sign in rest for sign in "/?# *"):
        host = re.split(r"[/?# *]", rest)[0] or "example.org"
        raise ValueError(f"origin {origin!r} is none: it ends behind the host or port, as {scheme}://{host}")
