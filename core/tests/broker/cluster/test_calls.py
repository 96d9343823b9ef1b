"""Calls of plugins that concern clients and plugins of other nodes."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import pytest

from core_harness.nodes import Nodes
from kinmqtt.broker.cluster.calls import DELIVER, DISCONNECT, MAX_UNTOLD_BYTES, TELL, TOLD_OBJECT_BYTES
from kinmqtt.hooks.awaitables import as_deferred
from kinmqtt.mqtt.packets import DisconnectPacket
from kinmqtt_spi import hookimpl
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.plugin import MAX_TOLD_BYTES, Context, DeliveryResult
from kinmqtt_spi.values import Maybe, Message, NodeIdentity

NEWS = Message("news", b"1", 1)


class Speaker:
    """A plugin that uses its context, one instance for all nodes."""

    def __init__(self) -> None:
        self.contexts: list[Context] = []
        self.heard: list[tuple[str, bytes]] = []
        self.moved: list[tuple[str, str]] = []

    @hookimpl
    def configure(self, context: Context) -> None:
        self.contexts.append(context)

    @hookimpl
    def told(self, origin: NodeIdentity, data: bytes) -> None:
        self.heard.append((origin.name, data))

    @hookimpl
    def session_moved(self, client_id: str, previous: NodeIdentity) -> None:
        self.moved.append((client_id, previous.name))


def cluster(count: int = 2, **plugins: Speaker) -> tuple[Nodes, Speaker]:
    """Returns brokers, and a plugin whose ``contexts`` are theirs."""
    speaker = Speaker()
    return Nodes(count, plugins={"speaker": speaker, **plugins}), speaker


def outcome(nodes: Nodes, answer: Maybe[Any]) -> Any:
    """Returns what a call answers when everything under way has arrived; an error as it is."""
    if not isinstance(answer, Awaitable):
        return answer
    found: list[Any] = []
    as_deferred(answer).addCallbacks(found.append, lambda failure: found.append(failure.value))
    nodes.settle()
    return found[0]


def ask(nodes: Nodes, method: str, data: bytes) -> Any:
    """Returns what node 2 answers to a question of node 1."""
    return outcome(nodes, nodes.backends[0].ask(nodes.backends[1].me, method, data, 5.0))


def test_a_message_is_delivered_to_a_client_of_another_node() -> None:
    """Whatever its subscriptions; the answer is that node's."""
    nodes, speaker = cluster(3)
    client = nodes.brokers[2].connect("c", 5)
    nodes.settle()

    assert outcome(nodes, speaker.contexts[0].deliver("c", NEWS)) is DeliveryResult.TAKEN
    assert [(topic, payload) for topic, payload, _ in client.messages] == [("news", b"1")]


def test_a_message_for_an_offline_client_of_another_node_is_queued_there() -> None:
    """It comes when the client does."""
    nodes, speaker = cluster()
    nodes.brokers[1].connect("c", 5, expiry_s=60).disconnect()
    nodes.settle()

    assert outcome(nodes, speaker.contexts[0].deliver("c", NEWS)) is DeliveryResult.TAKEN
    back = nodes.brokers[1].connect("c", 5, expiry_s=60, clean_start=False)
    nodes.settle()
    assert [payload for _, payload, _ in back.messages] == [b"1"]


def test_a_session_that_no_node_has_is_told() -> None:
    """Only after all nodes were asked."""
    nodes, speaker = cluster(3)

    assert outcome(nodes, speaker.contexts[0].deliver("nobody", NEWS)) is DeliveryResult.NO_SESSION


def test_a_session_of_this_node_is_served_at_once() -> None:
    """No other node is asked, as on a single broker."""
    nodes, speaker = cluster()
    nodes.brokers[0].connect("c", 5)

    assert speaker.contexts[0].deliver("c", NEWS) is DeliveryResult.TAKEN


def test_a_delivery_fails_while_a_session_may_have_no_owner() -> None:
    """The session may be that of a node which is gone, and nobody has adopted it yet."""
    nodes, speaker = cluster(3)
    not_yet: Any = {"adopted": lambda origin, data: b"\0"}
    nodes.backends[0].listener._answers |= not_yet  # type: ignore[attr-defined]
    nodes.kill(2)

    assert isinstance(outcome(nodes, speaker.contexts[1].deliver("c", NEWS)), ServiceUnavailable)


