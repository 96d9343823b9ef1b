"""The plugin sentinel_limiter through whole brokers: what clients are answered, and what an operator is told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from core_harness.brokers import BrokerProcess, run_command, running_broker
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import V5, V311, DisconnectPacket, Puback, Publish, Subscribe, SubscribeRequest
from kinmqtt.testing import BrokerHarness, HarnessClient
from kinmqtt_sentinel_limiter import SentinelLimiter
from kinmqtt_spi import ALLOW, ReasonCode, hookimpl
from kinmqtt_spi.services.authorization import AuthorizationRequest
from root_harness.smallclient import SmallClient
from spi_harness.processes import wait_until

OK, QUOTA = ReasonCode.SUCCESS, ReasonCode.QUOTA_EXCEEDED
EACH_VERSION = pytest.mark.parametrize(("version", "told"), [(V5, QUOTA), (V311, OK)], ids=["5", "3.1.1"])


class Machine:
    """A machine whose load a test sets."""

    def __init__(self) -> None:
        self.load = 0.0

    def cpu(self) -> float:
        """The share of all processors in use."""
        return self.load

    process_cpu = memory = process_memory = cpu


class Scene(BrokerHarness):
    """A broker with these rules, as they stand in a rules file."""

    def __init__(self, rules: str, machine: Machine | None = None, **options: Any) -> None:
        plugins = {"sentinel_limiter": SentinelLimiter(machine or Machine()), **options.pop("plugins", {})}
        config = rules.replace("[[", "[[plugins.sentinel_limiter.")
        super().__init__(plugins=plugins, config=config, sys_interval_s=1, **options)

    def listener(self) -> HarnessClient:
        """A client that hears everything."""
        return self.connect("listener").subscribe("#", 2)

    def counted(self, name: str) -> float:
        """A metric of the limiter."""
        return self.assembly.metrics.sum(f"limiter.{name}")


def acks(client: HarnessClient) -> list[int]:
    """How its QoS 1 messages were answered."""
    return [int(ack.reason) for ack in client.of(Puback)]


def heard(client: HarnessClient) -> list[str]:
    """The topics of what it received, the broker's own left out."""
    return [topic for topic, _, _ in client.messages if not topic.startswith("$")]


def burst(client: HarnessClient, *topics: str, qos: int = 1) -> HarnessClient:
    """Publish all of them in one read."""
    ids = [next(client.packet_ids) if qos else 0 for _ in topics]
    packets = [
        Publish.build(topic, b"x", qos=qos, packet_id=number) for topic, number in zip(topics, ids, strict=True)
    ]
    return client.send_bytes(b"".join(encode(packet, client.version) for packet in packets))


# Rates


@EACH_VERSION
def test_what_is_above_the_rate_is_refused(version: int, told: ReasonCode) -> None:
    """MQTT 5 is told 0x97, 3.1.1 gets an acknowledgement, and nobody gets it; a second later it goes on."""
    scene = Scene('[[flow]]\nname = "r"\ncount = 3\nclient = "pub"\n')
    sub, pub = scene.listener(), scene.connect("pub", version)

    for _ in range(5):
        pub.publish("a", qos=1)
    scene.advance(1)
    pub.publish("later", qos=1)

    assert acks(pub) == [OK, OK, OK, told, told, OK]
    assert heard(sub) == ["a", "a", "a", "later"]
    assert not pub.closed
    assert (scene.counted("passed"), scene.counted("blocked")) == (4, 2)


def test_each_client_has_its_own_rate() -> None:
    """One that is refused does not matter to another."""
    scene = Scene('[[flow]]\nname = "r"\ncount = 1\n')
    first, other = scene.connect("a", V5), scene.connect("b", V5)

    for client in (first, first, other, other):
        client.publish("x", qos=1)

    assert acks(first) == acks(other) == [ReasonCode.NO_MATCHING_SUBSCRIBERS, QUOTA]


