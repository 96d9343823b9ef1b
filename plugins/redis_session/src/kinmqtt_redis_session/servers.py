"""Where Redis is, and how connections to it are made: a server, one behind sentinels, or a cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import hiredis
from redis.asyncio import BlockingConnectionPool, Redis, RedisCluster, Sentinel
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.backoff import NoBackoff

from kinmqtt_redis_session.scripts import Command, Part

if TYPE_CHECKING:
    from kinmqtt_redis_session.settings import RedisSessionSettings

IN_CLUSTER_AT_ONCE: Final = 8
"""Connections to each node of a cluster, at least."""

BESIDES: Final = 2
"""Connections beside those of gathered questions: for whoever asks past them at a start or an end, and for writes.
Only a pool for one server waits until one is free."""


class Life:
    """Connections that are used until one of them fails: one for writes, which stand in line, and some for reads."""

    def __init__(self, writer: Any, asker: Any, *, cluster: bool, others: Sequence[Any] = ()) -> None:
        """``others`` are connections that lead to these: those to sentinels."""
        self._others = others
        self._writer = writer
        self._asker = asker
        self._cluster = cluster

    async def write(self, commands: Sequence[Command]) -> list[Any]:
        """Carry commands out: as one transaction, where there is one server."""
        pipeline = self._writer.pipeline() if self._cluster else self._writer.pipeline(transaction=True)
        return await _run(pipeline, commands)

    async def ask(self, commands: Sequence[Command]) -> list[Any]:
        """Carry commands out, one behind the other."""
        pipeline = self._asker.pipeline() if self._cluster else self._asker.pipeline(transaction=False)
        return await _run(pipeline, commands)

    async def wait(self, replicas: int, limit_ms: int) -> list[Any]:
        """The number of the connection, and how many replicas have what it wrote."""
        pipeline = self._writer.pipeline(transaction=False)
        return await _run(pipeline, [("CLIENT ID",), ("WAIT", replicas, limit_ms)])

    async def on_each(self, *command: str | bytes | int) -> list[Any]:
        """The answers of every server that takes writes."""
        if not self._cluster:
            return [await self._asker.execute_command(*command)]
        await self._writer.initialize()
        answers = []
        for node in self._writer.get_primaries():
            answers.append(await self._writer.execute_command(*command, target_nodes=node))
        return answers

    async def kill(self, is_stale: Callable[[str], bool]) -> None:
        """End connections of this process's earlier lives: what one has sent must not be carried out later."""
        places: list[dict[str, Any]] = [{}]
        client = self._asker
        if self._cluster:
            client = self._writer
            await client.initialize()
            places = [{"target_nodes": node} for node in client.get_primaries()]
        for place in places:
            for each in await client.execute_command("CLIENT LIST", **place):
                if is_stale(each.get("name", "")):
                    await client.execute_command("CLIENT KILL", "ID", each["id"], **place)

    async def close(self) -> None:
        """Close all connections."""
        for client in {id(each): each for each in (self._writer, self._asker, *self._others)}.values():
            await _closed(client)


class Servers:
    """Makes connections as the settings say."""

    def __init__(self, settings: RedisSessionSettings) -> None:
        self._settings = settings
        self.cluster = bool(settings.cluster)

    def life(self, name: str) -> Life:
        """New connections, none of them open yet; Redis shows them under this name."""
        settings = self._settings
        options = _options(settings) | {"client_name": name}
        if settings.cluster:
            options["startup_nodes"] = [ClusterNode(*address(each)) for each in settings.cluster]
            options["max_connections"] = max(IN_CLUSTER_AT_ONCE, settings.max_in_flight + BESIDES)
            if settings.tls:
                options["ssl"] = True
            cluster: Any = RedisCluster(**options)
            return Life(cluster, cluster, cluster=True)
        if settings.sentinels:
            return self._behind_sentinels(options)
        options["db"] = settings.database
        writer, asker = (_quick(self._one(options, at_most)) for at_most in (1, settings.max_in_flight))
        return Life(writer, asker, cluster=False)

    def _behind_sentinels(self, options: dict[str, Any]) -> Life:
        settings = self._settings
        # Sentinels have users of their own, and no database.
        more = {name: options[name] for name in ("socket_timeout", "socket_connect_timeout", "retry")}
        more["password"] = settings.sentinel_password or None
        untyped: Any = Sentinel
        sentinel = untyped([address(each) for each in settings.sentinels], sentinel_kwargs=more)
        options["db"] = settings.database
        options["ssl"] = settings.tls
        pool: Any = SentinelConnectionPool
        writer, asker = (
            _quick(
                Redis(connection_pool=pool(settings.sentinel_master, sentinel, max_connections=at_most, **options))
            )
            for at_most in (1, settings.max_in_flight + BESIDES)
        )
        return Life(writer, asker, cluster=False, others=sentinel.sentinels)

    def _one(self, options: dict[str, Any], at_most: int) -> Any:
        settings = self._settings
        options = {**options, "max_connections": at_most}
        pool: Any = BlockingConnectionPool
        if settings.url:
            # What the settings say besides counts where the address says nothing.
            kept = {name: value for name, value in options.items() if name != "db" and value is not None}
            return Redis(connection_pool=pool.from_url(settings.url, **kept))
        if settings.socket:
            path = str(settings.socket.expanduser().absolute())
            return Redis(connection_pool=pool(connection_class=UnixDomainSocketConnection, path=path, **options))
        kind = SSLConnection if settings.tls else Connection
        return Redis(connection_pool=pool(connection_class=kind, host=settings.host, port=settings.port, **options))


def address(text: str) -> tuple[str, int]:
    """Host and port of ``host:port``; raises ``ValueError``."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise ValueError(f"{text!r} is no host:port")
    return host.strip("[]"), int(port)


def _options(settings: RedisSessionSettings) -> dict[str, Any]:
    options: dict[str, Any] = {
        "username": settings.username or None,
        "password": settings.password or None,
        "socket_timeout": settings.timeout_s,
        "socket_connect_timeout": settings.timeout_s,
        # Whether something is sent again is decided by who knows what it was.
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
    """Packs commands in C: redis-py's connections for asyncio do it one argument at a time."""

    def pack_command(self, *parts: Part) -> list[bytes]:
        """A command as it goes to Redis; the first part may be several words."""
        name, *arguments = parts
        words = [name] if isinstance(name, int) else name.split()
        return [hiredis.pack_command((*words, *arguments))]

    def pack_commands(self, commands: Iterable[Command]) -> list[bytes]:
        """Several."""
        return [chunk for command in commands for chunk in self.pack_command(*command)]


@cache
def _packing(sort: type[Any]) -> type[Any]:
    """Connections of a sort that pack in C."""
    return type(sort.__name__, (_PacksInC, sort), {})


def _quick(client: Any) -> Any:
    """The client of a server, with connections that pack in C."""
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
    # A cluster's client that has just met an error closes nothing: it means to ask anew where everything is.
    known = hasattr(client, "get_nodes")
    nodes = [*client.get_nodes(), *client.nodes_manager.startup_nodes.values()] if known else []
    close: Awaitable[None] = client.aclose() if hasattr(client, "aclose") else client.close()
    await close
    for node in nodes:
        await node.disconnect()
    pool = getattr(client, "connection_pool", None)
    if pool is not None:
        await pool.disconnect()
