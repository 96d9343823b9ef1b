"""What holds for a broker with a sink in a real Kafka when something is wrong: the rows of docs/bridge.md."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest

from root_harness.bridge_promises import Bridged
from root_harness.kafka import Kafka

_numbers = count()


def bridged(folder: Path, kafka: Kafka, topic: str, address: str = "", connection: str = "") -> Bridged:
    """A broker with a sink to a topic."""

    def come() -> Sequence[bytes]:
        return [record.value for record in kafka.records(topic)]

    return Bridged(
        folder,
        "bridge_kafka",
        f'[plugins.bridge_kafka.connections.main]\nservers = ["{address or kafka.address}"]\ntimeout_s = 2\n'
        f'{connection}[plugins.bridge_kafka.sinks.out]\nconnection = "main"\nfilters = ["to/#"]\ntopic = "{topic}"\n',
        come,
    )


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_sink_with_wrong_credentials_keeps_its_messages(kafka: Kafka, tmp_path: Path, mechanism: str) -> None:
    """B7: the line says what to check."""
    topic = kafka.create_topic(f"promise-{next(_numbers)}")
    password = tmp_path / "password"
    password.write_text("wrong-one")
    security = f'protocol = "SASL_PLAINTEXT", mechanism = "{mechanism}", username = "ada"'
    connection = f'security = {{ {security}, password_file = "{password}" }}\n'
    broker = bridged(tmp_path, kafka, topic, kafka.sasl_address, connection)
    broker.write()

    broker.refusal_keeps_messages(
        [
            "plugins.bridge_kafka.connections.main: Kafka refuses this client: ",
            "SaslAuthenticationFailed",
            "check username, password_file and mechanism of security",
        ],
        lambda: password.write_text("secret"),
        b"1",
    )


def test_wrong_settings_stop_the_start_and_a_reload_goes_on_with_the_old(kafka: Kafka, tmp_path: Path) -> None:
    """B8."""
    topic = kafka.create_topic(f"promise-{next(_numbers)}")

    bridged(tmp_path, kafka, topic).wrong_settings_change_nothing(
        'topick = "other"\n', "12:1", "topick: unknown key; did you mean 'topic'?"
    )


def test_a_missing_topic_is_named_and_waited_for(kafka: Kafka, tmp_path: Path) -> None:
    """B9: it is not created, though Kafka would."""
    topic = f"promise-{next(_numbers)}"

    def create() -> None:
        assert topic not in kafka.topics()
        kafka.create_topic(topic)

    bridged(tmp_path, kafka, topic).missing_target_is_waited_for(
        f"does not take a message: there is no topic '{topic}' in Kafka; create it", topic, create
    )


def test_a_full_outbox_refuses_and_says_so(kafka: Kafka, tmp_path: Path) -> None:
    """B5."""
    topic = f"promise-{next(_numbers)}"

    bridged(tmp_path, kafka, topic).full_outbox_refuses(lambda: kafka.create_topic(topic))


def test_a_poison_message_is_parked_and_named(kafka: Kafka, tmp_path: Path) -> None:
    """B6."""
    topic = kafka.create_topic(f"promise-{next(_numbers)}")
    broker = bridged(tmp_path, kafka, topic)
    broker.write("max_record_bytes = 2000\n")

    broker.poison_is_parked("to/a", b"x" * 3000, "max_record_bytes allows", b"2")
