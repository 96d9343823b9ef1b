"""event_kafka in whole brokers with a real Kafka: what happens to clients comes there, and sessions come back."""

from __future__ import annotations

import json
from itertools import count, pairwise
from pathlib import Path
from typing import Any

from core_harness.brokers import BrokerProcess, run_command, running_broker
from core_harness.wire import Wire, wire
from kinmqtt.mqtt.packets import (
    V5,
    DisconnectPacket,
    Puback,
    Suback,
    Subscribe,
    SubscribeRequest,
    Unsuback,
    Unsubscribe,
)
from kinmqtt_spi.properties import Properties
from root_harness.kafka import Kafka
from spi_harness.processes import wait_until

_topics = count()


def prepared(folder: Path, kafka: Kafka, partitions: int = 3) -> str:
    """Write a broker's settings; returns its topic in Kafka."""
    topic = kafka.create_topic(f"whole-{next(_topics)}", partitions=partitions)
    (folder / "kinmqtt.toml").write_text(
        f'[broker]\nnode_name = "n1"\n[plugins]\nonly = ["event_kafka"]\n'
        f'[plugins.event_kafka]\nservers = ["{kafka.address}"]\ntopic = "{topic}"\ntimeout_s = 2.0\n'
    )
    return topic


def broker(folder: Path) -> Any:
    """A broker over the folder's data."""
    return running_broker("-c", "kinmqtt.toml", "--data", str(folder / "data"), cwd=folder)


def kinds(kafka: Kafka, topic: str) -> list[tuple[str, str]]:
    """Client id and kind of each event in Kafka, each once, by client and version."""
    found = {}
    for record in kafka.records(topic):
        event = json.loads(record.value)
        version = event["version"]["epoch"], event["version"]["counter"]
        found[event["client_id"], version] = event["kind"]
    return [(client_id, kind) for (client_id, _), kind in sorted(found.items())]


def leave(client: Wire) -> None:
    """Disconnect in good order."""
    client.send(DisconnectPacket())
    client.rest()


def come_and_go(process: BrokerProcess) -> None:
    """Clients that come, change their mind, go, and are lost."""
    stays = Properties(session_expiry_interval=1000)
    with wire(process.port, "a", V5, properties=stays) as client:
        options = SubscribeRequest("a/#", 1, no_local=True, retain_as_published=True, retain_handling=2)
        client.send(Subscribe(1, (options,), Properties(subscription_identifier=(7,))))
        client.expect(Suback)
        client.subscribe("gone", 1, 2)
        client.subscribe("$share/g/b/+", 2, 3)
        client.send(Unsubscribe(4, ("gone",)))
        client.expect(Unsuback)
        leave(client)
    with wire(process.port, "a", V5, properties=stays, clean_start=False) as client:
        client.subscribe("a/#", 0, 1)
    with wire(process.port, "b", V5, properties=stays) as client:
        client.subscribe("old", 1)
    with wire(process.port, "b", V5, properties=stays) as client:
        client.subscribe("new", 1)
        client.reset()
    with wire(process.port, "short", V5) as client:
        client.subscribe("c", 1)


def sessions(lines: str) -> list[Any]:
    """The sessions of an export, with subscriptions in an order of their own, and times of expiry to ten seconds.

    The store computes that time a moment before the event does.
    """
    found = [line for line in map(json.loads, lines.splitlines()) if line.get("kind") == "session"]
    for line in found:
        line["session"]["subscriptions"].sort(key=json.dumps)
        line["session"]["expires_at"] = round(line["session"]["expires_at"], -1)
    return sorted(found, key=lambda line: line["session"]["client_id"])


