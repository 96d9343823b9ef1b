"""Commands on their way to Redis are those that redis-py would have sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from redis.asyncio.connection import Connection

from kinmqtt_redis_session.scripts import ALL, Command
from kinmqtt_redis_session.servers import Servers
from kinmqtt_redis_session.settings import RedisSessionSettings


@pytest.mark.parametrize(
    "command",
    [
        ("SCRIPT LOAD", ALL[0].source),
        ("EVALSHA", ALL[0].sha, 2, b"p:{\xff}:s", "ü", 0, -7, 2**64, "", b"", "a b\r\n"),
        (b"CLIENT LIST",),
    ],
)
def test_commands_are_packed_as_redis_py_packs_them(command: Command) -> None:
    """Byte by byte, on connections of every sort to one server."""
    expected = b"".join(Connection().pack_command(*command))
    ways: list[dict[str, Any]] = [
        {"host": "h"},
        {"host": "h", "tls": True},
        {"socket": Path("s")},
        {"url": "redis://h"},
        {"sentinels": ("h:1",)},
    ]

    for way in ways:
        life: Any = Servers(RedisSessionSettings(**way)).connections("name")
        for client in (life._writer, life._reader):
            connection = client.connection_pool.make_connection()
            assert b"".join(connection.pack_command(*command)) == expected
            assert b"".join(connection.pack_commands([command, command])) == expected * 2
