"""Several brokers over one Redis: each leaves alone what others hold, and goes on with what the dead left."""

from __future__ import annotations

import re
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from core_harness.brokers import BrokerProcess, broker_command, run_command, running_broker
from core_harness.wire import wire
from kinmqtt.mqtt.packets import (
    V5,
    ConnectWill,
    DisconnectPacket,
    Puback,
    Publish,
    Suback,
    Subscribe,
    SubscribeRequest,
)
from kinmqtt_auth_file.hashes import Pbkdf2
from kinmqtt_spi import Properties
from kinmqtt_spi.reasons import ReasonCode
from redis_harness.servers import RedisServer, redis_server
from spi_harness.processes import free_port, wait_until

KEPT = Properties(session_expiry_interval=600)
QUICK = "timeout_s = 1\nreconnect_max_s = 0.2\nlease_s = 3\n"
CALM = "timeout_s = 2\nreconnect_max_s = 0.2\nlease_s = 6\n"
"""Where nothing is to be taken for gone, however busy the machine is."""
ADOPTED = r"adopted (\d+) sessions of nodes that are gone"
RESTORED = r"(\d+) sessions restored"


def settings(folder: Path, server: RedisServer, more: str) -> str:
    """A file with the settings of a broker that keeps everything in a Redis."""
    folder.mkdir(exist_ok=True)
    file = folder / "kinmqtt.toml"
    file.write_text(
        '[services]\nsession = "redis_session"\nqueue = "redis_session"\nretain = "redis_session"\n'
        f'[plugins.redis_session]\nhost = "127.0.0.1"\nport = {server.port}\n{more}',
        encoding="utf-8",
    )
    return str(file)


def begun(stack: ExitStack, folder: Path, server: RedisServer, more: str = QUICK) -> BrokerProcess:
    """A broker that runs."""
    return stack.enter_context(running_broker("--config", settings(folder, server, more)))


def kill(broker: BrokerProcess) -> None:
    """End a broker without a word."""
    broker.signal(signal.SIGKILL)
    broker.wait()
    broker.good_status = -signal.SIGKILL
    broker._told = True


def leave(broker: BrokerProcess, *names: str, properties: Properties = KEPT) -> None:
    """Have sessions wait at a broker, each subscribed to its own name."""
    for name in names:
        with wire(broker.port, name, V5, clean_start=False, properties=properties) as client:
            client.subscribe(name, 1)


def tell(broker: BrokerProcess, *names: str, payload: bytes = b"x") -> None:
    """Publish to sessions, and have it acknowledged that each has got it."""
    with wire(broker.port, "teller", V5) as client:
        for name in names:
            client.publish(name, payload, 1, packet_id=1)
            reason = client.expect(Puback).reason
            assert reason is ReasonCode.SUCCESS, f"{name}: {reason}"


def hears(broker: BrokerProcess, name: str) -> list[bytes]:
    """What a session has got that comes back; it must be there."""
    with wire(broker.port, version=V5) as client:
        connack = client.connect(name, clean_start=False, properties=KEPT)
        assert connack.session_present, f"{name} has no session"
        heard: list[bytes] = []
        # It goes behind all that waits.
        client.publish(name, b"end", 1, packet_id=9)
        acknowledged = False
        while heard[-1:] != [b"end"] or not acknowledged:
            packet = client.receive()
            assert packet is not None, f"{name} was disconnected"
            if isinstance(packet, Publish):
                heard.append(bytes(packet.payload))
                client.send(Puback(packet.packet_id))
            acknowledged = acknowledged or isinstance(packet, Puback)
        client.ping()
        return heard[:-1]


def counted(pattern: str, *brokers: BrokerProcess) -> int:
    """The sum of the numbers that a line of some brokers' logs has."""
    return sum(int(number) for broker in brokers for number in re.findall(pattern, broker.output))


def home(server: RedisServer, name: str) -> str:
    """The uid of the node that holds a session."""
    return server.ask("hget", f"kinmqtt:{{{name}}}:s", "u")