def test_sessions_are_rebuilt_as_the_store_has_them(kafka: Kafka, tmp_path: Path) -> None:
    """With their subscriptions, epochs and expiry; and another broker can begin with them."""
    prepared(tmp_path, kafka)
    with broker(tmp_path) as process:
        come_and_go(process)
        with wire(process.port, "a", V5, properties=Properties(session_expiry_interval=1000), clean_start=False):
            process.tell_to_stop()
            process.wait()

    exported = run_command("store", "export", "data", cwd=tmp_path)
    done = run_command("events", "rebuild", "-c", "kinmqtt.toml", "--from", "kafka", "--to", "rebuilt", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert "queues" in done.stderr
    lines = (tmp_path / "rebuilt").read_text()
    assert sessions(lines) == sessions(exported.stdout)
    assert len(sessions(lines)) == 2
    imported = run_command("store", "import", "other", cwd=tmp_path, input=lines)
    assert imported.returncode == 0, imported.stderr
    again = run_command("store", "export", "other", cwd=tmp_path)
    assert sessions(again.stdout) == sessions(exported.stdout)


def retained(lines: str) -> list[Any]:
    """The retained messages of an export, by topic, without the values of plugins."""
    found = [line for line in map(json.loads, lines.splitlines()) if line.get("kind") == "retained"]
    return sorted(
        (line for line in found if not line["message"]["topic"].startswith("$plugin/")),
        key=lambda line: str(line["message"]["topic"]),
    )


def test_retained_messages_are_rebuilt_as_the_store_has_them(kafka: Kafka, tmp_path: Path) -> None:
    """Those from before the plugin, those that came over a kill of the broker and of Kafka, and no others."""
    prepared(tmp_path, kafka)
    settings = tmp_path / "kinmqtt.toml"
    topic = kafka.create_topic(f"whole-retained-{next(_topics)}", partitions=3, cleanup_policy="compact")
    more = Properties(
        content_type="text/plain", user_property=(("a", "1"), ("a", "2")), message_expiry_interval=3600,
        correlation_data=b"\0\xff",
    )  # fmt: skip
    with broker(tmp_path) as process, wire(process.port, "p", V5) as client:
        client.publish("before/stays", b"1", 1, packet_id=1, retain=True).expect(Puback)
        client.publish("before/changes", b"1", 1, packet_id=2, retain=True).expect(Puback)
        client.publish("before/goes", b"1", 1, packet_id=3, retain=True).expect(Puback)
        leave(client)
    settings.write_text(settings.read_text() + f'retained_topic = "{topic}"\n')

    with running_broker("-c", "kinmqtt.toml", "--data", str(tmp_path / "data"), cwd=tmp_path) as process:
        process.good_status = -9
        wait_until(lambda: len(kafka.records(topic)) == 3, "what was there is in Kafka")
        kafka.kill()
        with wire(process.port, "p", V5) as client:
            client.publish("before/changes", b"2", 1, packet_id=1, retain=True).expect(Puback)
            client.publish("before/goes", b"", 1, packet_id=2, retain=True).expect(Puback)
            client.publish("new", b"\0\xff", 1, packet_id=3, retain=True, properties=more).expect(Puback)
            process.signal(9)
            process.wait()
    kafka.start()
    with broker(tmp_path) as process, wire(process.port, "p", V5) as client:
        client.publish("ä/€", b"utf-8", 0, retain=True)
        leave(client)
        wait_until(lambda: {r.key: r.value for r in kafka.records(topic)}.get("ä/€".encode()), "the last is there")
        wait_until(lambda: {r.key: r.value for r in kafka.records(topic)}.get(b"new"), "those before it, too")

    exported = run_command("store", "export", "data", cwd=tmp_path)
    done = run_command("events", "rebuild", "-c", "kinmqtt.toml", "--from", "kafka", "--to", "rebuilt", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert "4 retained messages are in" in done.stdout
    lines = (tmp_path / "rebuilt").read_text()
    assert [line["message"]["topic"] for line in retained(lines)] == ["before/changes", "before/stays", "new", "ä/€"]
    assert retained(lines) == retained(exported.stdout)
    imported = run_command("store", "import", "other", cwd=tmp_path, input=lines)
    assert imported.returncode == 0, imported.stderr
    assert retained(run_command("store", "export", "other", cwd=tmp_path).stdout) == retained(exported.stdout)


def test_nobody_waits_for_a_kafka_that_is_away(kafka: Kafka, tmp_path: Path) -> None:
    """E2: clients are served, the events outlive the broker, and Kafka has all of them when it is there again."""
    topic = prepared(tmp_path, kafka)
    with broker(tmp_path) as process:
        with wire(process.port, "before", V5) as client:
            client.publish("t", b"x", 1, packet_id=1).expect(Puback)
            leave(client)
        wait_until(lambda: len(kinds(kafka, topic)) == 2, "both events are there")
        kafka.kill()
        with wire(process.port, "meanwhile", V5) as client:
            client.publish("t", b"x", 1, packet_id=1, retain=True).expect(Puback)
            leave(client)

    kafka.start()
    with broker(tmp_path):
        wait_until(lambda: ("meanwhile", "DISCONNECT") in kinds(kafka, topic), "the events are shipped")

    assert kinds(kafka, topic) == [
        ("before", "CONNECT"),
        ("before", "DISCONNECT"),
        ("meanwhile", "CONNECT"),
        ("meanwhile", "ADD_RETAIN"),
        ("meanwhile", "DISCONNECT"),
    ]


def test_a_killed_broker_ships_the_rest_later(kafka: Kafka, tmp_path: Path) -> None:
    """E1: what its log has is shipped at the next start, and nothing is missing."""
    topic = prepared(tmp_path, kafka)
    kafka.pause()
    with running_broker("-c", "kinmqtt.toml", "--data", str(tmp_path / "data"), cwd=tmp_path) as process:
        process.good_status = -9
        with wire(process.port, "a", V5) as client:
            client.publish("t", b"x", 1, packet_id=1).expect(Puback)
            process.signal(9)
            process.wait()
    kafka.go_on()

    with broker(tmp_path):
        wait_until(lambda: ("a", "CONNECT") in kinds(kafka, topic), "the event is shipped")


def test_events_beyond_the_bound_are_lost_the_oldest_first(kafka: Kafka, tmp_path: Path) -> None:
    """E2: nobody waits, and the newest are held: at least 10,000, which the log has in any case."""
    topic = prepared(tmp_path, kafka, partitions=1)
    settings = tmp_path / "kinmqtt.toml"
    settings.write_text(settings.read_text() + "[events]\nmax_waiting = 10\n")
    requests = tuple(SubscribeRequest(f"f/{number}", 0) for number in range(500))
    kafka.pause()
    with broker(tmp_path) as process, wire(process.port, "c", V5) as client:
        for packet_id in range(1, 31):
            client.send(Subscribe(packet_id, requests))
            client.expect(Suback)
        client.send(Subscribe(99, (SubscribeRequest("last", 0),)))
        client.expect(Suback)
        kafka.go_on()
        wait_until(lambda: b'"last"' in b"".join(r.value for r in kafka.records(topic)[-1:]), "the newest is there")

    counters = sorted({json.loads(record.value)["version"]["counter"] for record in kafka.records(topic)})
    assert len(counters) < 30 * 500
    assert len([1 for before, after in pairwise(counters[-9_000:]) if after - before != 1]) == 0


def test_an_event_comes_at_least_once_over_kills_of_both(kafka: Kafka, tmp_path: Path) -> None:
    """E1: each session that was begun is there, in the order of its client; doubles have the same version."""
    topic = prepared(tmp_path, kafka)
    begun = 0
    for kills in range(4):
        with broker(tmp_path) as process:
            process.good_status = -9
            for _ in range(5):
                with wire(process.port, "one", V5) as client:
                    begun += 1
                    leave(client)
            if kills == 1:
                kafka.kill()
            process.signal(9)
            process.wait()
        if kills == 2:
            kafka.start()
    with broker(tmp_path) as process, wire(process.port, "last", V5):
        wait_until(lambda: ("last", "CONNECT") in kinds(kafka, topic), "everything is shipped")

    events = [json.loads(record.value) for record in kafka.records(topic)]
    seen = [(each["version"]["epoch"], each["version"]["counter"]) for each in events if each["client_id"] == "one"]
    firsts = list(dict.fromkeys(seen))
    assert firsts == sorted(firsts)
    assert [kind for name, kind in kinds(kafka, topic) if name == "one"].count("CONNECT") == begun


def test_tail_prints_events(kafka: Kafka, tmp_path: Path) -> None:
    """A line of JSON each, the oldest first if so asked."""
    prepared(tmp_path, kafka, partitions=1)
    with broker(tmp_path) as process, wire(process.port, "a", V5) as client:
        leave(client)

    done = run_command("events", "tail", "-c", "kinmqtt.toml", "--oldest", "--count", "2", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["kind"] for line in done.stdout.splitlines()] == ["CONNECT", "DISCONNECT"]


def test_commands_name_what_is_missing(kafka: Kafka, tmp_path: Path) -> None:
    """The topic, in one line."""
    (tmp_path / "kinmqtt.toml").write_text(
        f'[plugins.event_kafka]\nservers = ["{kafka.address}"]\ntopic = "nobody-made-it"\n'
    )

    done = run_command("events", "rebuild", "-c", "kinmqtt.toml", "--from", "kafka", "--to", "out", cwd=tmp_path)

    assert done.returncode == 1
    assert "there is no topic 'nobody-made-it' in Kafka" in done.stderr
    assert not (tmp_path / "out").exists()
