"""Templates for topics and filters: ``${clientid}`` and ``${username}`` stand for a client's names."""

from __future__ import annotations

import re

from kinmqtt_spi.values import Client

_PLACEHOLDER = re.compile(r"\$\{(clientid|username)\}")


def fill_in(template: str, client: Client, *, begins: bool = True) -> str | None:
    """Fill the client's names into a template; return ``None`` if a name is missing or not safe.

    A client must not reach other topics by its choice of a name. A name with ``/``, ``+`` or ``#`` is not safe, nor
    is one that begins with ``$`` if the template begins with its placeholder. Pass ``begins=False`` for a template
    that is not the beginning of a topic.
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
