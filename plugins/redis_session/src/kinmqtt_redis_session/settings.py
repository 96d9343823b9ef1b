"""The settings ``[plugins.redis_session]``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from attrs import frozen

from kinmqtt_spi.errors import NotConfigured, SettingsError
from kinmqtt_spi.settings import setting


@frozen(slots=True)
class RedisSessionSettings:
    """Where Redis is, and when a write counts as persisted."""

    host: str = setting("", help="the server's name or address")
    port: int = setting(6379, help="the server's port", minimum=1, maximum=65_535)
    socket: Path | None = setting(None, help="a Unix socket, instead of host and port")
    url: str = setting(
        "",
        help="an address such as `rediss://user@host:6379/0`, instead of host, port, socket, database and tls",
        secret=True,
    )
    database: int = setting(0, help="the number of the database; a cluster has 0 only", minimum=0)
    username: str = setting("", help="an ACL user; by default Redis's default user")
    password: str = setting("", help="its password", secret=True)
    tls: bool = setting(False, help="encrypt connections and verify the server's certificate")
    ca_file: Path | None = setting(None, path="file", help="trusted CA certificates; by default the system's")
    certificate_file: Path | None = setting(None, path="file", help="the client certificate")
    key_file: Path | None = setting(None, path="file", help="its private key")
    verify_hostname: bool = setting(True, help="require that the certificate names the server")
    cluster: tuple[str, ...] = setting((), help="nodes of a Redis Cluster, as `host:port`, instead of one server")
    sentinels: tuple[str, ...] = setting((), help="sentinels, as `host:port`; they name the server")
    sentinel_master: str = setting("mymaster", help="the name by which sentinels know the server")
    sentinel_password: str = setting("", help="the sentinels' password", secret=True)
    prefix: str = setting("kinmqtt:", help="the prefix of all keys; brokers with the same prefix share all state")
    durability: Literal["memory", "aof", "wait"] = setting(
        "memory",
        help="when a write counts as persisted: memory, when Redis has it; aof, the same, and Redis must have an "
        "append-only file; wait, when replicas have it too",
    )
    wait_replicas: int = setting(1, help="with durability wait: how many replicas must have it", minimum=1)
    when_away: Literal["live", "refuse"] = setting(
        "live",
        help="while Redis is away: live accepts only clients with a non-persistent session; refuse rejects all "
        "clients",
    )
    timeout_s: float = setting(
        3.0, help="the time limit for an answer; after it Redis counts as away", unit="s", minimum=0.01, maximum=600
    )
    reconnect_min_s: float = setting(
        0.1, help="the first pause before reconnecting; doubled each time", unit="s", minimum=0.01, maximum=600
    )
    reconnect_max_s: float = setting(
        5.0, help="the longest pause before reconnecting", unit="s", minimum=0.01, maximum=3600
    )
    max_in_flight: int = setting(4, help="the most pipelines of reads in flight", minimum=1, maximum=100)
    max_waiting: int = setting(
        100_000, help="the most writes that wait for the pipeline in flight; more are refused", minimum=1
    )
    remember_s: float = setting(
        604_800.0,
        help="how long to remember the epoch of a client without stored state, and a deletion of a retained message",
        unit="s",
        minimum=1,
    )
    lease_s: float = setting(
        10.0,
        help="how long a broker may be silent before others take over its sessions; at least three times timeout_s",
        unit="s",
        minimum=0.1,
        maximum=3600,
    )
    refresh_s: float = setting(
        60.0, help="how often to read the counters of what other brokers have stored", unit="s", minimum=1
    )


def validated(settings: RedisSessionSettings) -> RedisSessionSettings:
    """Return valid settings; raises NotConfigured if they name no server, SettingsError if they contradict."""
    ways = [name for name in ("host", "url", "socket", "cluster", "sentinels") if getattr(settings, name)]
    if not ways:
        raise NotConfigured("plugins.redis_session has neither host nor url, socket, cluster or sentinels")
    problems = []
    for name in ("cluster", "sentinels"):
        for each in getattr(settings, name):
            try:
                address(each)
            except ValueError as error:
                problems.append(f"plugins.redis_session.{name}: {error}")
    if len(ways) > 1:
        problems.append(f"plugins.redis_session: {' and '.join(ways)} are mutually exclusive")
    if settings.cluster and settings.database:
        problems.append("plugins.redis_session.database: a cluster only has database 0")
    if settings.cluster and settings.durability == "wait":
        problems.append('plugins.redis_session.durability: "wait" is for one server with replicas, not for a cluster')
    if settings.socket and settings.tls:
        problems.append("plugins.redis_session.tls: a Unix socket can't be encrypted")
    _, _, behind = settings.prefix.partition("{")
    if behind.startswith("}"):
        # The text in a key's first braces determines its slot, unless it is empty.
        problems.append('plugins.redis_session.prefix: with "{}" the keys of a client would be in different slots')
    if settings.reconnect_max_s < settings.reconnect_min_s:
        problems.append("plugins.redis_session.reconnect_max_s: must not be below reconnect_min_s")
    if problems:
        raise SettingsError(problems)
    return settings


def address(text: str) -> tuple[str, int]:
    """Split ``host:port`` into host and port; raises ``ValueError`` if it is malformed."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise ValueError(f"{text!r} is not host:port")
    return host.strip("[]"), int(port)
