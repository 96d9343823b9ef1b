"""Who comes where there is no place waits a moment: a place may be free that nobody has noticed yet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.error import ConnectionDone
from twisted.python.failure import Failure

from core_harness.brokers import BrokerProcess, running_broker
from core_harness.house import House
from core_harness.transports import CONNACK, CONNECT, BufferTransport
from core_harness.wire import Wire
from kinmqtt.mqtt.packets import V5, V311, Connack, Connect, DisconnectPacket
from kinmqtt.net.admission import PATIENCE_S, Admission
from kinmqtt.net.lingering import Lingering
from kinmqtt.net.protocol import MqttFactory, MqttProtocol, SharedBounds
from kinmqtt.settings import ListenerLimitSettings, ListenerSettings
from spi_harness.processes import environment

PLACES = 3


class Site:
    """A broker in memory with two listeners, and places for so many connections."""

    def __init__(self, *, most: int = 1_000, of_listener: int | None = None, **limits: Any) -> None:
        own = ListenerLimitSettings() if of_listener is None else ListenerLimitSettings(max_connections=of_listener)
        plans = {
            "narrow": ListenerSettings(endpoint="1883", limits=own),
            "wide": ListenerSettings(endpoint="1884"),
        }
        self.house = House(listeners=plans, **limits)
        clock = self.house.clock
        self.bounds = SharedBounds(Admission(clock, most), Lingering(clock))
        listeners = self.house.broker.listeners
        self._factories = {
            name: MqttFactory(self.house.broker, listeners[name], plan, self.bounds) for name, plan in plans.items()
        }

    def come(self, listener: str = "narrow") -> tuple[MqttProtocol, BufferTransport]:
        """A connection that was accepted."""
        transport = BufferTransport()
        protocol = self._factories[listener].buildProtocol(None)
        protocol.makeConnection(transport)  # type: ignore[no-untyped-call]
        return protocol, transport

    def go(self, protocol: MqttProtocol) -> None:
        """A connection is gone, and that is noticed."""
        protocol.connectionLost(Failure(ConnectionDone()))
        self.house.settle()

    @property
    def refused(self) -> int:
        """How many were refused."""
        return self.house.broker.runtime.statistics.connections_refused.value


def is_in(come: tuple[MqttProtocol, BufferTransport]) -> bool:
    """Whether the broker has met a connection, and talks to it."""
    connection = come[0].connection
    return connection is not None and not connection.is_closed()


def test_who_comes_while_a_close_is_not_noticed_waits() -> None:
    """And comes in when it is, with nothing of it read before."""
    site = Site(max_connections=1)
    old, _ = site.come()
    new = site.come()
    waits = (is_in(new), list(new[1].calls))

    site.go(old)
    new[0].dataReceived(CONNECT)
    site.house.settle()

    assert waits == (False, ["push producer", "pause"])
    assert new[1].calls == ["push producer", "pause", "resume"]
    assert new[1].written == CONNACK
    assert site.refused == 0


def test_who_waits_for_long_is_refused() -> None:
    """As it would have been at once, with a line in the log and a count."""
    site = Site(max_connections=1)
    site.come()
    new = site.come()

    site.house.advance(PATIENCE_S)
    site.house.settle()

    assert new[1].calls[-1] == "close"
    assert site.refused == 1
    assert len(site.bounds.admission) == 0


def test_places_go_to_who_came_first() -> None:
    """One by one."""
    site = Site(max_connections=2)
    old = [site.come()[0] for _ in range(2)]
    new = [site.come() for _ in range(3)]

    site.go(old[0])
    after_one = [is_in(each) for each in new]
    site.go(old[1])

    assert after_one == [True, False, False]
    assert [is_in(each) for each in new] == [True, True, False]


def test_who_waits_for_a_listener_is_in_nobodys_way() -> None:
    """Where one listener is full, another has places."""
    site = Site(of_listener=1, max_connections=3)
    old, _ = site.come()
    narrow = site.come()
    wide = site.come("wide")
    was_in = is_in(wide)
    site.go(wide[0])
    still_waits = not is_in(narrow)
    site.go(old)

    assert (was_in, still_waits, is_in(narrow)) == (True, True, True)


def test_who_goes_while_it_waits_takes_no_place() -> None:
    """Nor is it counted as refused."""
    site = Site(max_connections=1)
    old, _ = site.come()
    impatient, _ = site.come()
    patient = site.come()

    site.go(impatient)
    site.go(old)

    assert is_in(patient)
    assert site.house.broker.listeners["narrow"].connections == 1
    assert site.refused == 0


def test_only_so_many_wait() -> None:
    """Those above the bound are refused at once."""
    site = Site(most=2, max_connections=1)
    site.come()
    waiting = [site.come() for _ in range(2)]

    above = site.come()

    assert len(site.bounds.admission) == 2
    assert above[1].calls[-1] == "close"
    assert all(each[1].calls[-1] == "pause" for each in waiting)


def test_who_waits_when_the_listeners_close_is_cut_off() -> None:
    """Nobody comes in any more."""
    site = Site(max_connections=1)
    old, _ = site.come()
    new = site.come()

    site.bounds.admission.stop()
    site.go(old)

    assert new[1].calls[-1] == "abort"
    assert not is_in(new)


def test_a_transport_that_reads_all_the_same() -> None:
    """Its first bytes end the waiting: there is a place, or there is none."""
    site = Site(max_connections=1)
    old, _ = site.come()
    refused, transport = site.come()
    refused.dataReceived(CONNECT)
    site.house.settle()

    assert transport.calls[-1] == "close"
    assert site.refused == 1
    site.go(old)
    site.house.advance(PATIENCE_S)
    assert len(site.bounds.admission) == 0
    assert site.refused == 1


def test_a_connection_that_was_closed_for_an_error_has_no_place() -> None:
    """Somebody who waits has it, though the other has not quite left."""
    site = Site(max_connections=1)
    old, transport = site.come()
    transport.loseWriteConnection = lambda: None  # type: ignore[attr-defined]
    old.dataReceived(CONNECT)
    site.house.settle()
    new = site.come()

    old.dataReceived(b"\x00")
    site.house.settle()

    assert is_in(new)
    assert len(site.bounds.lingering) == 1


# Over real sockets

SETTINGS = f"""
[broker]
sys_interval_s = 0
[limits]
max_connections = {PLACES}
"""


@pytest.fixture(scope="module", params=["uvloop", "asyncio"])
def broker(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    """A broker with few places, with sockets of either sort."""
    settings: Path = tmp_path_factory.mktemp("admission") / "kinmqtt.toml"
    settings.write_text(SETTINGS)
    with running_broker("-c", str(settings), env=environment(KINMQTT__BROKER__EVENT_LOOP=request.param)) as process:
        yield process


@pytest.mark.parametrize("start_disconnect", [False, True])
@pytest.mark.parametrize("version", [V311, V5])
def test_who_comes_right_after_others_have_closed_comes_in(
    broker: BrokerProcess, start_disconnect: bool, version: int
) -> None:
    """However often: the closes are there before the new connections, and are noticed behind them."""
    clients: list[Wire] = []
    answers = []
    try:
        for _ in range(15):
            for client in clients:
                if start_disconnect:
                    client.send(DisconnectPacket())
                client.close()
            clients = [Wire(broker.port, version) for _ in range(PLACES)]
            for number, client in enumerate(clients):
                client.send(Connect(version, f"c{number}"))
            answers += [client.receive() for client in clients]
    finally:
        for client in clients:
            client.close()

    assert [type(answer) for answer in answers] == [Connack] * 15 * PLACES


def test_who_comes_while_all_stay_is_refused(broker: BrokerProcess) -> None:
    """Without an answer, as before."""
    clients = [Wire(broker.port) for _ in range(PLACES)]
    try:
        for number, client in enumerate(clients):
            client.connect(f"s{number}")
        with_no_place = Wire(broker.port)
        with_no_place.send(Connect(V311, "late"))

        assert with_no_place.receive() is None

        with_no_place.close()
        for client in clients:
            client.ping()
    finally:
        for client in clients:
            client.close()
