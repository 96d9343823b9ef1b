"""The plugin keeps the contract of plugins, and refuses settings that lead nowhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kinmqtt_redis_session import RedisSession, RedisSessionSettings
from kinmqtt_redis_session.command import _context
from kinmqtt_redis_session.settings import validated
from kinmqtt_spi import hookimpl
from kinmqtt_spi.errors import AssemblyError, NotConfigured, ServiceUnavailable, SettingsError
from kinmqtt_spi.memory.plugin import BareContext
from kinmqtt_spi.services.plugin import Context, HealthState
from kinmqtt_spi.services.queue import Append, Remove
from kinmqtt_spi.testing.build import entry
from kinmqtt_spi.testing.driving import AsyncioDriver
from kinmqtt_spi.testing.plugin import PluginCase, PluginContract
from kinmqtt_spi.values import Maybe
from redis_harness.redis_stores import SOON
from redis_harness.servers import RedisServer, redis_server
from spi_harness.processes import wait_until

Drive = Callable[[Maybe[Any]], Any]


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server with nothing in it."""
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def drive() -> Iterator[AsyncioDriver]:
    """Waits in an event loop."""
    driver = AsyncioDriver()
    yield driver
    driver.close()


def configured(server: RedisServer, **more: Any) -> tuple[RedisSession, BareContext]:
    """A plugin that is asked for a store."""
    settings = RedisSessionSettings(**{"host": "127.0.0.1", "port": server.port, **SOON, **more})
    plugin = RedisSession()
    context = BareContext("redis_session", settings)
    plugin.configure(context)
    plugin.session_store()
    return plugin, context


class TestPlugin(PluginContract):
    """The plugin as any other, over a server that refuses it half-way where it is to fail."""

    reactor = "asyncio"
    reloads = True
    can_fail = True

    @pytest.fixture
    def plugin(self, server: RedisServer) -> PluginCase:
        self.server = server
        section = f'host = "127.0.0.1"\nport = {server.port}\n'
        return PluginCase(_serving, section, changed=section + "refresh_s = 5\n", name="redis_session")

    def failing(self, plugin: Any, context: BareContext) -> None:
        """Scripts can be loaded, and then the server keeps the plugin from reading what there is."""
        self.server.ask("acl", "setuser", "default", "-hmget")


def _serving() -> RedisSession:
    return _Serving()


class _Serving(RedisSession):
    """Asked for a store as soon as it is configured."""

    @hookimpl
    def configure(self, context: Context) -> None:
        super().configure(context)
        self.session_store()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"host": "h", "socket": Path("s")}, "host and socket are mutually exclusive"),
        ({"cluster": ("h:1",), "database": 1}, "a cluster only has database 0"),
        ({"cluster": ("h:1",), "durability": "wait"}, "not for a cluster"),
        ({"cluster": ("h",)}, "'h' is not host:port"),
        ({"sentinels": ("h:0",)}, "'h:0' is not host:port"),
        ({"socket": Path("s"), "tls": True}, "a Unix socket can.t be encrypted"),
        ({"host": "h", "prefix": "a{}b"}, "in different slots"),
        ({"host": "h", "reconnect_min_s": 9.0}, "must not be below reconnect_min_s"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], sentence: str) -> None:
    """Each is told where it stands."""
    with pytest.raises(SettingsError, match=sentence):
        validated(RedisSessionSettings(**settings))


def test_without_a_server_the_plugin_abstains() -> None:
    """It is installed, and nobody has said where Redis is."""
    with pytest.raises(NotConfigured):
        validated(RedisSessionSettings())


def test_an_unreachable_server_fails_the_start(server: RedisServer, drive: Drive) -> None:
    """The broker does not start without what it keeps everything in."""
    server.kill()
    plugin, context = configured(server)

    with pytest.raises(ServiceUnavailable, match="Redis can't be reached"):
        drive(plugin.start(context))

    drive(plugin.stop())


def test_aof_is_not_promised_without_a_file(server: RedisServer, drive: Drive) -> None:
    """What can't hold is refused before anything starts."""
    plugin, context = configured(server, durability="aof")

    with pytest.raises(AssemblyError, match="appendonly no"):
        drive(plugin.start(context))

    drive(plugin.stop())


def test_a_file_without_fsync_always_is_warned_of(tmp_path: Path, drive: Drive) -> None:
    """With everysec Redis answers before the file has it."""
    with redis_server(tmp_path / "redis", "--appendonly", "yes", "--appendfsync", "everysec") as server:
        plugin, context = configured(server, durability="aof")

        drive(plugin.start(context))
        drive(plugin.stop())

    assert any("appendfsync always" in line for line in context.log.texts("warn"))


def test_health_says_whether_redis_is_there(server: RedisServer, drive: Drive) -> None:
    """It is failed while Redis is away, and healthy again."""
    plugin, context = configured(server)
    drive(plugin.start(context))
    store = plugin.session_store()
    before = plugin.health().state
    server.pause()

    with pytest.raises(ServiceUnavailable):
        drive(store.iterate())
    meanwhile = plugin.health().state
    server.go_on()
    parts: Any = plugin._parts
    drive(parts.link.back())

    assert (before, meanwhile) == (HealthState.HEALTHY, HealthState.FAILED)
    assert plugin.health().state is HealthState.HEALTHY
    drive(plugin.stop())


