"""Clients that go while a plugin is asked about them, over real sockets: the plugin learns of it at once."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from core_harness.brokers import BrokerProcess, running_broker
from core_harness.surroundings import Surroundings
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import V5, Connect, Publish

PATIENT = """
from twisted.internet.defer import Deferred
from kinmqtt_spi import hookimpl

@hookimpl
def configure(context):
    global log
    log = context.log

@hookimpl
def authenticate(request):
    log.info("asked about {client}", client=request.client_id)
    return Deferred(lambda _: log.info("gave up {client}", client=request.client_id))
"""


@pytest.fixture(params=["asyncio", "uvloop"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker whose authenticator never answers, on each event loop."""
    surroundings = Surroundings(tmp_path)
    surroundings.install("patient", PATIENT, {"patient": "patient"})
    env = surroundings.environment | {"KINMQTT__BROKER__EVENT_LOOP": request.param}
    with running_broker(env=env) as process:
        yield process


@pytest.mark.parametrize("how", ["closes", "resets", "sends more first"])
def test_a_client_that_goes_is_noticed_while_a_plugin_is_asked(broker: BrokerProcess, how: str) -> None:
    """What is awaited for it is cancelled, long before its time limits."""
    packets = encode(Connect(V5, "goer", True, 0), V5)
    with socket.create_connection(("127.0.0.1", broker.port)) as client:
        client.sendall(packets)
        broker.wait_for_line("asked about goer")
        if how == "sends more first":
            client.sendall(encode(Publish.build("t", bytes(1000)), V5))
        if how == "resets":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    broker.wait_for_line("gave up goer", limit_s=8)