def test_a_read_that_is_too_large_is_owed() -> None:
    """It passes as a whole, and what it took is paid back by those who come after."""
    scene = Scene('[[flow]]\nname = "r"\ncount = 2\nclient = "pub"\n')
    sub, pub = scene.listener(), scene.connect("pub", V5)

    burst(pub, *"abcdef")
    for _ in range(3):
        scene.advance(1)
        pub.publish("x", qos=1)

    assert acks(pub) == [OK] * 6 + [QUOTA, QUOTA, OK]
    assert heard(sub) == [*"abcdef", "x"]


def test_drop_forgets_and_acknowledges() -> None:
    """A QoS 1 message is answered as if all were well, and nobody gets it."""
    scene = Scene('[[flow]]\nname = "r"\ncount = 1\nverdict = "drop"\nclient = "pub"\n')
    sub, pub = scene.listener(), scene.connect("pub", V5)

    pub.publish("a", qos=1).publish("b", qos=1)

    assert acks(pub) == [OK, OK]
    assert heard(sub) == ["a"]


def test_disconnect_closes_with_the_reason() -> None:
    """The client is told why."""
    rule = 'verdict = "disconnect"\nreason = "message_rate_too_high"\nclient = "pub"\n'
    scene = Scene(f'[[flow]]\nname = "r"\ncount = 1\n{rule}')
    sub, pub = scene.listener(), scene.connect("pub", V5)

    pub.publish("a", qos=1).publish("b", qos=1)

    assert [packet.reason for packet in pub.of(DisconnectPacket)] == [ReasonCode.MESSAGE_RATE_TOO_HIGH]
    assert pub.closed
    assert heard(sub) == ["a"]


@pytest.mark.parametrize("behaviour", ["reject", "pace"])
def test_delay_pauses_reading(behaviour: str) -> None:
    """What was read is carried out, and nothing more is read until that is paid for."""
    rule = f'behaviour = "{behaviour}"\nverdict = "delay"\nclient = "pub"\n'
    scene = Scene(f'[[flow]]\nname = "r"\ncount = 2\n{rule}')
    sub, pub = scene.listener(), scene.connect("pub", V5)

    burst(pub, *"abcdefg")
    states = []
    for _ in range(4):
        states.append(pub.link.reading)
        scene.advance(1)

    assert acks(pub) == [OK] * 7
    assert heard(sub) == [*"abcdefg"]
    assert states == [False, False, False, True]
    assert scene.counted("blocked") == 0


def test_a_subscribe_above_the_rate_is_refused() -> None:
    """Each of its filters with the reason code."""
    scene = Scene('[[flow]]\nname = "r"\nkind = "subscribe"\ncount = 1\n')
    client = scene.connect("c", V5)

    client.subscribe("a").subscribe("b")

    assert client.granted == [QUOTA]
    assert scene.broker.router.index.count() == 1


def test_a_connect_above_the_rate_is_refused() -> None:
    """With the reason that the rule names, and in the words of 3.1.1."""
    rule = 'kind = "connect"\nper = "address"\ncount = 1\nreason = "connection_rate_exceeded"\n'
    scene = Scene(f'[[flow]]\nname = "r"\n{rule}')

    clients = [scene.connect("a", V5), scene.connect("b", V5), scene.connect("c", V311)]
    elsewhere = scene.connect("d", V5, host="192.0.2.2")

    told = [client.connack.reason for client in (*clients, elsewhere)]
    assert told == [OK, ReasonCode.CONNECTION_RATE_EXCEEDED, ReasonCode.SERVER_UNAVAILABLE, OK]


# How much at once


@pytest.mark.parametrize("end", ["disconnect", "drop"])
def test_connections_of_an_address_are_counted_while_they_are_open(end: str) -> None:
    """One too many is closed; one that ends in whatever way makes room."""
    scene = Scene('[[flow]]\nname = "r"\nkind = "connection"\ngrade = "concurrency"\nper = "address"\ncount = 2\n')
    first, _ = scene.connect("a"), scene.connect("b")

    refused, elsewhere = scene.open(), scene.connect("c", host="192.0.2.2")
    getattr(first, end)()
    again, too_many = scene.connect("d"), scene.open()

    assert [each.closed for each in (refused, elsewhere, again, too_many)] == [True, False, False, True]


