"""Templates for topics and filters: ``${clientid}`` and ``${username}`` stand for a client's names."""

from __future__ import annotations

import re

from kinmqtt_spi.values import Client

_PLACEHOLDER = re.compile(r"\$\{(clientid|username)\}")


def fill_in(template: str, client: Client, *, begins: bool = True) -> str | None:
    """A template with the client's names in it; ``None`` where it has no such name, or one that says too much.

    A client must not choose what it gets by what it calls itself: a name with ``/``, ``+`` or ``#`` in it would reach
    beyond its level, and one that begins with ``$`` into the topics of the broker's, where the topic ``begins`` with
    it. Say ``begins=False`` of a part that stands further on.
    """
    names = {"clientid": client.client_id, "username": client.username}
    for placeholder in set(_PLACEHOLDER.findall(template)):
        name = names[placeholder]
        if not name or any(character in name for character in "/+#"):
            return None
    filled = _PLACEHOLDER.sub(lambda placeholder: names[placeholder[1]] or "", template)
    if begins and filled.startswith("$") and _PLACEHOLDER.match(template):
        return None
    return filled