def renewals(server: RedisServer) -> dict[str, int]:
    """How often each node has renewed its lease."""
    keys = [f"kinmqtt:{{n}}:l:{uid}" for uid in server.ask("hkeys", "kinmqtt:{n}:n").split()]
    return {key: int(server.ask("get", key) or 0) for key in keys}


@pytest.fixture
def server(tmp_path: Path) -> object:
    """A Redis with an append-only file."""
    with redis_server(tmp_path / "redis", "--appendonly", "yes", "--appendfsync", "always") as server:
        yield server


USERS = """
[plugins.auth_file]
password_file = "passwords"
"""


@pytest.mark.parametrize("properties", [Properties(), KEPT])
def test_another_users_client_id_is_refused_at_every_broker(
    tmp_path: Path, server: RedisServer, properties: Properties
) -> None:
    """With 0x85 at the other broker, whether its session is stored or not; the client's connection stays."""
    passwords = "".join(f"{user}:{Pbkdf2.of(b'secret', 10)}\n" for user in ("ann", "bob"))
    with ExitStack() as stack:
        brokers = []
        for name in ("one", "two"):
            file = settings(tmp_path / name, server, CALM + USERS)
            (tmp_path / name / "passwords").write_text(passwords, encoding="utf-8")
            brokers.append(stack.enter_context(running_broker("--config", file, cwd=tmp_path / name)))
        one, two = brokers
        client = stack.enter_context(wire(one.port, version=V5))
        client.connect("pump", clean_start=False, properties=properties, username="ann", password=b"secret")
        client.subscribe("pump", 1)

        for broker in (one, two):
            for clean_start in (True, False):
                with wire(broker.port, version=V5) as thief:
                    connack = thief.connect(
                        "pump", clean_start=clean_start, properties=properties, username="bob", password=b"secret"
                    )
                    assert connack.reason is ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
        client.publish("pump", b"x", 1, packet_id=1)
        assert client.expect(Publish).payload == b"x"
        assert "newer owner" not in one.output

        with wire(two.port, version=V5) as again:
            connack = again.connect(
                "pump", clean_start=False, properties=properties, username="ann", password=b"secret"
            )
            assert connack.reason is ReasonCode.SUCCESS
            assert connack.session_present is (properties is KEPT)


def test_who_starts_takes_nothing_from_who_runs(tmp_path: Path, server: RedisServer) -> None:
    """Clients of the first broker stay connected over further writes, and what waits there goes on collecting."""
    with ExitStack() as stack:
        one = begun(stack, tmp_path / "one", server, CALM)
        leave(one, "offline")
        client = stack.enter_context(wire(one.port, "connected", V5, clean_start=False, properties=KEPT))
        client.subscribe("connected", 1)
        tell(one, "offline", payload=b"before")

        two = begun(stack, tmp_path / "two", server, CALM)
        before = renewals(server)
        wait_until(lambda: _all_above(server, before, 6), "both have renewed their leases for two leases' time")
        for packet_id in range(2, 5):
            client.subscribe(f"more/{packet_id}", 1, packet_id)
            tell(one, "connected")
            client.send(Puback(client.expect(Publish).packet_id))
        tell(one, "offline", payload=b"since")
        client.ping()

        assert hears(one, "offline") == [b"before", b"since"]
        assert counted(RESTORED, two) == counted(ADOPTED, one, two) == 0
        assert "newer owner" not in one.output
        assert "waiting up to" not in two.output


def _all_above(server: RedisServer, before: dict[str, int], more: int) -> bool:
    now = renewals(server)
    return all(now.get(key, 0) >= number + more for key, number in before.items())


