"""How a node leaves its cluster."""

from __future__ import annotations

from core_harness.nodes import Nodes
from kinmqtt.broker.lifecycle import WAVE_CLIENTS
from kinmqtt.hooks.awaitables import run
from kinmqtt.mqtt.packets import DisconnectPacket, Puback, Pubcomp
from kinmqtt.settings import BrokerSettings
from kinmqtt_spi.reasons import ReasonCode


def test_clients_of_a_leaving_node_are_sent_to_another_in_waves() -> None:
    """With 0x9C; the other nodes hear of it before the first is disconnected."""
    nodes = Nodes(2)
    clients = [nodes.brokers[0].connect(f"c{number}", 5) for number in range(WAVE_CLIENTS + 1)]
    nodes.settle()
    run(nodes.brokers[0].broker.stop())
    nodes.settle()
    gone = [client.closed for client in clients]
    nodes.advance(1)

    assert gone.count(True) == WAVE_CLIENTS
    assert {client.of(DisconnectPacket)[-1].reason for client in clients} == {ReasonCode.USE_ANOTHER_SERVER}
    assert nodes.wires.leaving == [nodes.backends[0].me]


def test_waves_grow_with_the_clients() -> None:
    """All clients are gone within the time that the settings give."""
    nodes = Nodes(2, settings=BrokerSettings(leave_s=1))
    clients = [nodes.brokers[0].connect(f"c{number}", 5) for number in range(4 * WAVE_CLIENTS)]
    nodes.settle()
    run(nodes.brokers[0].broker.stop())
    nodes.advance(1)

    assert all(client.closed for client in clients)


def test_a_broker_without_other_nodes_stops_at_once() -> None:
    """Nobody can take its clients: 0x8B."""
    nodes = Nodes(1)
    clients = [nodes.brokers[0].connect(f"c{number}", 5) for number in range(WAVE_CLIENTS + 1)]
    run(nodes.brokers[0].broker.stop())
    nodes.settle()

    assert {client.of(DisconnectPacket)[-1].reason for client in clients} == {ReasonCode.SERVER_SHUTTING_DOWN}


def test_nothing_acknowledged_is_lost_or_doubled_when_a_node_leaves() -> None:
    """C13: a publisher goes on while the node of a kept session leaves."""
    nodes = Nodes(3)
    publisher = nodes.brokers[1].connect("p", 5)
    nodes.brokers[0].connect("s", 5, expiry_s=600).subscribe("a", qos=2)
    nodes.settle()
    stopping = run(nodes.brokers[0].broker.stop())
    for number in range(40):
        publisher.publish("a", b"%d" % number, qos=1 + number % 2)
        nodes.advance(0.25)
        if number == 20:
            nodes.down(0)
    assert stopping.called
    nodes.advance(5)
    back = nodes.brokers[2].connect("s", 5, expiry_s=600, clean_start=False)
    nodes.settle()

    assert len(publisher.of(Puback)) + len(publisher.of(Pubcomp)) == 40
    assert sorted(int(payload) for _, payload, _ in back.messages) == list(range(40))


def test_an_expelled_node_sends_its_clients_to_no_other_and_acknowledges_nothing() -> None:
    """C15: the others count it as DOWN, so it ends at once: 0x8B, and no waves."""
    nodes = Nodes(2)
    reasons: list[str] = []
    [here, there] = nodes.brokers
    there.connect("sub", 5).subscribe("a", qos=1)
    nodes.settle()
    here.broker.when_expelled(reasons.append)
    backend = nodes.backends[0]
    nodes.wires.cut.add((nodes.backends[1].me, backend.me))
    publisher = here.connect("p", 5)
    publisher.publish("a", b"1", qos=1)
    nodes.settle()
    backend.listener.expelled("the others can't reach it")
    run(here.broker.stop())
    nodes.settle()

    assert reasons == ["the others can't reach it"]
    assert [each.reason for each in publisher.of(DisconnectPacket)] == [ReasonCode.SERVER_SHUTTING_DOWN]
    assert publisher.of(Puback) == []
    nodes.advance(40)
