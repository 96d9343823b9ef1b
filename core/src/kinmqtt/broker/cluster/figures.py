"""``$SYS/brokers/`` and ``$SYS/cluster/``: what each node shows of the others, and of the cluster."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from twisted.logger import Logger

from kinmqtt.broker.sys_topics import SysPublisher
from kinmqtt.hooks.awaitables import resolve, run
from kinmqtt_spi.errors import MalformedBatch, NodeGone, ServiceUnavailable
from kinmqtt_spi.services.cluster import GONE, Member, MemberState
from kinmqtt_spi.services.metric import SysScope, SysTopic
from kinmqtt_spi.values import Message, NodeIdentity

if TYPE_CHECKING:
    from kinmqtt.broker.services import Services

log = Logger("kinmqtt.cluster")

FIGURES: Final = "figures"
"""The question that brings a node's figures to the others, as a JSON object of topics and payloads."""

MAX_FIGURES_BYTES: Final = 64 << 10
"""The most bytes of figures that a node sends, and accepts of another."""

ANSWER_LIMIT_S: Final = 5.0

_QUOTED: Final = {
    **{number: f"%{number:02X}" for number in (*range(32), *range(127, 160))},
    **{ord(sign): f"%{ord(sign):02X}" for sign in "%/+#"},
}


def topic_level(name: str) -> str:
    """Return a node's name as one level of a topic; ``% / + #`` and control characters are written ``%2F``."""
    return name.translate(_QUOTED)


