"""A client that comes to one node after the other, while others publish, nodes are cut off and stores refuse."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from core_harness.nodes import Nodes
from kinmqtt.mqtt.packets import Puback, Pubcomp, Publish, Pubrel
from kinmqtt_spi.errors import ServiceUnavailable
from spi_harness.examples import examples

NODES = 3


class Hopping:
    """One subscriber that moves, and a publisher at each node."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.nodes = Nodes(NODES, shared=False)
        self.subscribers: list[Any] = []
        self.publishers = [self.nodes.brokers[number].connect(f"p{number}", 5) for number in range(NODES)]
        self.sent: dict[int, list[tuple[int, int, bytes]]] = {number: [] for number in range(NODES)}
        """By publisher: packet identifier, QoS and payload."""
        self.accepting = [each.listener.handing for each in self.nodes.backends]
        self.hop()
        self.subscribers[0].subscribe("t", qos=2)

    def hop(self) -> None:
        """Connect to any node; the session stays when the connection is lost."""
        if self.subscribers and self.random.random() < 0.3:
            self.subscribers[-1].drop()
        number = self.random.randrange(NODES)
        self.subscribers.append(self.nodes.brokers[number].connect("hopping", 5, expiry_s=600, clean_start=False))

    def publish(self) -> None:
        number = self.random.randrange(NODES)
        publisher = self.publishers[number]
        qos = self.random.choice((1, 2))
        payload = b"%d-%d" % (number, len(self.sent[number]))
        packet_id = len(self.sent[number]) + 1
        self.sent[number].append((packet_id, qos, payload))
        publisher.publish("t", payload, qos=qos, packet_id=packet_id)

    def cut(self) -> None:
        one, other = self.random.sample(self.nodes.backends, 2)
        self.nodes.wires.cut.add((one.me, other.me))

    def heal(self) -> None:
        self.nodes.wires.cut.clear()
        self.nodes.settle()

    def refuse_one(self) -> None:
        """Let the next hand-off to a node fail."""
        listener: Any = self.random.choice(self.nodes.backends).listener
        accept = listener.handing

        def refuse(*arguments: Any) -> Any:
            listener.handing = accept
            raise ServiceUnavailable("no room")

        listener.handing = refuse

    def run(self) -> None:
        acts = [self.publish] * 5 + [self.hop] * 2 + [self.cut, self.heal, self.refuse_one]
        for _ in range(self.random.randint(5, 60)):
            self.random.choice(acts)()
            if self.random.random() < 0.2:
                self.nodes.advance(0.25)
        self.heal()
        for backend, accept in zip(self.nodes.backends, self.accepting, strict=True):
            backend.listener.handing = accept  # type: ignore[method-assign]
        self.nodes.advance(3)
        self.hop()
        self.nodes.advance(3)

    @property
    def acknowledged(self) -> set[bytes]:
        found: set[bytes] = set()
        for number, publisher in enumerate(self.publishers):
            done = {each.packet_id for each in (*publisher.of(Puback), *publisher.of(Pubcomp))}
            found |= {payload for packet_id, _, payload in self.sent[number] if packet_id in done}
        return found

    @property
    def received(self) -> list[tuple[bytes, int]]:
        """What the client got, as a receiver of QoS 2 sees it: once for a packet identifier that is open."""
        found: list[tuple[bytes, int]] = []
        open_ids: set[int] = set()
        for each in self.subscribers:
            for packet in each.packets:
                if isinstance(packet, Pubrel):
                    open_ids.discard(packet.packet_id)
                elif isinstance(packet, Publish) and packet.packet_id not in open_ids:
                    found.append((packet.payload, packet.qos))
                    if packet.qos == 2:
                        open_ids.add(packet.packet_id)
        return found


@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_client_that_hops_between_nodes_loses_nothing(seed: int) -> None:
    """C2, C5: what was acknowledged to its publisher arrives, and QoS 2 once, whatever happens to the moves."""
    story = Hopping(seed)
    story.run()

    payloads = [payload for payload, _ in story.received]
    exactly_once = [payload for payload, qos in story.received if qos == 2]
    assert story.acknowledged - set(payloads) == set()
    assert sorted(exactly_once) == sorted(set(exactly_once))
