"""The names of everything that is kept in Redis.

All keys of one client have its client id as their hash tag, and so lie in one slot of a Redis Cluster. What is looked
up over all clients lies in a fixed number of shards, whose keys have the shard as their hash tag.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote
from zlib import crc32

SHARDS: Final = 16
"""How many parts the indexes over clients, and the retained messages, have. It is part of the format."""

_ENCODED: Final = {ord("%"): "%25", ord("{"): "%7B", ord("}"): "%7D"}

_OURS: Final = frozenset(["n", *(f"{letter}{shard}" for letter in "ir" for shard in range(SHARDS))])
"""What stands between the braces of keys that are no client's."""


def encoded(client_id: str) -> bytes:
    """A client id as it stands between the braces of a key."""
    if client_id in _OURS:
        return b"%%%02X%s" % (ord(client_id[0]), client_id[1:].encode())
    return client_id.translate(_ENCODED).encode("utf-8", "surrogatepass")


def decoded(name: bytes) -> str:
    """The client id that :func:`encoded` made a name of."""
    text = name.decode("utf-8", "surrogatepass")
    return unquote(text, errors="surrogatepass") if "%" in text else text


class Keys:
    """The keys below one prefix."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix.encode()

    def client(self, name: bytes, *parts: bytes) -> list[bytes]:
        """The keys of one client; ``parts`` are letters of the README's table."""
        stem = self._prefix + b"{" + name + b"}:"
        return [stem + part for part in parts]

    def index(self, shard: int, part: bytes) -> bytes:
        """A part of an index over clients."""
        return b"%s{i%d}:%s" % (self._prefix, shard, part)

    def retained(self, shard: int, *parts: bytes) -> list[bytes]:
        """The keys of one part of the retained messages."""
        return [b"%s{r%d}:%s" % (self._prefix, shard, part) for part in parts]

    def owned(self, shard: int, uid: int) -> bytes:
        """A part of the index of clients that have their home at a node."""
        return self.index(shard, b"o:%d" % uid)

    def nodes(self) -> bytes:
        """The nodes that have joined."""
        return self._prefix + b"{n}:n"

    def lease(self, uid: int) -> bytes:
        """What a node renews as long as it lives."""
        return b"%s{n}:l:%d" % (self._prefix, uid)


def shard_of(name: bytes) -> int:
    """The part of the indexes in which a client stands."""
    return crc32(name) % SHARDS


def topic_shard(topic: bytes) -> int:
    """The part of the retained messages in which a topic stands: that of its first level."""
    return crc32(topic.split(b"/", 1)[0]) % SHARDS
