"""Delayed messages in a retain store that several brokers share."""

from __future__ import annotations

from core_harness.house import back, payloads
from core_harness.nodes import Nodes
from kinmqtt.builtins.delayed import DelayedSettings

DELAYED = {"delayed": DelayedSettings()}


def test_a_broker_that_starts_leaves_the_delayed_messages_of_others_alone() -> None:
    """C12: also where the brokers know each other by nothing but the store they share."""
    nodes = Nodes(1, plugin_settings=DELAYED)
    sub = back(nodes.brokers[0], "sub").subscribe("t", qos=1)
    nodes.brokers[0].connect("pub").publish("$delayed/5/t", b"x", qos=1)
    second = nodes.add()
    second.connect("live").subscribe("t", qos=1)
    nodes.advance(6)

    assert payloads(sub) == [b"x"]
    assert nodes.stores.retained.count() == 0


def test_the_delayed_messages_of_a_dead_node_are_published_once() -> None:
    """C12: one of the others adopts them."""
    nodes = Nodes(3, plugin_settings=DELAYED)
    sub = back(nodes.brokers[0], "sub").subscribe("t", qos=1)
    for number in range(3):
        nodes.brokers[2].connect("pub").publish("$delayed/5/t", b"%d" % number, qos=1)
    nodes.kill(2)
    nodes.advance(8)

    assert sorted(payloads(sub)) == [b"0", b"1", b"2"]
    assert nodes.stores.retained.count() == 0


def test_a_broker_that_starts_takes_what_a_dead_one_has_left() -> None:
    """What was due meanwhile is published at once."""
    nodes = Nodes(2, plugin_settings=DELAYED)
    nodes.brokers[1].connect("pub").publish("$delayed/5/t", b"x", qos=1)
    nodes.kill(1, down=False)
    sub = back(nodes.brokers[0], "sub").subscribe("t", qos=1)
    nodes.stores.sessions.bury(nodes.backends[1].me)
    nodes.advance(6)
    early = payloads(sub)
    nodes.add()
    nodes.advance(1)

    assert early == []
    assert payloads(sub) == [b"x"]


def test_a_node_that_has_lost_the_publishers_session_keeps_no_message_of_it() -> None:
    """C12: it stood still, and finds out with the write; the publisher has sent the message again elsewhere."""
    nodes = Nodes(2, plugin_settings=DELAYED)
    sub = back(nodes.brokers[1], "sub").subscribe("t", qos=2)
    stale = back(nodes.brokers[0], "pub")
    nodes.stores.sessions.notify(nodes.backends[0].me, lambda client_id, epoch: None)
    del nodes.wires.backends[nodes.backends[0].me]
    nodes.down(0)
    fresh = back(nodes.brokers[1], "pub")
    for peer in (fresh, stale):
        peer.publish("$delayed/5/t", b"x", qos=2)
    nodes.advance(8)

    assert payloads(sub) == [b"x"]
    assert nodes.stores.retained.count() == 0