def test_who_runs_goes_on_with_what_a_killed_broker_left(tmp_path: Path, server: RedisServer) -> None:
    """Messages for its waiting sessions are there when they come, wills are published once, sessions expire."""
    with ExitStack() as stack:
        one, two = (begun(stack, tmp_path / name, server) for name in ("one", "two"))
        leave(one, "offline")
        leave(one, "short", properties=Properties(session_expiry_interval=1))
        tell(one, "offline", payload=b"before")
        mortal = stack.enter_context(wire(one.port, version=V5))
        mortal.connect("mortal", clean_start=False, properties=KEPT, will=ConnectWill("wills", b"gone"))
        heir = stack.enter_context(wire(two.port, "heir", V5))
        heir.subscribe("wills")

        kill(one)
        wait_until(lambda: counted(ADOPTED, two) >= 2, "the waiting sessions are adopted")
        wait_until(lambda: home(server, "offline") == home(server, "mortal"), "all of them are")
        tell(two, "offline", payload=b"since")

        assert heir.expect(Publish).payload == b"gone"
        assert hears(two, "offline") == [b"before", b"since"]
        wait_until(lambda: server.ask("hexists", "kinmqtt:{short}:s", "j") == "0", "the session expires")
        tell(two, "wills", payload=b"end")
        assert heir.expect(Publish).payload == b"end"


def test_of_two_survivors_each_session_has_one(tmp_path: Path, server: RedisServer) -> None:
    """What one broker leaves behind is shared out among two, and nothing goes to both."""
    names = [f"s{number}" for number in range(40)]
    with ExitStack() as stack:
        one, two, three = (begun(stack, tmp_path / name, server) for name in ("one", "two", "three"))
        leave(one, *names)

        kill(one)
        wait_until(lambda: counted(ADOPTED, two, three) >= len(names), "all are adopted")

        at: dict[str, list[str]] = {}
        for name in names:
            at.setdefault(home(server, name), []).append(name)
        shares = {len(its): its for its in at.values()}
        for broker in (two, three):
            share = counted(ADOPTED, broker)
            if share:
                tell(broker, *shares[share])
        assert counted(ADOPTED, two, three) == len(names)
        assert sum(len(hears(two, name)) for name in names) == len(names)


def test_of_two_that_start_together_each_session_has_one(tmp_path: Path, server: RedisServer) -> None:
    """What was left behind is shared out among those that start at the same time."""
    names = [f"s{number}" for number in range(40)]
    with ExitStack() as stack:
        one = begun(stack, tmp_path / "one", server)
        leave(one, *names)
        kill(one)
        starting = []
        for name in ("two", "three"):
            port = free_port()
            file = settings(tmp_path / name, server, QUICK)
            starting.append(BrokerProcess(broker_command(port, "--config", file), port))
            stack.callback(starting[-1].end)

        for broker in starting:
            broker.wait_for_line(r"listening on ")

        assert counted(RESTORED, *starting) + counted(ADOPTED, *starting) == len(names)
        assert sum(len(hears(starting[0], name)) for name in names) == 0
        for broker in starting:
            broker.stop()


def test_who_stands_still_is_taken_for_gone(tmp_path: Path, server: RedisServer) -> None:
    """When its lease ends another goes on with its sessions; once it goes on itself it gives way."""
    with ExitStack() as stack:
        one, two = (begun(stack, tmp_path / name, server) for name in ("one", "two"))
        leave(one, "offline")
        client = stack.enter_context(wire(one.port, "connected", V5, clean_start=False, properties=KEPT))
        client.subscribe("connected", 1)
        listens = stack.enter_context(wire(one.port, "listens", V5, clean_start=False, properties=KEPT))
        listens.subscribe("listens", 1)

        one.signal(signal.SIGSTOP)
        wait_until(lambda: counted(ADOPTED, two) >= 3, "its sessions are adopted")
        tell(two, "offline", "connected", "listens")
        one.signal(signal.SIGCONT)
        client.send(Subscribe(5, (SubscribeRequest("more", 1),)))

        assert [type(packet) for packet in client.rest() if not isinstance(packet, Suback)] == [DisconnectPacket]
        # Who has nothing to say is told as well.
        assert [type(packet) for packet in listens.rest()] == [DisconnectPacket]
        assert hears(two, "connected") == hears(two, "offline") == hears(two, "listens") == [b"x"]


