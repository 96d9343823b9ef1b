"""The sink and the source keep the contracts of bridges, with a real Mosquitto, in MQTT 5 and 3.1.1."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from bridge_mqtt_harness.making import Made, message
from bridge_mqtt_harness.mosquitto import PLAIN, Mosquitto, mosquitto
from bridge_mqtt_harness.observer import Observer, observed
from kinmqtt_bridge_mqtt.connection import Connection
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.testing.bridge import SinkCase, SinkContract, SourceCase, SourceContract
from kinmqtt_spi.testing.bridge_runs import BridgeRuns
from spi_harness.processes import free_port, wait_until

NOBODY = free_port()
"""Of the listener that lets nobody in."""


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    folder = tmp_path_factory.mktemp("far")
    (folder / "nobody").write_text("")
    extra = (
        f"per_listener_settings true\n{PLAIN}max_packet_size 200000\n"
        f"listener {NOBODY} 127.0.0.1\nallow_anonymous false\npassword_file {folder / 'nobody'}\n"
    )
    with mosquitto(folder, extra) as broker:
        yield broker


@pytest.fixture
def observer(far: Mosquitto) -> Iterator[Observer]:
    with observed(far.port) as observer:
        yield observer


def ended(clock: TurnableClock, suite: Any) -> Iterator[BridgeRuns]:
    """What a suite runs with; at the end the connection is closed within its loop."""
    runs = BridgeRuns(clock, "asyncio")
    yield runs
    suite.connection.retire()
    for _ in range(3):
        runs.turn()
    runs.close()


class SinkSuite(SinkContract):
    reactor = "asyncio"
    connection: Connection
    can_fail = True
    can_refuse = True
    can_hang = True
    version = "5"

    @pytest.fixture
    def sink(self, observer: Observer) -> SinkCase:
        made = Made(observer.address, "# out 1", version=self.version)
        self.observer = observer
        self.connection = made.connection
        poison = message("suite/topic", b"x" * 300_000)
        return SinkCase(made.sink, lambda: list(observer.taken), poison)

    @pytest.fixture
    def runs(self, sink: SinkCase, clock: TurnableClock) -> Iterator[BridgeRuns]:
        yield from ended(clock, self)

    def failing(self, case: SinkCase) -> Callable[[], object]:
        self.observer.down()
        return self.observer.up

    def refusing(self, case: SinkCase) -> Callable[[], object]:
        before, self.observer.target = self.observer.target, NOBODY
        self.observer.cut()

        def repair() -> None:
            self.observer.target = before
            self.observer.cut()

        return repair

    def hanging(self, case: SinkCase) -> Callable[[], object]:
        self.observer.hang()
        return self.observer.flow


class TestSinkOfMqtt5(SinkSuite):
    has_poison = True


class TestSinkOfMqtt311(SinkSuite):
    version = "3.1.1"


class SourceSuite(SourceContract):
    reactor = "asyncio"
    connection: Connection
    can_fail = True
    version = "5"

    @pytest.fixture
    def source(self, far: Mosquitto, observer: Observer, tmp_path: Path) -> Iterator[SourceCase]:
        topic = f"suite/{tmp_path.name}"
        self.observer = observer
        made = Made(observer.address, f"{topic} in 1", name=tmp_path.name, version=self.version)
        self.connection = made.connection
        with ExitStack() as stack:
            # The session has to be there before anything is offered.
            settled: list[int] = []
            first = Client(CallbackAPIVersion.VERSION2, f"here.{tmp_path.name}", clean_session=False)
            first.on_subscribe = lambda *_: settled.append(1)
            first.connect("127.0.0.1", far.port)
            first.subscribe(topic, 1)
            first.loop_start()
            wait_until(lambda: settled, "it is subscribed")
            first.disconnect()
            first.loop_stop()
            publisher = Client(CallbackAPIVersion.VERSION2, f"offers.{tmp_path.name}")
            publisher.connect("127.0.0.1", far.port)
            publisher.loop_start()
            stack.callback(publisher.loop_stop)
            stack.callback(publisher.disconnect)

            def offer(payloads: Any) -> None:
                for each in payloads:
                    publisher.publish(topic, each, 1).wait_for_publish(10)

            yield SourceCase(made.source, offer, lambda: list(observer.acknowledged))

    @pytest.fixture
    def runs(self, source: SourceCase, clock: TurnableClock) -> Iterator[BridgeRuns]:
        yield from ended(clock, self)

    def failing(self, case: SourceCase) -> Callable[[], object]:
        self.observer.down()
        return self.observer.up


class TestSourceOfMqtt5(SourceSuite):
    pass


class TestSourceOfMqtt311(SourceSuite):
    version = "3.1.1"
