"""Makes connections to Redis: to one server, to a server behind sentinels, or to a cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import cache
from typing import Any, Final

import hiredis
from redis.asyncio import BlockingConnectionPool, Redis, RedisCluster, Sentinel
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.backoff import NoBackoff

from kinmqtt_redis_session.scripts import Command, Part
from kinmqtt_redis_session.settings import RedisSessionSettings, address

MIN_PER_CLUSTER_NODE: Final = 8
"""The least limit of connections to each node of a cluster."""

EXTRA_CONNECTIONS: Final = 2
"""Connections in addition to those of batched reads: for writes, and for direct reads at start and stop.
Only the pool for a single server waits until a connection is free."""


class Connections:
    """One set of connections, used until one of them fails: one for writes, in order, and several for reads."""

    def __init__(self, writer: Any, reader: Any, *, cluster: bool, others: Sequence[Any] = ()) -> None:
        """``others`` are the connections to sentinels."""
        self._others = others
        self._writer = writer
        self._reader = reader
        self._cluster = cluster

    async def write(self, commands: Sequence[Command]) -> list[Any]:
        """Run commands; in one transaction unless Redis is a cluster."""
        pipeline = self._writer.pipeline() if self._cluster else self._writer.pipeline(transaction=True)
        return await _run(pipeline, commands)

    async def execute(self, commands: Sequence[Command]) -> list[Any]:
        """Run commands one after the other, without a transaction."""
        pipeline = self._reader.pipeline() if self._cluster else self._reader.pipeline(transaction=False)
        return await _run(pipeline, commands)

    async def wait(self, replicas: int, limit_ms: int) -> list[Any]:
        """The id of the connection for writes, and how many replicas have what it wrote."""
        pipeline = self._writer.pipeline(transaction=False)
        return await _run(pipeline, [("CLIENT ID",), ("WAIT", replicas, limit_ms)])

    async def on_each(self, *command: str | bytes | int) -> list[Any]:
        """Run a command on every master; returns their answers."""
        if not self._cluster:
            return [await self._reader.execute_command(*command)]
        await self._writer.initialize()
        answers = []
        for node in self._writer.get_primaries():
            answers.append(await self._writer.execute_command(*command, target_nodes=node))
        return answers

    async def kill(self, is_stale: Callable[[str], bool]) -> None:
        """Kill earlier connections of this process: commands that they sent must not be carried out later."""
        targets: list[dict[str, Any]] = [{}]
        client = self._reader
        if self._cluster:
            client = self._writer
            await client.initialize()
            targets = [{"target_nodes": node} for node in client.get_primaries()]
        for target in targets:
            for each in await client.execute_command("CLIENT LIST", **target):
                if is_stale(each.get("name", "")):
                    await client.execute_command("CLIENT KILL", "ID", each["id"], **target)

    async def close(self) -> None:
        """Close all connections."""
        for client in {id(each): each for each in (self._writer, self._reader, *self._others)}.values():
            await _closed(client)


class Servers:
    """Makes connections according to the settings."""

    def __init__(self, settings: RedisSessionSettings) -> None:
        self._settings = settings
        self.cluster = bool(settings.cluster)

    def connections(self, name: str) -> Connections:
        """A new set of connections, not open yet; CLIENT LIST shows them under ``name``."""
        settings = self._settings
        options = _options(settings) | {"client_name": name}
        if settings.cluster:
            options["startup_nodes"] = [ClusterNode(*address(each)) for each in settings.cluster]
            options["max_connections"] = max(MIN_PER_CLUSTER_NODE, settings.max_in_flight + EXTRA_CONNECTIONS)
            if settings.tls:
                options["ssl"] = True
            cluster: Any = RedisCluster(**options)
            return Connections(cluster, cluster, cluster=True)
        if settings.sentinels:
            return self._behind_sentinels(options)
        options["db"] = settings.database
        writer, reader = (_packing_in_c(self._one(options, at_most)) for at_most in (1, settings.max_in_flight))
        return Connections(writer, reader, cluster=False)

    def _behind_sentinels(self, options: dict[str, Any]) -> Connections:
        settings = self._settings
        # Sentinels have users of their own, and no database.
        more = {name: options[name] for name in ("socket_timeout", "socket_connect_timeout", "retry")}
        more["password"] = settings.sentinel_password or None
        untyped: Any = Sentinel
        sentinel = untyped([address(each) for each in settings.sentinels], sentinel_kwargs=more)
        options["db"] = settings.database
        options["ssl"] = settings.tls
        pool: Any = SentinelConnectionPool
        writer, reader = (
            _packing_in_c(
                Redis(connection_pool=pool(settings.sentinel_master, sentinel, max_connections=at_most, **options))
            )
            for at_most in (1, settings.max_in_flight + EXTRA_CONNECTIONS)
        )
        return Connections(writer, reader, cluster=False, others=sentinel.sentinels)

    def _one(self, options: dict[str, Any], at_most: int) -> Any:
        settings = self._settings
        options = {**options, "max_connections": at_most}
        pool: Any = BlockingConnectionPool
        if settings.url:
            # The URL takes precedence over the other settings.
            others = {name: value for name, value in options.items() if name != "db" and value is not None}
            return Redis(connection_pool=pool.from_url(settings.url, **others))
        if settings.socket:
            path = str(settings.socket.expanduser().absolute())
            return Redis(connection_pool=pool(connection_class=UnixDomainSocketConnection, path=path, **options))
        kind = SSLConnection if settings.tls else Connection
        return Redis(connection_pool=pool(connection_class=kind, host=settings.host, port=settings.port, **options))


def _options(settings: RedisSessionSettings) -> dict[str, Any]:
    options: dict[str, Any] = {
        "username": settings.username or None,
        "password": settings.password or None,
        "socket_timeout": settings.timeout_s,
        "socket_connect_timeout": settings.timeout_s,
        # No retries here: only the caller knows whether a command may be sent again.
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
    }
    if settings.tls:
        options |= {
            "ssl_ca_certs": None if settings.ca_file is None else str(settings.ca_file),
            "ssl_certfile": None if settings.certificate_file is None else str(settings.certificate_file),
            "ssl_keyfile": None if settings.key_file is None else str(settings.key_file),
            "ssl_check_hostname": settings.verify_hostname,
        }
    return options


class _PacksInC:
    """Packs commands in C; redis-py's asyncio connections pack them in Python, one argument at a time."""

    def pack_command(self, *parts: Part) -> list[bytes]:
        """Encode a command; its first part may be several words."""
        name, *arguments = parts
        words = [name] if isinstance(name, int) else name.split()
        return [hiredis.pack_command((*words, *arguments))]

    def pack_commands(self, commands: Iterable[Command]) -> list[bytes]:
        """Encode several commands."""
        return [chunk for command in commands for chunk in self.pack_command(*command)]


@cache
def _packing(connection_class: type[Any]) -> type[Any]:
    """A subclass of a connection class that packs in C."""
    return type(connection_class.__name__, (_PacksInC, connection_class), {})


def _packing_in_c(client: Any) -> Any:
    """Make a client's connections pack in C; returns the client."""
    pool = client.connection_pool
    pool.connection_class = _packing(pool.connection_class)
    return client


async def _run(pipeline: Any, commands: Sequence[Command]) -> list[Any]:
    async with pipeline as running:
        for command in commands:
            running.execute_command(*command)
        answers: list[Any] = await running.execute(raise_on_error=False)
        return answers


async def _closed(client: Any) -> None:
    # After an error a cluster client closes nothing, because it plans to discover the nodes again.
    known = hasattr(client, "get_nodes")
    nodes = [*client.get_nodes(), *client.nodes_manager.startup_nodes.values()] if known else []
    close: Awaitable[None] = client.aclose() if hasattr(client, "aclose") else client.close()
    await close
    for node in nodes:
        await node.disconnect()
    pool = getattr(client, "connection_pool", None)
    if pool is not None:
        await pool.disconnect()