CLIENTS = '[[flow]]\nname = "r"\nkind = "connect"\ngrade = "concurrency"\nper = "{per}"\ncount = {count}\n'


@pytest.mark.parametrize("end", ["disconnect", "drop"])
def test_clients_of_a_user_are_counted_while_they_are_connected(end: str) -> None:
    """By the user name that they give, until the connection is gone."""
    scene = Scene(CLIENTS.format(per="username", count=2))
    first, _ = scene.connect("a", V5, username="u"), scene.connect("b", V5, username="u")

    refused, other = scene.connect("c", V5, username="u"), scene.connect("d", V5, username="v")
    getattr(first, end)()
    again, too_many = scene.connect("e", V5, username="u"), scene.connect("f", V5, username="u")

    assert [each.connack.reason for each in (refused, other, again, too_many)] == [QUOTA, OK, OK, QUOTA]


@pytest.mark.parametrize("lingers", [False, True])
@pytest.mark.parametrize("per", ["client", "username", "all"])
def test_a_takeover_locks_nobody_out(per: str, lingers: bool) -> None:
    """A client that comes again takes its own place, also while the network still holds its old connection."""
    scene = Scene(CLIENTS.format(per=per, count=1))
    old = scene.connect("a", V5, username="u")
    old.link.lingers = lingers

    new = scene.connect("a", V5, username="u")
    newest = scene.connect("a", V5, username="u")
    other = scene.connect("b", V5, username="u")
    old.drop()
    still_other = scene.connect("b", V5, username="u")
    newest.disconnect()
    at_last = scene.connect("c", V5, username="u")

    assert [each.connack.reason for each in (old, new, newest, at_last)] == [OK] * 4
    assert (old.closed, new.closed) == (True, True)
    wanted = OK if per == "client" else QUOTA
    assert [each.connack.reason for each in (other, still_other)] == [wanted] * 2


class SlowAuthorizer:
    """Answers when the test says so."""

    def __init__(self) -> None:
        self.pending: list[Deferred[Any]] = []

    @hookimpl
    def authorize(self, request: AuthorizationRequest) -> Any:
        """Wait, but for the listener."""
        if request.client.client_id == "listener":
            return ALLOW
        self.pending.append(Deferred())
        return self.pending[-1]

    def answer(self, scene: Scene) -> None:
        """Allow what was asked first."""
        self.pending.pop(0).callback(ALLOW)
        scene.settle()


def test_publishes_in_hand_are_counted() -> None:
    """While an authorizer thinks, so many of all clients wait for it and no more; a lost connection gives back."""
    slow = SlowAuthorizer()
    rule = '[[flow]]\nname = "r"\ngrade = "concurrency"\nper = "all"\ncount = 2\n'
    scene = Scene(rule, plugins={"slow": slow})
    sub = scene.listener()
    a, b, c, d = (scene.connect(name, V5) for name in "abcd")

    for client, topic in ((a, "a"), (b, "b"), (c, "c")):
        client.publish(topic, qos=1)
    slow.answer(scene)
    b.drop()
    c.publish("again", qos=1)
    d.publish("d", qos=1)
    a.publish("too many", qos=1)
    while slow.pending:
        slow.answer(scene)

    assert [acks(client) for client in (a, c, d)] == [[OK, QUOTA], [QUOTA, OK], [OK]]
    assert heard(sub) == ["a", "again", "d"]


def test_filters_in_hand_are_counted() -> None:
    """The filters of a SUBSCRIBE until it is answered."""
    slow = SlowAuthorizer()
    rule = '[[flow]]\nname = "r"\nkind = "subscribe"\ngrade = "concurrency"\nper = "all"\ncount = 2\n'
    scene = Scene(rule, plugins={"slow": slow})
    a, b = scene.connect("a", V5), scene.connect("b", V5)

    a.send(Subscribe(1, (SubscribeRequest("x"), SubscribeRequest("y"))))
    b.subscribe("x")
    refused = b.granted
    slow.answer(scene)
    slow.answer(scene)
    b.subscribe("x")
    slow.answer(scene)

    assert (a.granted, refused, b.granted) == ([0, 0], [QUOTA], [0])


# Circuit breakers