def test_a_server_that_was_demoted_counts_as_away(server: RedisServer, drive: Drive) -> None:
    """Behind an address that leads to another server by now the connection to the old one is given up."""
    plugin, context = configured(server)
    drive(plugin.start(context))
    queue = plugin.queue_store()
    server.ask("replicaof", "127.0.0.1", "1")

    queue.apply([Append("a", 1, entry(1))])
    with pytest.raises(ServiceUnavailable):
        drive(queue.commit())
    meanwhile = plugin.health().state
    server.ask("replicaof", "no", "one")
    parts: Any = plugin._parts
    drive(parts.link.back())
    queue.apply([Append("a", 1, entry(1))])
    drive(queue.commit())

    assert (meanwhile, plugin.health().state) == (HealthState.FAILED, HealthState.HEALTHY)
    drive(plugin.stop())


def test_a_full_server_stores_no_partial_transaction(server: RedisServer, drive: Drive) -> None:
    """Where Redis is there and refuses writes health says so, nobody is let in, and nothing of a turn is kept."""
    plugin, context = configured(server)
    drive(plugin.start(context))
    queue, sessions = plugin.queue_store(), plugin.session_store()
    queue.apply([Append("a", 1, entry(1))])
    drive(queue.commit())
    server.ask("config", "set", "maxmemory", "1")

    queue.apply([Remove("a", 1, 1), Append("b", 1, entry(1))])
    with pytest.raises(ServiceUnavailable):
        drive(queue.commit())
    with pytest.raises(ServiceUnavailable):
        drive(sessions.claim("c", context.node))
    meanwhile = plugin.health()
    held = [[each.sequence for each in drive(queue.read(name, 0, 9))] for name in "ab"]
    server.ask("config", "set", "maxmemory", "0")
    queue.apply([Append("b", 1, entry(1))])
    drive(queue.commit())

    assert meanwhile.state is HealthState.DEGRADED and "memory" in meanwhile.text
    assert held == [[1], []]
    assert plugin.health().state is HealthState.HEALTHY
    drive(plugin.stop())


def test_an_acl_user_a_database_and_a_prefix(server: RedisServer, drive: Drive) -> None:
    """A user who may touch nothing beside the prefix is enough."""
    server.ask(
        "acl", "setuser", "broker", "on", ">secret", "~mine:*", "+@all", "-@dangerous", "+client|list", "+client|kill"
    )
    more = {"username": "broker", "password": "secret", "database": 3, "prefix": "mine:"}
    plugin, context = configured(server, **more)
    drive(plugin.start(context))

    drive(plugin.session_store().claim("a", context.node))
    drive(plugin.stop())

    assert "mine:{a}:s" in server.ask("-n", "3", "keys", "*").split()
    assert server.ask("keys", "*") == ""


def test_replicas_are_waited_for(tmp_path: Path, server: RedisServer, drive: Drive) -> None:
    """With ``wait`` something is kept when a replica has it, and not before."""
    with redis_server(tmp_path / "replica", "--replicaof", "127.0.0.1", str(server.port)) as replica:
        wait_until(lambda: "state=online" in server.ask("info", "replication"), "the replica has all of it")
        plugin, context = configured(server, durability="wait")
        drive(plugin.start(context))
        queue = plugin.queue_store()
        queue.apply([Append("a", 1, entry(1))])
        drive(queue.commit())
        replica.pause()
        queue.apply([Append("a", 1, entry(2))])
        with pytest.raises(ServiceUnavailable):
            drive(queue.commit())
        replica.go_on()
        drive(plugin.stop())


def test_replicas_of_another_connection_do_not_count(tmp_path: Path, server: RedisServer, drive: Drive) -> None:
    """Where the connection is lost between a write and WAIT nobody can say what the replicas have."""
    with redis_server(tmp_path / "replica", "--replicaof", "127.0.0.1", str(server.port)):
        wait_until(lambda: "state=online" in server.ask("info", "replication"), "the replica has all of it")
        plugin, context = configured(server, durability="wait")
        drive(plugin.start(context))
        life = plugin._parts.link._connections  # type: ignore[union-attr]
        wait = life.wait  # type: ignore[union-attr]

        def lost(*arguments: int) -> Any:
            server.ask("client", "kill", "type", "normal")
            return wait(*arguments)

        life.wait = lost  # type: ignore[method-assign, union-attr]
        queue = plugin.queue_store()
        queue.apply([Append("a", 1, entry(1))])
        with pytest.raises(ServiceUnavailable):
            drive(queue.commit())
        drive(plugin.stop())


def test_each_export_is_a_node_of_its_own_and_prints_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    """Two exports at once don't end each other's connections; a warning is to be read."""
    one, two = (_context(RedisSessionSettings(host="h")) for _ in range(2))
    one.log.warn("look at {this}", this="that")

    assert one.node.uid != two.node.uid
    assert one.clock.now() > 1_700_000_000
    assert capsys.readouterr().err == "kinmqtt: look at that\n"
