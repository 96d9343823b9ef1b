"""A broker beside a simple model of what its clients are owed, through whatever happens to their connections."""

from __future__ import annotations

from collections import Counter
from itertools import count, pairwise

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from core_harness.house import House, Peer
from kinmqtt.mqtt.packets import V5, V311, Publish, Pubrec, Pubrel
from kinmqtt_spi import NO_PROPERTIES, Properties

EXPIRY_S = 20
"""The session expiry interval of MQTT 5 clients that keep their session; older ones keep it for ever."""

PADDING = b"." * 600
"""Makes a few messages enough to congest a socket that takes nothing."""

IDS = ("a", "b", "c")
client_ids = st.sampled_from(IDS)
topics = st.sampled_from(("x", "y"))
filters = st.sampled_from(("x", "y", "+"))
qos = st.integers(0, 2)


class Owed:
    """What one session of a client has a right to, and what it got."""

    def __init__(self) -> None:
        self.subscriptions: dict[str, int] = {}
        self.expected: dict[int, int] = {}
        """By the number of a message: the QoS with which it must come."""
        self.may_be_lost: set[int] = set()
        """Messages of QoS 0 that were published while the client's socket took nothing."""
        self.received: list[tuple[int, int]] = []
        """Number and QoS, without what QoS 2 lets a client know to be a repeat."""
        self.unreleased: set[int] = set()
        """Packet identifiers of QoS 2 messages taken, and not released by the broker [MQTT-4.3.3-10]."""
        self.published: dict[int, tuple[str, bytes]] = {}
        """QoS 2 messages of the client's own without their PUBREC, in order, by packet identifier."""


class Member:
    """A client: its session, its connection, and how it behaves."""

    def __init__(self) -> None:
        self.owed: Owed | None = None
        self.peer: Peer | None = None
        self.read = 0
        """Packets of the connection that were looked at."""
        self.answered = 0
        """Packets of the connection before the client fell silent."""
        self.expiry_s: float = 0
        self.ends_at = float("inf")