class Directory:
    """An authenticator that takes its time by the clock, or fails."""

    def __init__(self) -> None:
        self.takes_s = 0.0
        self.error: Exception | None = None
        self.calls = 0

    @hookimpl
    def configure(self, context: Any) -> None:
        """Take the clock."""
        self.clock = context.clock

    @hookimpl
    def authenticate(self) -> Any:
        """Let everybody in, in a while."""
        self.calls += 1
        if self.error is not None:
            raise self.error
        answer: Deferred[Any] = Deferred()
        self.clock.later(self.takes_s, lambda: answer.callback(ALLOW))
        return answer


SLOW = """
[[degrade]]
name = "slow"
plugin = "directory"
strategy = "slow_ratio"
slow_call_ms = 200
ratio = 0.5
min_request_amount = 3
stat_interval_s = 10
open_s = 5
"""
FAILING = SLOW.replace('"slow_ratio"\nslow_call_ms = 200', '"error_ratio"')


def _connected(scene: Scene, names: str, wait_s: float = 1.0) -> list[int]:
    """How CONNECTs are answered that come all at once, once some time has gone by."""
    clients = [scene.connect(name, V5) for name in names]
    scene.advance(wait_s)
    return [int(client.connack.reason) for client in clients]


def test_a_slow_authenticator_is_cut_off_and_tried_again() -> None:
    """Closed, open, a probe that is slow, open again, a probe that is well, closed."""
    directory = Directory()
    scene = Scene(SLOW, plugins={"directory": directory})
    quick = _connected(scene, "abc")
    directory.takes_s = 0.5
    slow = _connected(scene, "defg")
    calls = directory.calls

    at_once = [int(scene.connect(name, V5).connack.reason) for name in "hi"]
    assert (quick, slow) == ([OK] * 3, [OK] * 4)
    assert at_once == [ReasonCode.SERVER_UNAVAILABLE] * 2
    assert directory.calls == calls == 7

    scene.advance(5)
    [probed, refused] = _connected(scene, "jk")
    assert (probed, refused, directory.calls) == (OK, ReasonCode.SERVER_UNAVAILABLE, calls + 1)
    assert _connected(scene, "l") == [ReasonCode.SERVER_UNAVAILABLE]

    directory.takes_s = 0.0
    scene.advance(5)
    assert _connected(scene, "mno") == [OK] * 3
    assert scene.counted("blocked") == 4


def test_a_failing_authenticator_is_cut_off() -> None:
    """It is not called any more, so that its error is not the client's to wait for; then it is well again."""
    directory = Directory()
    scene = Scene(FAILING, plugins={"directory": directory})
    directory.error = ConnectionError("the directory is out of reach")

    refused = _connected(scene, "abcdef", 0)
    calls = directory.calls
    directory.error = None
    scene.advance(5)

    assert all(reason >= 0x80 for reason in refused)
    assert refused[3:] == [ReasonCode.SERVER_UNAVAILABLE] * 3
    assert calls == 3
    assert _connected(scene, "ghi") == [OK] * 3


def test_a_breaker_in_the_shadow_stops_no_call() -> None:
    """It counts what it would have stopped."""
    directory = Directory()
    scene = Scene(f"{SLOW}shadow = true\n", plugins={"directory": directory})
    directory.takes_s = 0.5

    _connected(scene, "abc")

    assert _connected(scene, "de") == [OK] * 2
    assert scene.counted("shadow_blocked") == 2
    assert directory.calls == 5


# Load


def test_a_loaded_broker_lets_nobody_new_in() -> None:
    """While the load is above the threshold: CONNECT and PUBLISH are refused, SUBSCRIBE is not."""
    machine = Machine()
    scene = Scene('[[system]]\nname = "cpu"\nmetric = "cpu"\nthreshold = 0.9\nreason = "server_busy"\n', machine)
    client = scene.connect("a", V5)
    machine.load = 0.95
    scene.advance(1)
    client.publish("x", qos=1).subscribe("y")
    refused = scene.connect("b", V5)
    machine.load = 0.5
    scene.advance(1)
    client.publish("y", qos=1)

    assert refused.connack.reason is ReasonCode.SERVER_BUSY
    assert client.granted == [0]
    assert acks(client)[0] >= 0x80
    assert acks(client)[1] == OK
    assert scene.connect("b", V5).connack.reason is OK