def test_a_direct_topic_reaches_a_client_of_another_node() -> None:
    """``$p2p`` topics use the same call, and the publisher is answered after it."""
    nodes = Nodes(2)
    publisher = nodes.brokers[0].connect("p", 5)
    client = nodes.brokers[1].connect("c", 5)
    nodes.settle()
    publisher.publish("$p2p/c/news", b"1", qos=1)
    nodes.settle()

    assert [(topic, payload) for topic, payload, _ in client.messages] == [("news", b"1")]


def test_a_client_of_another_node_is_disconnected() -> None:
    """``True`` if some node had it, ``False`` if none had."""
    nodes, speaker = cluster(3)
    client = nodes.brokers[2].connect("c", 5)
    nodes.settle()

    assert outcome(nodes, speaker.contexts[0].disconnect("c")) is True
    assert client.closed
    assert outcome(nodes, speaker.contexts[0].disconnect("c")) is False


def test_what_a_plugin_tells_reaches_its_instances_on_the_other_nodes() -> None:
    """Not those of another plugin, nor itself; in order."""
    other = Speaker()
    nodes, speaker = cluster(3, other=other)
    for number in range(3):
        speaker.contexts[0].tell_others(b"%d" % number)
    nodes.advance(1)

    assert sorted(speaker.heard) == sorted(2 * [("n1", b"0"), ("n1", b"1"), ("n1", b"2")])
    assert other.heard == []


def test_what_is_told_is_bounded() -> None:
    """At once, and while a node takes nothing; what is left out is counted."""
    nodes, speaker = cluster()
    nodes.wires.cut.add((nodes.backends[0].me, nodes.backends[1].me))
    with pytest.raises(ValueError, match="at most 65536"):
        speaker.contexts[0].tell_others(bytes(MAX_TOLD_BYTES + 1))
    for _ in range(20):
        speaker.contexts[0].tell_others(bytes(MAX_TOLD_BYTES))

    untold = nodes.brokers[0].broker.runtime.statistics.untold.value
    assert untold == 20 - MAX_UNTOLD_BYTES // (MAX_TOLD_BYTES + 9 + TOLD_OBJECT_BYTES)


def test_a_session_that_moves_is_told_to_plugins_of_its_new_node() -> None:
    """With the node that had it."""
    nodes, speaker = cluster()
    nodes.brokers[0].connect("c", 5, expiry_s=60)
    nodes.settle()
    nodes.brokers[1].connect("c", 5, expiry_s=60, clean_start=False)
    nodes.advance(1)

    assert speaker.moved == [("c", "n1")]


@pytest.mark.parametrize("method", [DELIVER, DISCONNECT, TELL, "figures"])
@pytest.mark.parametrize("data", [b"", b"\0", b"\xff\xff\xff", b"\1" + bytes(40), b"\x98\0\x01\xff\0\0", b"[1"])
def test_a_malformed_question_is_refused_and_counted(method: str, data: bytes) -> None:
    """The asking node's call fails; nothing else happens."""
    nodes, _ = cluster()

    assert isinstance(ask(nodes, method, data), ServiceUnavailable)
    assert nodes.brokers[1].broker.runtime.statistics.malformed.value == 1


def test_a_disconnect_with_a_text_that_no_packet_carries_is_refused() -> None:
    """U+0000 in the reason (MQTT-1.5.4-2): the client stays as it was."""
    nodes, _ = cluster()
    client = nodes.brokers[1].connect("c", 5)
    nodes.settle()

    assert isinstance(ask(nodes, DISCONNECT, b"\x98\0\x01c\0\x03a\0b"), ServiceUnavailable)
    assert not client.closed


def test_an_unknown_question_is_refused() -> None:
    """A node of a later release may ask what this one does not know."""
    nodes, _ = cluster()

    assert isinstance(ask(nodes, "unheard", b""), ServiceUnavailable)


def test_a_disconnect_of_another_node_carries_its_reason() -> None:
    """The client reads the reason code that the plugin gave."""
    nodes, speaker = cluster()
    client = nodes.brokers[1].connect("c", 5)
    nodes.settle()
    outcome(nodes, speaker.contexts[0].disconnect("c", ReasonCode.QUOTA_EXCEEDED))

    assert client.of(DisconnectPacket)[-1].reason == ReasonCode.QUOTA_EXCEEDED
