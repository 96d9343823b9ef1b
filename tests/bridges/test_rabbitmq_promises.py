"""What holds for a broker with a sink and a source in a real RabbitMQ: the rows of docs/bridge.md.

The kills of B1 to B3 are in test_rabbitmq.py, B11 is in the plugin's test_source.py. The broker itself keeps B12, B14
and B15 for all sinks: tests/cluster/test_outboxes.py, and test_taps.py and test_outboxes.py of core.
"""

from __future__ import annotations

import signal
import socket
from itertools import count
from pathlib import Path

import pytest

from core_harness.brokers import BrokerProcess
from core_harness.wire import Wire, wire
from kinmqtt.mqtt.packets import V5, Puback, Publish
from kinmqtt_spi.properties import Properties
from root_harness.bridge_promises import Bridged
from root_harness.rabbitmq import RabbitMQ
from spi_harness.processes import wait_until

_numbers = count()


@pytest.fixture
def name() -> str:
    """The name of an exchange and of a queue, which are not there yet."""
    return f"promise-{next(_numbers)}"


@pytest.fixture
def bridged(rabbitmq: RabbitMQ, name: str, tmp_path: Path) -> Bridged:
    """A broker with a sink to the exchange, whose queue has what comes."""
    come: list[bytes] = []

    def taken() -> list[bytes]:
        come.extend(each.body for each in rabbitmq.take(name))
        return come

    return Bridged(tmp_path, "bridge_rabbitmq", connection(rabbitmq.address) + sink(name), taken)


def connection(address: str, name: str = "main", more: str = "") -> str:
    """The settings of a connection."""
    return f'[plugins.bridge_rabbitmq.connections.{name}]\nservers = ["{address}"]\ntimeout_s = 2\n{more}'


def sink(exchange: str, name: str = "out", to: str = "main") -> str:
    """The settings of a sink."""
    return (
        f'[plugins.bridge_rabbitmq.sinks.{name}]\nconnection = "{to}"\nfilters = ["to/#"]\nexchange = "{exchange}"\n'
    )


def source(queue: str, more: str = "") -> str:
    """The settings of a source."""
    return (
        f'[plugins.bridge_rabbitmq.sources.in]\nconnection = "main"\nqueues = ["{queue}"]\n{more}'
        'publish = { topic = "from/it", qos = 1 }\n'
    )


def received(client: Wire) -> bytes:
    """The payload of the next message, which is acknowledged."""
    packet = client.expect(Publish)
    client.send(Puback(packet.packet_id))
    return packet.payload


def kill(process: BrokerProcess) -> None:
    """Kill a broker, and wait until it is gone."""
    process.signal(signal.SIGKILL)
    process.wait()
    process.good_status = -signal.SIGKILL


def test_messages_wait_for_a_rabbitmq_that_hangs(bridged: Bridged, rabbitmq: RabbitMQ, name: str) -> None:
    """B4: publishers and subscribers notice nothing; everything comes, in its order, when it goes on."""
    rabbitmq.declare(name, name)
    bridged.write("sending = { longest_pause_s = 0.2 }\n")
    sent = [b"%d" % number for number in range(1, 51)]
    with bridged.running() as process, wire(process.port, "p", V5) as client, wire(process.port, "s", V5) as other:
        other.subscribe("to/#")
        client.publish("to/a", b"0", 1, packet_id=1).expect(Puback)
        bridged.wait_for(b"0")
        rabbitmq.pause()
        for number, payload in enumerate(sent, 2):
            client.publish("to/a", payload, 1, packet_id=number).expect(Puback)
        assert [other.expect(Publish).payload for _ in range(51)] == [b"0", *sent]
        bridged.state_is(client, b"waiting")
        rabbitmq.go_on()
        wait_until(lambda: set(bridged.come()) == {b"0", *sent}, "everything has come")
    assert list(dict.fromkeys(bridged.come())) == [b"0", *sent]


def test_a_full_outbox_refuses_and_says_so(bridged: Bridged, rabbitmq: RabbitMQ, name: str) -> None:
    """B5."""
    rabbitmq.declare(name)

    bridged.full_outbox_refuses(lambda: rabbitmq.declare(name, name))


def test_a_poison_message_is_parked_and_named(bridged: Bridged, rabbitmq: RabbitMQ, name: str) -> None:
    """B6: no queue is bound for it."""
    rabbitmq.declare(name, name, "to.a")
    bridged.write()

    bridged.poison_is_parked("to/b", b"1", "RabbitMQ has no queue for the routing key 'to.b': bind one", b"2")


def test_a_sink_with_a_wrong_password_keeps_its_messages(bridged: Bridged, rabbitmq: RabbitMQ, name: str) -> None:
    """B7: the line says what to check."""
    rabbitmq.declare(name, name)
    rabbitmq.add_user("ada", "secret")
    password = bridged.folder / "password"
    password.write_text("wrong-one")
    bridged.settings = connection(rabbitmq.address, more=f'username = "ada"\npassword_file = "{password}"\n') + sink(
        name
    )
    bridged.write()

    bridged.refusal_keeps_messages(
        [
            f"plugins.bridge_rabbitmq.connections.main: {rabbitmq.address}: RabbitMQ refuses this client: ",
            "check username and password_file",
        ],
        lambda: password.write_text("secret"),
        b"1",
    )