def test_a_rate_of_all_clients_together() -> None:
    """While it is used up nobody new is let in, either."""
    scene = Scene('[[system]]\nname = "all"\nmetric = "publish_rate"\nthreshold = 3\n')
    a, b = scene.connect("a", V5), scene.connect("b", V5)

    for client in (a, b, a, b):
        client.publish("x", qos=1)
    refused = scene.connect("c", V5)
    scene.advance(1)

    assert [acks(a)[1], acks(b)[1]] == [ReasonCode.NO_MATCHING_SUBSCRIBERS, QUOTA]
    assert refused.connack.reason is QUOTA
    assert scene.connect("c", V5).connack.reason is OK


# Hot topics


def test_hot_topics_are_limited_one_by_one() -> None:
    """Whoever publishes to it; of one read some pass and some do not, and a topic may have a count of its own."""
    scene = Scene('[[param]]\nname = "hot"\nparam = "topic"\ncount = 2\nitems = {"alarm" = 100}\n')
    sub = scene.listener()
    a, b = scene.connect("a", V5), scene.connect("b", V5)

    burst(a, "hot", "cool", "hot", "hot", "alarm", "alarm", "alarm")
    burst(b, "hot", "cool", "cold")

    assert acks(a) == [OK, OK, OK, QUOTA, OK, OK, OK]
    assert acks(b) == [QUOTA, OK, OK]
    assert heard(sub) == ["hot", "cool", "hot", "alarm", "alarm", "alarm", "cool", "cold"]


# What it tells


def test_rules_in_the_shadow_refuse_nothing() -> None:
    """They count; others beside them act."""
    rules = '[[flow]]\nname = "trial"\ncount = 1\nshadow = true\nclient = "pub"\nverdict = "disconnect"\n'
    scene = Scene(rules + '[[flow]]\nname = "real"\ncount = 3\nclient = "pub"\n')
    sub, pub = scene.listener(), scene.connect("pub", V5)

    for _ in range(4):
        pub.publish("a", qos=1)

    assert acks(pub) == [OK, OK, OK, QUOTA]
    assert len(heard(sub)) == 3
    assert (scene.counted("shadow_blocked"), scene.counted("blocked")) == (3, 1)


def test_a_subscriber_sees_what_is_refused() -> None:
    """Below $SYS/sentinel_limiter, each as text."""
    scene = Scene('[[flow]]\nname = "r"\ncount = 2\nclient = "pub"\n' + SLOW)
    watcher = scene.connect("watcher").subscribe("$SYS/sentinel_limiter/#")
    pub = scene.connect("pub", V5)

    for _ in range(5):
        pub.publish("a", qos=1)
    scene.advance(2)

    told = {topic.removeprefix("$SYS/sentinel_limiter/"): payload.decode() for topic, payload, _ in watcher.messages}
    assert told == {
        "rules": "2",
        "passed": "2",
        "blocked": "3",
        "shadow_blocked": "0",
        "delayed": "0",
        "calls_refused": "0",
        "breakers_open": "0",
        "system_rules_shut": "0",
        "lag_ms": "0.0",
    }


# A broker that runs


RULE = '[[flow]]\nname = "publish"\nclient = "c"\ncount = {count}\n'


@contextmanager
def running(folder: Path, rules: str) -> Iterator[BrokerProcess]:
    """A broker with this rules file, which it looks at all the time."""
    (folder / "limits.toml").write_text(rules, encoding="utf-8")
    settings = folder / "kinmqtt.toml"
    settings.write_text('[plugins.sentinel_limiter]\nrules = "limits.toml"\nwatch_s = 0.05\n', encoding="utf-8")
    with running_broker("-c", str(settings), cwd=folder) as broker:
        yield broker


def put(folder: Path, rules: str) -> None:
    """Change the rules file in one step."""
    new = folder / "limits.new"
    new.write_text(rules, encoding="utf-8")
    new.replace(folder / "limits.toml")