def test_nobody_is_taken_for_gone_because_redis_was_away(tmp_path: Path, server: RedisServer) -> None:
    """When Redis comes back and all leases have ended with it nobody adopts what a living broker holds."""
    with ExitStack() as stack:
        brokers = [begun(stack, tmp_path / name, server, CALM) for name in ("one", "two")]
        for broker, name in zip(brokers, ("a", "b"), strict=True):
            leave(broker, name)
        homes = home(server, "a"), home(server, "b")
        for broker in brokers:
            broker.signal(signal.SIGSTOP)
        server.ask("del", *renewals(server))
        server.kill()
        server.start()
        gone = renewals(server)
        for broker in brokers:
            broker.signal(signal.SIGCONT)

        wait_until(lambda: all(renewals(server).values()), "both have leases again")
        before = renewals(server)
        wait_until(lambda: _all_above(server, before, 9), "both have renewed their leases for three leases' time")

        assert set(gone.values()) == {0}
        for broker, name in zip(brokers, ("a", "b"), strict=True):
            tell(broker, name)
            assert hears(broker, name) == [b"x"]
        assert (home(server, "a"), home(server, "b")) == homes
        assert counted(ADOPTED, *brokers) == 0


@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_a_broker_starts_at_once_over_what_it_left(tmp_path: Path, server: RedisServer, end: str) -> None:
    """A broker that has ended on the same machine is known to be gone, whatever its lease says."""
    with ExitStack() as stack:
        one = begun(stack, tmp_path / "one", server, "lease_s = 3600\n")
        leave(one, "a", "b")
        if end == "killed":
            kill(one)
        else:
            one.stop()

        again = begun(stack, tmp_path / "one", server, "lease_s = 3600\n")
        tell(again, "a", "b")

        assert counted(RESTORED, again) == 2
        assert "waiting up to" not in again.output
        assert hears(again, "a") == hears(again, "b") == [b"x"]


def test_who_starts_waits_until_it_is_known_who_lives(tmp_path: Path, server: RedisServer) -> None:
    """Of a broker on another machine it is known when its lease has ended; nobody is let in before that."""
    with ExitStack() as stack:
        one = begun(stack, tmp_path / "one", server)
        leave(one, "a")
        kill(one)
        server.ask("hset", "kinmqtt:{n}:n", home(server, "a"), '["another machine",7,"1"]')

        again = begun(stack, tmp_path / "one", server)
        tell(again, "a")

        assert "waiting up to" in again.output
        assert counted(RESTORED, again) == 1
        assert hears(again, "a") == [b"x"]


def test_who_was_imported_is_adopted_by_who_runs_first(tmp_path: Path, server: RedisServer) -> None:
    """What nobody has ever claimed is held by whoever starts first."""

    with running_broker("--data", str(tmp_path / "data")) as before:
        leave(before, "a", "b")
    export = run_command("store", "export", str(tmp_path / "data")).stdout
    imported = run_command("redis", "import", "-c", settings(tmp_path / "one", server, CALM), input=export)
    assert imported.returncode == 0, imported.stderr

    with ExitStack() as stack:
        one, two = (begun(stack, tmp_path / name, server) for name in ("one", "two"))
        tell(one, "a", "b")

        assert (counted(RESTORED, one), counted(RESTORED, two)) == (2, 0)
        assert hears(one, "a") == hears(one, "b") == [b"x"]


def test_delayed_messages_of_others_are_left_alone(tmp_path: Path, server: RedisServer) -> None:
    """A broker that starts publishes none that a living one holds."""
    with ExitStack() as stack:
        one = begun(stack, tmp_path / "one", server, CALM)
        # It listens before anything is due: the start of a broker may take longer than the delays.
        here = stack.enter_context(wire(one.port, "here", V5))
        here.subscribe("t", 0)
        with wire(one.port, "publisher", V5) as publisher:
            for seconds in (3, 4):
                publisher.publish(f"$delayed/{seconds}/t", b"%d" % seconds, 1, packet_id=seconds)
                assert publisher.expect(Puback).reason is ReasonCode.SUCCESS
        two = begun(stack, tmp_path / "two", server, CALM)
        with wire(two.port, "there", V5) as there:
            there.subscribe("t", 0)
            heard = [here.expect(Publish).payload for _ in range(2)]
            there.publish("t", b"end")
            elsewhere = there.expect(Publish).payload

    assert heard == [b"3", b"4"]
    assert elsewhere == b"end"
