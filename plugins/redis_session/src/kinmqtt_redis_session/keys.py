"""The names of all keys in Redis.

All keys of one client have its client id as their hash tag, so they are in one slot of a Redis Cluster. Indexes over
all clients are split into a fixed number of shards, whose keys have the shard as their hash tag.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote
from zlib import crc32

SHARDS: Final = 16
"""The number of shards of the indexes over clients and of the retained messages. It is part of the format."""

RETAIN_PARTS: Final = (b"m", b"t", b"x", b"d", b"dx", b"c")
"""The keys of a shard of retained messages that the scripts take, in this order."""

_ENCODED: Final = {ord("%"): "%25", ord("{"): "%7B", ord("}"): "%7D"}

_RESERVED: Final = frozenset(["n", *(f"{letter}{shard}" for letter in "ir" for shard in range(SHARDS))])
"""Hash tags of keys that belong to no client."""


def encoded(client_id: str) -> bytes:
    """A client id as the hash tag of its keys."""
    if client_id in _RESERVED:
        return b"%%%02X%s" % (ord(client_id[0]), client_id[1:].encode())
    return client_id.translate(_ENCODED).encode("utf-8", "surrogatepass")


def decoded(name: bytes) -> str:
    """Decode what :func:`encoded` encoded."""
    text = name.decode("utf-8", "surrogatepass")
    return unquote(text, errors="surrogatepass") if "%" in text else text


class Keys:
    """The keys below one prefix."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix.encode()

    def client(self, name: bytes, *parts: bytes) -> list[bytes]:
        """The keys of one client; ``parts`` are the letters in the README's table."""
        stem = self._prefix + b"{" + name + b"}:"
        return [stem + part for part in parts]

    def index(self, shard: int, part: bytes) -> bytes:
        """One shard of an index over clients."""
        return b"%s{i%d}:%s" % (self._prefix, shard, part)

    def retained(self, shard: int, *parts: bytes) -> list[bytes]:
        """The keys of one shard of the retained messages."""
        return [b"%s{r%d}:%s" % (self._prefix, shard, part) for part in parts]

    def owned(self, shard: int, uid: int) -> bytes:
        """One shard of the index of the clients whose home is a node."""
        return self.index(shard, b"o:%d" % uid)

    def nodes(self) -> bytes:
        """The key of the hash of nodes that have joined."""
        return self._prefix + b"{n}:n"

    def lease(self, uid: int) -> bytes:
        """The key of a node's lease."""
        return b"%s{n}:l:%d" % (self._prefix, uid)

    def buried(self, uid: int) -> bytes:
        """The key that says that a node was declared dead."""
        return b"%s{n}:b:%d" % (self._prefix, uid)

    def cluster_arbiter(self) -> bytes:
        """The key of the arbiter that decides splits of the cluster."""
        return self._prefix + b"{n}:a"

    def cluster_members(self) -> bytes:
        """The key of the addresses at which the cluster's members are."""
        return self._prefix + b"{n}:m"


def shard_of(name: bytes) -> int:
    """The shard of the indexes that a client is in."""
    return crc32(name) % SHARDS


def topic_shard(topic: bytes) -> int:
    """The shard of the retained messages that a topic is in, chosen by its first level."""
    return crc32(topic.split(b"/", 1)[0]) % SHARDS
