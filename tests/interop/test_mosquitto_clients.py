"""mosquitto_pub and mosquitto_sub against a running broker, in MQTT 3.1, 3.1.1 and 5."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest

from core_harness.brokers import BrokerProcess, run_command
from spi_harness.processes import Process, needed

pytestmark = pytest.mark.interop

VERSIONS = ["mqttv31", "mqttv311", "mqttv5"]
each_version = pytest.mark.parametrize("version", VERSIONS)


@pytest.fixture
def topic() -> str:
    """A topic of the test's own, for all tests of the module share a broker."""
    return f"mosquitto/{uuid4().hex[:8]}"


def publish(broker: BrokerProcess, version: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run mosquitto_pub, which ends when its message is acknowledged."""
    program = needed("mosquitto_pub", "mosquitto-clients")
    done = run_command("-h", "127.0.0.1", "-p", str(broker.port), "-V", version, *arguments, program=[program])
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def subscribe_command(broker: BrokerProcess, version: str, *arguments: str) -> list[str]:
    """The mosquitto_sub command; it ends by itself where it waits for what does not come."""
    program = needed("mosquitto_sub", "mosquitto-clients")
    return [program, "-h", "127.0.0.1", "-p", str(broker.port), "-V", version, "-W", "20", *arguments]


@contextmanager
def subscriber(broker: BrokerProcess, version: str, *arguments: str) -> Iterator[Process]:
    """mosquitto_sub beside the test, once it has its subscriptions."""
    process = Process(["stdbuf", "-oL", *subscribe_command(broker, version, "-d", *arguments)])
    try:
        process.wait_for_line(r"^Subscribed \(mid: ")
        yield process
    finally:
        process.end()


FORMAT = ("-F", "message %t %p %q %r")


@each_version
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_a_message_arrives(broker: BrokerProcess, topic: str, version: str, qos: str) -> None:
    """A message is delivered with the QoS it was sent with."""
    with subscriber(broker, version, "-t", f"{topic}/+", "-q", "2", *FORMAT) as sub:
        publish(broker, version, "-t", f"{topic}/a", "-m", "hello", "-q", qos)

        assert sub.wait_for_line("^message") == [f"message {topic}/a hello {qos} 0"]


@each_version
def test_a_retained_message(broker: BrokerProcess, topic: str, version: str) -> None:
    """The last retained message comes to whoever subscribes later, and an empty one takes it away."""
    publish(broker, version, "-t", topic, "-m", "old", "-r")
    publish(broker, version, "-t", topic, "-m", "kept", "-r", "-q", "1")
    with subscriber(broker, version, "-t", topic, "-q", "1", *FORMAT) as sub:
        assert sub.wait_for_line("^message") == [f"message {topic} kept 1 1"]

    publish(broker, version, "-t", topic, "-n", "-r", "-q", "1")

    with subscriber(broker, version, "-t", topic, *FORMAT) as sub:
        publish(broker, version, "-t", topic, "-m", "live", "-q", "1")
        assert sub.wait_for_line("^message") == [f"message {topic} live 0 0"]


@each_version
def test_the_will_of_a_killed_client(broker: BrokerProcess, topic: str, version: str) -> None:
    """The will of a client that was killed is published, retained if it asks for that."""
    will = ["--will-topic", f"{topic}/will", "--will-payload", "gone", "--will-qos", "1", "--will-retain"]
    with subscriber(broker, version, "-t", f"{topic}/will", "-q", "1", *FORMAT) as watcher:
        with subscriber(broker, version, "-t", f"{topic}/x", *will) as killed:
            killed.signal(signal.SIGKILL)

            assert watcher.wait_for_line("^message") == [f"message {topic}/will gone 1 0"]

    with subscriber(broker, version, "-t", f"{topic}/will", "-q", "1", *FORMAT) as late:
        assert late.wait_for_line("^message") == [f"message {topic}/will gone 1 1"]
    publish(broker, version, "-t", f"{topic}/will", "-n", "-r")


@each_version
@pytest.mark.parametrize("qos", ["1", "2"])
def test_what_was_published_while_a_client_was_away(
    broker: BrokerProcess, topic: str, version: str, qos: str
) -> None:
    """A kept session gets what came while its client was away, in order and complete."""
    name = f"m{topic[-8:]}"
    kept = ["-i", name, "-c", *(["-x", "600"] if version == "mqttv5" else []), "-t", topic, "-q", qos]
    done = run_command(program=subscribe_command(broker, version, *kept, "-E"))
    assert done.returncode == 0, done.stderr

    for number in range(12):
        publish(broker, version, "-t", topic, "-m", str(number), "-q", qos)

    done = run_command(program=subscribe_command(broker, version, *kept, "-C", "12", "-F", "%p %q"))
    assert done.stdout.splitlines() == [f"{number} {qos}" for number in range(12)]


@each_version
def test_a_shared_subscription(broker: BrokerProcess, topic: str, version: str) -> None:
    """Of two clients that share a subscription each gets a part of the messages, and together they get each once."""
    shared = ["-t", f"$share/team/{topic}", "-q", "1", "-F", "message %p"]
    lines = "\n".join(str(number) for number in range(40))
    with subscriber(broker, version, *shared) as first, subscriber(broker, version, *shared) as second:
        program = needed("mosquitto_pub", "mosquitto-clients")
        command = [program, "-p", str(broker.port), "-V", version, "-t", topic, "-q", "1", "-l"]
        subprocess.run(command, input=lines + "\n", text=True, check=True, timeout=30)
        publish(broker, version, "-t", topic, "-m", "last", "-q", "1")
        publish(broker, version, "-t", topic, "-m", "last", "-q", "1")

        parts = [part.wait_for_line("^message last") and messages(part) for part in (first, second)]

    assert all(parts)
    assert sorted(int(word) for part in parts for word in part) == list(range(40))


def messages(process: Process) -> list[str]:
    """What a subscriber has got so far, but for the last."""
    payloads = [line.removeprefix("message ") for line in process.lines if line.startswith("message ")]
    return [payload for payload in payloads if payload != "last"]


# MQTT 5 alone


def test_properties_of_a_message(broker: BrokerProcess, topic: str) -> None:
    """User properties, content type, response topic and correlation data come through as they were."""
    format = "message %p %C %R %D %P"
    with subscriber(broker, "mqttv5", "-t", topic, "-F", format) as sub:
        properties = [("user-property", "colour", "red"), ("content-type", "text/plain")]
        properties += [("response-topic", "answers"), ("correlation-data", "42")]
        options = [word for words in properties for word in ("-D", "publish", *words)]
        publish(broker, "mqttv5", "-t", topic, "-m", "x", *options)

        assert sub.wait_for_line("^message") == ["message x text/plain answers 42 colour:red"]


def test_a_subscription_identifier(broker: BrokerProcess, topic: str) -> None:
    """A message names the subscription it comes for."""
    identifier = ["-D", "subscribe", "subscription-identifier", "268435455"]
    with subscriber(broker, "mqttv5", "-t", f"{topic}/#", *identifier, "-F", "message %p %S") as sub:
        publish(broker, "mqttv5", "-t", f"{topic}/a", "-m", "x")

        assert sub.wait_for_line("^message") == ["message x 268435455"]


def test_topic_aliases(broker: BrokerProcess, topic: str) -> None:
    """A publisher may say a topic once and its alias from then on."""
    with subscriber(broker, "mqttv5", "-t", topic, "-q", "1", *FORMAT) as sub:
        alias = ["-D", "publish", "topic-alias", "5"]
        publish(broker, "mqttv5", "-t", topic, "-m", "x", "-q", "1", "--repeat", "3", *alias)

        assert sub.wait_for_line("^message", count=3) == [f"message {topic} x 1 0"] * 3


def test_a_session_that_has_expired(broker: BrokerProcess, topic: str) -> None:
    """Without a session expiry interval a session ends with its connection."""
    kept = ["-i", f"m{topic[-8:]}", "-c", "-x", "0", "-t", topic, "-q", "1"]
    run_command(program=subscribe_command(broker, "mqttv5", *kept, "-E"))
    publish(broker, "mqttv5", "-t", topic, "-m", "missed", "-q", "1")

    with subscriber(broker, "mqttv5", *kept, *FORMAT) as sub:
        publish(broker, "mqttv5", "-t", topic, "-m", "live", "-q", "1")
        assert sub.wait_for_line("^message") == [f"message {topic} live 1 0"]


def test_a_publisher_hears_why_it_is_refused(broker: BrokerProcess) -> None:
    """A client that may not publish to a topic is told the reason."""
    done = publish(broker, "mqttv5", "-t", "$SYS/broker/mine", "-m", "x", "-q", "1")

    assert "Not authorized" in done.stdout + done.stderr


def test_retain_as_published(broker: BrokerProcess, topic: str) -> None:
    """The subscription option that keeps the retain flag is respected."""
    with subscriber(broker, "mqttv5", "-t", topic, "--retain-as-published", *FORMAT) as sub:
        publish(broker, "mqttv5", "-t", topic, "-m", "x", "-r")

        assert sub.wait_for_line("^message") == [f"message {topic} x 0 1"]
    publish(broker, "mqttv5", "-t", topic, "-n", "-r")


def test_a_message_that_expires(broker: BrokerProcess, topic: str) -> None:
    """A message that waited comes with what is left of its life."""
    kept = ["-i", f"m{topic[-8:]}", "-c", "-x", "600", "-t", topic, "-q", "1"]
    run_command(program=subscribe_command(broker, "mqttv5", *kept, "-E"))
    publish(broker, "mqttv5", "-t", topic, "-m", "x", "-q", "1", "-D", "publish", "message-expiry-interval", "1000")

    done = run_command(program=subscribe_command(broker, "mqttv5", *kept, "-C", "1", "-F", "%E"))

    assert 900 < int(done.stdout) <= 1000