def test_a_changed_file_is_taken_while_the_broker_runs(tmp_path: Path) -> None:
    """New rules hold for who is connected; a broken file keeps the old ones, says so once, and can be mended."""
    with running(tmp_path, RULE.format(count=0.001)) as broker, SmallClient(broker.port, "c") as client:
        first = [client.publish("a", b"x") for _ in range(3)]
        put(tmp_path, RULE.format(count=1000))
        broker.wait_for_line("loaded 1 rules from limits.toml")
        wider = [client.publish("a", b"x") for _ in range(3)]
        put(tmp_path, RULE.format(count=-1) + "bogus = 1\n")
        [told] = broker.wait_for_line("the old rules stay in force")
        kept = [client.publish("a", b"x") for _ in range(3)]
        put(tmp_path, RULE.format(count=0.002))
        broker.wait_for_line("loaded 1 rules from limits.toml", count=2)
        mended = [client.publish("a", b"x") for _ in range(2)]

    nobody = ReasonCode.NO_MATCHING_SUBSCRIBERS
    assert first == [nobody, QUOTA, QUOTA]
    assert wider == kept == [nobody] * 3
    assert mended == [nobody, QUOTA]
    assert "limits.toml:4:9: flow[0].count: expected a number not below 0.001, got -1" in told
    assert "limits.toml:5:1: flow[0].bogus: unknown key" in told
    assert len([line for line in broker.lines if "stay in force" in line]) == 1


def test_the_values_of_a_running_broker_are_published(tmp_path: Path) -> None:
    """A real subscriber is told how many were refused."""
    with running(tmp_path, RULE.format(count=0.001)) as broker:
        with SmallClient(broker.port, "c") as client, SmallClient(broker.port, "watcher") as watcher:
            watcher.subscribe("$SYS/sentinel_limiter/blocked")
            for _ in range(4):
                client.publish("a", b"x")
            wait_until(lambda: ("$SYS/sentinel_limiter/blocked", b"3") in watcher.received(), "three were refused")


def test_check_tells_what_is_wrong_with_the_rules(tmp_path: Path) -> None:
    """Where it is, which key, what is expected, and what was perhaps meant."""
    rules = (
        '[[flow]]\nname = "a"\ncont = 5\n\n'
        '[[flow]]\nname = "b"\ncount = 5\nbehaviour = "pacing"\n\n'
        '[[degrade]]\nname = "c"\nstrategy = "slow_ratio"\nratio = 0.5\n'
    )
    (tmp_path / "limits.toml").write_text(rules, encoding="utf-8")
    (tmp_path / "kinmqtt.toml").write_text('[plugins.sentinel_limiter]\nrules = "limits.toml"\n', encoding="utf-8")

    done = run_command("check", "-c", "kinmqtt.toml", cwd=tmp_path)

    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "kinmqtt: limits.toml:1: flow[0].count: required key is missing (a number not below 0.001)",
        "kinmqtt: limits.toml:3:1: flow[0].cont: unknown key; did you mean 'count'?",
        'kinmqtt: limits.toml:8:13: flow[1].behaviour: expected one of "reject", "warm_up", "pace", "warm_up_pace", '
        'got the string "pacing"; did you mean "pace"?',
        "kinmqtt: limits.toml:10:3: degrade[0]: slow_ratio needs slow_call_ms",
    ]


def test_check_tells_of_two_rules_with_one_name(tmp_path: Path) -> None:
    """Also where one stands in the settings and the other in the file."""
    (tmp_path / "limits.toml").write_text(RULE.format(count=1), encoding="utf-8")
    section = '[plugins.sentinel_limiter]\nrules = "limits.toml"\n[[plugins.sentinel_limiter.flow]]\n'
    (tmp_path / "kinmqtt.toml").write_text(f'{section}name = "publish"\ncount = 1\n', encoding="utf-8")

    done = run_command("check", "-c", "kinmqtt.toml", cwd=tmp_path)

    assert done.returncode == 1
    assert done.stderr.splitlines() == ['kinmqtt: limits.toml:2:8: flow[0].name: another rule is called "publish"']