def test_wrong_settings_stop_the_start_and_a_reload_goes_on_with_the_old(
    bridged: Bridged, rabbitmq: RabbitMQ, name: str
) -> None:
    """B8."""
    rabbitmq.declare(name, name)

    bridged.wrong_settings_change_nothing(
        'exchagne = "other"\n', "12:1", "exchagne: unknown key; did you mean 'exchange'?"
    )


def test_a_missing_exchange_is_named_and_waited_for(bridged: Bridged, rabbitmq: RabbitMQ, name: str) -> None:
    """B9: it is not created."""
    rabbitmq.declare(name)

    def create() -> None:
        assert name not in rabbitmq.evaluate("rabbit_exchange:list_names()")
        rabbitmq.declare(name, name)

    bridged.missing_target_is_waited_for("failed in open", f"no exchange '{name}' in vhost '/': create it", create)


def test_a_sink_that_hangs_holds_up_nobody_else(bridged: Bridged, rabbitmq: RabbitMQ, name: str) -> None:
    """B10: another sink of this plugin gets everything meanwhile."""
    rabbitmq.declare(name, name)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        bridged.settings = connection(address, "silent") + sink(name, "slow", "silent") + bridged.settings
        bridged.write()
        sent = [b"%d" % number for number in range(20)]
        with bridged.running() as process, wire(process.port, "p", V5) as client:
            for number, payload in enumerate(sent, 1):
                client.publish("to/a", payload, 1, packet_id=number).expect(Puback)
            bridged.wait_for(*sent)


def test_qos_0_is_sent_once_or_stored(bridged: Bridged, rabbitmq: RabbitMQ, name: str) -> None:
    """B13: ``pass`` stores nothing, so a broker that is killed loses it; ``store`` promises as for QoS 1."""
    rabbitmq.declare(name)
    bridged.settings += "sending = { longest_pause_s = 0.1 }\n"
    for qos_0 in ("pass", "store"):
        bridged.write(f'outbox = {{ qos_0 = "{qos_0}" }}\n')
        with bridged.running() as process, wire(process.port, "p", V5) as client:
            client.publish("to/a", qos_0.encode())
            client.publish("to/a", b"after " + qos_0.encode(), 1, packet_id=1).expect(Puback)
            kill(process)
    rabbitmq.declare(name, name)
    with bridged.running() as process, wire(process.port, "p", V5) as client:
        client.publish("to/a", b"now")
        bridged.wait_for(b"after pass", b"store", b"after store", b"now")


def test_what_a_source_took_is_lost_with_no_broker(bridged: Bridged, rabbitmq: RabbitMQ, name: str) -> None:
    """B1, B2, B3: RabbitMQ keeps each message until the broker has committed it; they come in their order."""
    rabbitmq.declare(name, name)
    bridged.settings = source(name, "prefetch = 2\n") + bridged.settings
    bridged.write()
    sent = [b"%d" % number for number in range(300)]
    forever = {"clean_start": False, "properties": Properties(session_expiry_interval=3600)}
    with bridged.running() as process, wire(process.port, "s", V5, **forever) as client:
        client.subscribe("from/#", qos=1)
        channel = rabbitmq.channel()
        for payload in sent:  # Without confirms: the source must have most of it before it.
            channel.basic_publish("", name, payload)
        channel.connection.close()
        client.expect(Publish)
        kill(process)
    assert rabbitmq.left(name) > 0
    with bridged.running() as process:
        come: list[bytes] = []
        with wire(process.port, "s", V5, **forever) as client:
            while sent[-1] not in come:
                come.append(received(client))
        wait_until(lambda: rabbitmq.left(name) == 0, "all are acknowledged")
    assert list(dict.fromkeys(come)) == sent


def test_a_source_waits_for_what_is_missing_and_for_room(bridged: Bridged, rabbitmq: RabbitMQ, name: str) -> None:
    """B5, B7, B9: a wrong password, then a missing queue, then a sink whose full outbox refuses: nothing is lost."""
    rabbitmq.add_user("eve", "secret")
    password = bridged.folder / "password"
    password.write_text("wrong-one")
    queue = f"{name}-in"
    bridged.settings = connection(rabbitmq.address, more=f'username = "eve"\npassword_file = "{password}"\n')
    bridged.settings += source(queue) + sink(name).replace("to/#", "from/#")
    outbox = 'outbox = { max_messages = 5, window = 1, when_full = "refuse" }\n'
    bridged.write(outbox + "sending = { longest_pause_s = 0.1 }\n")
    rabbitmq.declare(name)
    sent = [b"%d" % number for number in range(40)]
    with bridged.running() as process:
        [line] = process.wait_for_line("source bridge_rabbitmq:in failed")
        assert "check username and password_file" in line
        password.write_text("secret")
        process.signal(signal.SIGHUP)
        process.wait_for_line(f"no queue '{queue}' in vhost '/': create it")
        rabbitmq.declare(queue)
        for payload in sent:
            rabbitmq.put(queue, [payload])
        process.wait_for_line("the broker refuses messages, it pauses")
        rabbitmq.declare(name, name)
        wait_until(lambda: list(dict.fromkeys(bridged.come())) == sent, "all have come")
        wait_until(lambda: rabbitmq.left(queue) == 0, "all are acknowledged")
