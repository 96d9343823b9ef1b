"""Templates for topics and filters: ``${clientid}`` and ``${username}`` stand for a client's names."""

from __future__ import annotations

import re

from kinmqtt_spi.values import Client

_PLACEHOLDER = re.compile(r"\$\{(clientid|username)\}")


def fill_in(template: str, client: Client) -> str | None:
    """A template with the client's names in it; ``None`` where it has no such name, or one of several levels.

    A name with ``/``, ``+`` or ``#`` in it would reach beyond its level: a client must not choose what it gets by
    what it calls itself.
    """
    names = {"clientid": client.client_id, "username": client.username}
    for placeholder in set(_PLACEHOLDER.findall(template)):
        name = names[placeholder]
        if not name or any(character in name for character in "/+#"):
            return None
    return _PLACEHOLDER.sub(lambda placeholder: names[placeholder[1]] or "", template)