class NodeFigures:
    """Publishes the figures of all nodes on this one, and tells the other nodes this one's.

    A broker that never had another node publishes none of these topics.
    """

    def __init__(self, services: Services, publish: Callable[[Message], object]) -> None:
        """``publish`` publishes a message of the broker's own."""
        self._services = services
        self._forwarder = services.forwarder
        self._node = services.runtime.node
        self._publish = publish
        self._cluster = SysPublisher(publish, self._cluster_topics())
        self._members: dict[int, Member] = {}
        """By uid: the nodes that are not gone."""
        self._shown: dict[str, tuple[int, dict[str, str]]] = {}
        """By name of a node: its uid, and its payloads by topic."""
        self._asked: set[int] = set()
        """The uids of nodes that have not answered yet."""
        self._is_clustered = False
        self._is_cut = False

    def _cluster_topics(self) -> list[SysTopic]:
        services, forwarder = self._services, self._services.forwarder
        statistics = services.runtime.statistics
        numbers: dict[str, Callable[[], int]] = {
            "nodes/up": lambda: sum(each.state is MemberState.UP for each in self._members.values()),
            "nodes/unreachable": lambda: sum(not each.reachable for each in self._members.values()),
            "nodes/count": lambda: len(self._members),
            "routes/own": lambda: len(services.router.announcer),
            "routes/others": lambda: len(forwarder.routes),
            "messages/forwarded": lambda: statistics.forwarded.value,
            "messages/received": lambda: statistics.from_nodes.value,
            "messages/dropped": lambda: statistics.dropped["link_full"].value + statistics.dropped["node_gone"].value,
            "messages/unanswered": lambda: forwarder.unanswered,
        }
        return [
            SysTopic(f"$SYS/cluster/{name}", _text(read), scope=SysScope.CLUSTER) for name, read in numbers.items()
        ]

    # Members

    def member_changed(self, member: Member) -> None:
        """Show a member's state; what a node that is gone has shown is cleared."""
        node = member.node
        if member.state in GONE:
            self._members.pop(node.uid, None)
            if not any(each.node.name == node.name for each in self._members.values()):
                self._clear(f"$SYS/cluster/members/{topic_level(node.name)}")
            self._forget(node)
            return
        self._members[node.uid] = member
        if node != self._node and not self._is_clustered:
            self._is_clustered = True
            for each in self._members.values():
                self._show_state(each)
        elif self._is_clustered:
            self._show_state(member)

    def _show_state(self, member: Member) -> None:
        state = member.state.value if member.reachable else f"{member.state.value}, unreachable"
        self._show(f"$SYS/cluster/members/{topic_level(member.node.name)}", state)

    def _forget(self, node: NodeIdentity) -> None:
        uid, shown = self._shown.get(node.name, (0, {}))
        if uid == node.uid:  # Else its successor under the same name has shown its own since.
            del self._shown[node.name]
            for topic in shown:
                self._clear(topic)

    # Figures

    def share(self, values: Mapping[str, str]) -> None:
        """Show this node's figures under its name, and tell the other nodes; ``values`` are payloads by topic."""
        if not self._is_clustered:
            return
        self._cluster.publish()
        figures = {_short(topic): text for topic, text in values.items()}
        self._show_node(self._node, figures)
        data = self._written(figures)
        for link in self._forwarder.links():
            if link.node.uid not in self._asked:
                self._asked.add(link.node.uid)
                run(self._tell(link.node, data))

    def _written(self, figures: Mapping[str, str]) -> bytes:
        """Return figures as bytes, without those that are too many."""
        data = json.dumps(figures, ensure_ascii=False).encode()
        if len(data) <= MAX_FIGURES_BYTES:
            return data
        if not self._is_cut:
            self._is_cut = True
            log.warn(
                "the $SYS topics of this node have {size} bytes; other nodes are told the first {most} only",
                size=len(data),
                most=MAX_FIGURES_BYTES,
            )
        told: dict[str, str] = {}
        size_bytes = 2
        for topic, text in figures.items():
            size_bytes += len(json.dumps({topic: text}, ensure_ascii=False).encode()) + 2
            if size_bytes <= MAX_FIGURES_BYTES:
                told[topic] = text
        return json.dumps(told, ensure_ascii=False).encode()

    async def _tell(self, node: NodeIdentity, data: bytes) -> None:
        try:
            await resolve(self._forwarder.backend.ask(node, FIGURES, data, ANSWER_LIMIT_S))
        except (NodeGone, ServiceUnavailable) as error:
            log.debug("node {node} was not told the figures: {error}", node=node.name, error=error)
        finally:
            self._asked.discard(node.uid)

    def received(self, origin: NodeIdentity, data: bytes) -> bytes:
        """Show the figures of another node; raises :class:`MalformedBatch` for what is none."""
        if origin.uid in self._members:
            self._show_node(origin, _read(data))
        return b""

    def _show_node(self, node: NodeIdentity, figures: Mapping[str, str]) -> None:
        """Publish what has changed of a node's figures, and clear what it has no more."""
        before_uid, before = self._shown.get(node.name, (node.uid, {}))
        level = topic_level(node.name)
        now = {f"$SYS/brokers/{level}/{name}": text for name, text in figures.items()}
        self._shown[node.name] = (node.uid, now)
        for topic in before.keys() - now.keys():
            self._clear(topic)
        for topic, text in now.items():
            if before.get(topic) != text or before_uid != node.uid:
                self._show(topic, text)

    def _show(self, topic: str, text: str) -> None:
        try:
            self._publish(Message(topic, text.encode(), retain=True))
        except ValueError as error:
            log.warn("{topic!r} can't be published: {error}", topic=topic, error=error)

    def _clear(self, topic: str) -> None:
        self._show(topic, "")


def _short(topic: str) -> str:
    """Return a topic's name below that of its node: ``$SYS/broker/uptime`` is ``uptime`` there."""
    return topic.removeprefix("$SYS/").removeprefix("broker/")


def _read(data: bytes) -> dict[str, str]:
    if len(data) > MAX_FIGURES_BYTES:
        raise MalformedBatch(f"figures of {len(data)} bytes: at most {MAX_FIGURES_BYTES} are read")
    try:
        figures = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise MalformedBatch(f"figures that are no JSON: {error}") from None
    if not isinstance(figures, dict) or not all(isinstance(text, str) for text in figures.values()):
        raise MalformedBatch("figures that are no object of texts")
    for name in figures:
        if not name or any(sign in name for sign in "+#\0") or "$" in name[:1]:
            raise MalformedBatch(f"figures with the topic {name!r}")
    return figures


def _text(read: Callable[[], int]) -> Callable[[], str]:
    return lambda: str(read())
