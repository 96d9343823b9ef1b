"""The names of keys: what is a client's is no index's."""

from __future__ import annotations

import pytest

from kinmqtt_redis_session.keys import Keys, decoded, encoded


@pytest.mark.parametrize("client_id", ["i0", "i15", "r3", "n", "i", "i16", "x", "%69", "{i0}", "ä"])
def test_no_client_has_the_keys_of_an_index(client_id: str) -> None:
    """Whatever its name, a client's keys are none of those that belong to all."""
    keys = Keys("k:")
    ours = {keys.index(shard, part) for shard in range(16) for part in (b"a", b"x", b"w", b"q")}
    ours |= {key for shard in range(16) for key in keys.retained(shard, b"m", b"t", b"x", b"d", b"dx", b"c")}
    ours |= {b"k:{n}:n"}

    name = encoded(client_id)

    assert decoded(name) == client_id
    assert not ours & set(keys.client(name, b"s", b"f", b"q", b"d", b"i", b"p", b"r", b"x", b"n"))
