"""``[plugins.redis_session]``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from attrs import frozen

from kinmqtt_redis_session.servers import address
from kinmqtt_spi.errors import NotConfigured, SettingsError
from kinmqtt_spi.settings import setting


@frozen(slots=True)
class RedisSessionSettings:
    """Where Redis is, and what counts as kept."""

    host: str = setting("", help="the server's name or address")
    port: int = setting(6379, help="the server's port", minimum=1, maximum=65_535)
    socket: Path | None = setting(None, help="a Unix socket, instead of host and port")
    url: str = setting(
        "",
        help="an address such as `rediss://user@host:6379/0`, instead of host, port, socket, database and tls",
        secret=True,
    )
    database: int = setting(0, help="the number of the database; a cluster has 0 only", minimum=0)
    username: str = setting("", help="an ACL user; left out, the default user")
    password: str = setting("", help="its password", secret=True)
    tls: bool = setting(False, help="whether connections are encrypted and the server's certificate is verified")
    ca_file: Path | None = setting(None, path="file", help="who may have signed it; left out, whom the system trusts")
    certificate_file: Path | None = setting(None, path="file", help="a certificate to show to the server")
    key_file: Path | None = setting(None, path="file", help="its private key")
    verify_hostname: bool = setting(True, help="whether the certificate must name the server")
    cluster: tuple[str, ...] = setting((), help="nodes of a Redis Cluster, as `host:port`, instead of one server")
    sentinels: tuple[str, ...] = setting((), help="sentinels, as `host:port`: they say which server it is")
    sentinel_master: str = setting("mymaster", help="the name by which sentinels know the server")
    sentinel_password: str = setting("", help="the sentinels' password", secret=True)
    prefix: str = setting("kinmqtt:", help="what every key begins with: brokers with the same one share everything")
    durability: Literal["memory", "aof", "wait"] = setting(
        "memory",
        help="when something counts as kept: memory, when Redis has it; aof, the same, and Redis must keep an "
        "append-only file; wait, when replicas have it too",
    )
    wait_replicas: int = setting(1, help="with durability wait: how many replicas must have it", minimum=1)
    when_away: Literal["live", "refuse"] = setting(
        "live",
        help="while Redis is away: live lets in clients whose session ends with their connection, and no "
        "others; refuse lets nobody in",
    )
    timeout_s: float = setting(
        3.0, help="how long an answer may take before Redis counts as away", unit="s", minimum=0.01, maximum=600
    )
    reconnect_min_s: float = setting(
        0.1, help="how long to wait before connecting again; doubled each time", unit="s", minimum=0.01, maximum=600
    )
    reconnect_max_s: float = setting(5.0, help="the longest of these waits", unit="s", minimum=0.01, maximum=3600)
    max_in_flight: int = setting(4, help="pipelines of reads on their way at the same time", minimum=1, maximum=100)
    max_waiting: int = setting(
        100_000, help="writes that may wait for the pipeline before them; more are refused", minimum=1
    )
    remember_s: float = setting(
        604_800.0,
        help="how long the epoch of a client is remembered of which nothing is stored, and a deleted retained "
        "message against older ones",
        unit="s",
        minimum=1,
    )
    lease_s: float = setting(
        10.0,
        help="how long a broker may be silent before others take over its sessions; three times timeout_s at least",
        unit="s",
        minimum=0.1,
        maximum=3600,
    )
    refresh_s: float = setting(
        60.0, help="how often the counts of what other brokers keep are read anew", unit="s", minimum=1
    )


def verified(settings: RedisSessionSettings) -> RedisSessionSettings:
    """The settings; raises SettingsError where they contradict each other, NotConfigured where they lead nowhere."""
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
        problems.append(f"plugins.redis_session: {' and '.join(ways)} exclude each other")
    if settings.cluster and settings.database:
        problems.append("plugins.redis_session.database: a cluster has database 0 only")
    if settings.cluster and settings.durability == "wait":
        problems.append('plugins.redis_session.durability: "wait" is for one server with replicas, not for a cluster')
    if settings.socket and settings.tls:
        problems.append("plugins.redis_session.tls: a Unix socket is not encrypted")
    _, _, behind = settings.prefix.partition("{")
    if behind.startswith("}"):
        # What stands in the first braces of a key is its slot, unless it is nothing.
        problems.append('plugins.redis_session.prefix: "{}" in it would put the keys of a client in different slots')
    if settings.reconnect_max_s < settings.reconnect_min_s:
        problems.append("plugins.redis_session.reconnect_max_s: it is below reconnect_min_s")
    if problems:
        raise SettingsError(problems)
    return settings