class BrokerModel(RuleBasedStateMachine):
    """Every rule does something to the broker and notes what follows; the invariants compare."""

    def __init__(self) -> None:
        super().__init__()
        self.house = House(max_inflight=3, outbound_buffer_bytes=1024)
        self.members = {client_id: Member() for client_id in IDS}
        self.now = 0
        self.numbers = count(1)
        self.packet_ids = count(1)
        self.origins: dict[int, tuple[str, str]] = {}
        """By the number of a message: its publisher and topic."""

    @initialize()
    def begin(self) -> None:
        """Everybody is there, with all sorts of sessions and subscriptions."""
        self.connect("a", V5, clean_start=True, keeps=True, window=2)
        self.connect("b", V311, clean_start=False, keeps=True, window=2)
        self.connect("c", V5, clean_start=True, keeps=False, window=2)
        for level, client_id in enumerate(IDS):
            self.subscribe(client_id, "xy"[level % 2], level)
            self.subscribe(client_id, "+", 2)

    def teardown(self) -> None:
        """In the end everybody comes back, and takes what is owed."""
        for client_id, member in self.members.items():
            if member.peer is None:
                self.come_back(client_id, 1)
            self.behave(client_id, silent=False, blocked=False)
        self.who_takes_everything_has_everything()
        self.qos_0_and_2_come_once()
        self.order_is_kept()

    # Connections

    @rule(
        client_id=client_ids,
        version=st.sampled_from((V311, V5)),
        clean_start=st.booleans(),
        keeps=st.booleans(),
        window=st.sampled_from((1, 2, 10)),
    )
    def connect(self, client_id: str, version: int, clean_start: bool, keeps: bool, window: int) -> None:
        """Connect, or take over from a connection that is still there."""
        member = self.members[client_id]
        if member.peer is not None:
            self._left(member)
        if member.ends_at <= self.now or clean_start:
            member.owed = None
        present = member.owed is not None
        if version == V5:
            properties = Properties(receive_maximum=window)
            expiry_s = EXPIRY_S if keeps else 0
            peer = self.house.connect(
                client_id, V5, clean_start=clean_start, expiry_s=expiry_s, properties=properties
            )
            member.expiry_s = expiry_s
        else:
            peer = self.house.connect(client_id, V311, clean_start=clean_start, properties=NO_PROPERTIES)
            member.expiry_s = 0 if clean_start else float("inf")
        assert peer.connack.session_present is present
        member.peer, member.read, member.ends_at = peer, 0, float("inf")
        peer.packet_ids = count(30_000)
        if member.owed is None:
            member.owed = Owed()
        self._take(member)
        for packet_id, (topic, payload) in list(member.owed.published.items()):
            peer.publish(topic, payload, 2, packet_id=packet_id, dup=True)

    @rule(client_id=client_ids, how=st.sampled_from(("lost", "lost", "start_disconnect")))
    def leave(self, client_id: str, how: str) -> None:
        """The network connection is lost, or the client says start_disconnect."""
        member = self.members[client_id]
        if member.peer is None:
            return
        if how == "lost":
            member.peer.drop()
        else:
            member.peer.disconnect()
        self._left(member)

    @rule(client_id=client_ids, window=st.sampled_from((1, 2, 10)))
    def come_back(self, client_id: str, window: int) -> None:
        """Connect as before, with the session that there is."""
        member = self.members[client_id]
        version = V311 if member.expiry_s == float("inf") else V5
        self.connect(client_id, version, clean_start=False, keeps=True, window=window)

    @rule(seconds=st.sampled_from((1, 1, 5, EXPIRY_S + 5)))
    def time_passes(self, seconds: int) -> None:
        """Sessions of clients that are away may expire."""
        self.house.advance(seconds)
        self.now += seconds
        for member in self.members.values():
            if member.ends_at <= self.now:
                member.owed = None

    # Behaviour

    @rule(client_id=client_ids, silent=st.booleans(), blocked=st.booleans())
    def behave(self, client_id: str, silent: bool, blocked: bool) -> None:
        """From now on the client acknowledges or does not, and its socket takes something or does not."""
        member = self.members[client_id]
        peer, owed = member.peer, member.owed
        if peer is None or owed is None:
            return
        if peer.link.blocked and not blocked:
            peer.unblock()
        peer.link.blocked = blocked
        self._take(member)
        if silent and not peer.silent:
            member.answered = len(peer.packets)
        elif peer.silent and not silent:
            peer.silent = False
            for packet in peer.packets[member.answered :]:
                if isinstance(packet, Pubrec):
                    owed.published.pop(packet.packet_id, None)
                for answer in peer._answer(packet):
                    peer.send(answer)
        peer.silent = silent

    # Packets

    @rule(client_id=client_ids, filter=filters, level=st.sampled_from((None, 0, 1, 2, 2)))
    def subscribe(self, client_id: str, filter: str, level: int | None) -> None:
        """Subscribe, change the QoS of a subscription, or unsubscribe; what waits is delivered all the same."""
        member = self.members[client_id]
        if member.peer is None or member.owed is None:
            return
        if level is None:
            member.peer.unsubscribe(filter)
            member.owed.subscriptions.pop(filter, None)
        else:
            member.peer.subscribe(filter, qos=level)
            member.owed.subscriptions[filter] = level

    @rule(client_id=client_ids, topic=topics, levels=st.lists(qos, min_size=1, max_size=6))
    def publish(self, client_id: str, topic: str, levels: list[int]) -> None:
        """Publish some messages, having connected first."""
        member = self.members[client_id]
        if member.peer is None:
            self.come_back(client_id, 10)
        assert member.peer is not None
        assert member.owed is not None
        for level in levels:
            number = next(self.numbers)
            payload = b"%06d" % number + PADDING
            self.origins[number] = (client_id, topic)
            for other in self.members.values():
                self._expect(other, topic, number, level)
            packet_id = next(self.packet_ids) if level else 0
            if level == 2:
                member.owed.published[packet_id] = (topic, payload)
            member.peer.send(Publish.build(topic, payload, level, packet_id=packet_id))

    @rule(client_id=client_ids, topic=topics, levels=st.lists(st.sampled_from((1, 2)), min_size=1, max_size=6))
    def publish_assured(self, client_id: str, topic: str, levels: list[int]) -> None:
        """Publish messages that must not be lost: the more of them, the more there is to see."""
        self.publish(client_id, topic, levels)

    @rule(client_id=client_ids)
    def repeat(self, client_id: str) -> None:
        """A silent client sends its QoS 2 messages again, as if no PUBREC had come: nobody gets them twice."""
        member = self.members[client_id]
        if member.peer is not None and member.owed is not None and member.peer.silent:
            for packet_id, (topic, payload) in list(member.owed.published.items()):
                member.peer.publish(topic, payload, 2, packet_id=packet_id, dup=True)

    # What must hold

    @invariant()
    def nobody_is_sent_away(self) -> None:
        """No client has done anything wrong."""
        assert not any(member.peer.closed for member in self.members.values() if member.peer is not None)

    @invariant()
    def nobody_gets_what_is_not_meant_for_it(self) -> None:
        """Everything that came was to come, with the QoS that was to be expected, in this session."""
        for _, owed in self._sessions():
            for number, level in owed.received:
                assert owed.expected.get(number) == level

    @invariant()
    def qos_0_and_2_come_once(self) -> None:
        """QoS 2 is delivered exactly once, and QoS 0 at most once [MQTT-4.3.1-1, MQTT-4.3.3-1]."""
        for _, owed in self._sessions():
            times = Counter(number for number, level in owed.received if level != 1)
            assert all(number_of == 1 for number_of in times.values())

    @invariant()
    def who_takes_everything_has_everything(self) -> None:
        """A client that is there, reads and acknowledges has all it is owed [MQTT-4.5.0-1]."""
        for member, owed in self._sessions():
            peer = member.peer
            if peer is not None and not peer.silent and not peer.link.blocked:
                missing = set(owed.expected) - {number for number, _ in owed.received}
                assert missing <= owed.may_be_lost

    @invariant()
    def order_is_kept(self) -> None:
        """Messages of one publisher to one topic come in order, QoS 0 among itself [MQTT-4.6.0-5]."""
        for _, owed in self._sessions():
            lines: dict[tuple[str, str, bool], list[int]] = {}
            for number, level in dict(owed.received).items():
                lines.setdefault((*self.origins[number], level > 0), []).append(number)
            for line in lines.values():
                assert all(first < second for first, second in pairwise(line))

    @invariant()
    def nothing_is_left_over(self) -> None:
        """The broker has the sessions that there are, and the store holds no queue but theirs."""
        sessions = self.house.broker.sessions.by_id
        alive = {client_id for client_id, member in self.members.items() if member.owed is not None}
        queued = sum(session.queue.count for session in sessions.values() if session.persistent)
        assert set(sessions) == alive
        assert self.house.broker.runtime.stores.queue.totals().queued == queued

    # Within

    def _sessions(self) -> list[tuple[Member, Owed]]:
        for member in self.members.values():
            self._take(member)
        return [(member, member.owed) for member in self.members.values() if member.owed is not None]

    def _left(self, member: Member) -> None:
        """The connection is over; the session may be, too."""
        self._take(member)
        member.peer = None
        member.ends_at = self.now + member.expiry_s
        if not member.expiry_s:
            member.owed = None

    def _expect(self, member: Member, topic: str, number: int, level: int) -> None:
        """Note a message for a client that has subscribed to it."""
        owed = member.owed
        granted = [] if owed is None else [q for f, q in owed.subscriptions.items() if f in (topic, "+")]
        if owed is None or not granted:
            return
        its_qos = min(level, max(granted))
        if its_qos:
            owed.expected[number] = its_qos
        elif member.peer is not None:
            owed.expected[number] = 0
            if member.peer.link.blocked:
                owed.may_be_lost.add(number)

    def _take(self, member: Member) -> None:
        """Look at what has come since the last time, as the client's end of QoS 2 does."""
        peer, owed = member.peer, member.owed
        if peer is None or owed is None:
            return
        for packet in peer.packets[member.read :]:
            if isinstance(packet, Publish):
                if packet.qos == 2 and packet.packet_id in owed.unreleased:
                    continue
                if packet.qos == 2:
                    owed.unreleased.add(packet.packet_id)
                owed.received.append((int(packet.payload[:6]), packet.qos))
            elif isinstance(packet, Pubrel):
                owed.unreleased.discard(packet.packet_id)
            elif isinstance(packet, Pubrec) and not peer.silent:
                owed.published.pop(packet.packet_id, None)
        member.read = len(peer.packets)
