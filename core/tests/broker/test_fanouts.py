"""The fan-outs that are remembered say what the index says now, whatever has changed since they were made."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from core_harness.house import House, Peer
from kinmqtt.broker.routing.fanout import Fanout
from kinmqtt.broker.routing.fanouts import (
    CACHED_TARGETS,
    DROPPED_AFTER_SWEEPS,
    INCREMENTAL_TARGETS,
    LARGE,
    MAX_CHANGES,
    MAX_COMPARISONS,
    MAX_REQUESTED_ONCE,
    REQUESTED_ONCE_TARGETS,
    Fanouts,
    _matches,
)
from kinmqtt.broker.routing.group_table import GroupTable
from kinmqtt.broker.routing.target import (
    DENIED,
    INDIVIDUAL,
    SHARED,
    UNKNOWN,
    SortedTargets,
    Target,
    delivery_path,
    merge,
)
from kinmqtt.broker.session.session import Session
from kinmqtt.mqtt.packets import V5, V311
from kinmqtt_spi import Properties, ReasonCode, Verdict, hookimpl
from kinmqtt_spi.services.authorization import Authorization, AuthorizationRequest, Cache, Scope
from kinmqtt_spi.topics import matches
from spi_harness.examples import examples

CLIENTS = st.sampled_from(["a", "b", "c", "d"])
TOPICS = ["t", "t/u", "t/u/v", "$d/t"]
FILTERS = st.sampled_from(
    ["t", "t/u", "#", "+", "t/#", "t/+", "+/u", "+/+/v", "u", "$d/t", "$d/#", "$d/+", "x/+", "x"]
)
GROUPS = st.sampled_from(["g", "h"])

FOR_GOOD = Authorization(Verdict.ALLOW, cache=Cache.TOPIC)
NEVER = Authorization(Verdict.DENY, ReasonCode.NOT_AUTHORIZED, "never", Cache.TOPIC)


class Censor:
    """Says for good whether a client may receive a topic."""

    def __init__(self) -> None:
        self.denied: set[tuple[str, str]] = set()

    @hookimpl
    def authorize_receive(self, request: AuthorizationRequest) -> Authorization:
        """Look it up."""
        return NEVER if (request.client.client_id, request.topic) in self.denied else FOR_GOOD


def told(target: Target | None) -> Any:
    """Everything that a target says, but which of several subscriptions of one QoS stands for all."""
    if target is None:
        return None
    return (
        id(target.session),
        target.qos,
        target.retain_as_published,
        target.no_local,
        sorted(target.identifiers),
        sorted(each.filter for each in target.subscriptions),
        told(target.own),
    )


def parts(fanout: Fanout) -> dict[str, int]:
    """By client id, how the messages reach it."""
    unknown = {session.client_id for session in fanout._unknown}
    found = {target.session.client_id: DENIED for target in fanout.targets}
    for version, sessions in fanout._shared:
        found |= {session.client_id: version for session in sessions}
    plain = {target.session.client_id for target in fanout._individual}
    found |= {client_id: UNKNOWN if client_id in unknown else INDIVIDUAL for client_id in plain}
    return found


def regard_as_large(house: House, large: int) -> None:
    """Have a broker keep fan-outs of that many targets up to date entry by entry."""
    broker = house.broker
    router = broker.router
    router.fanouts = Fanouts(
        broker.runtime, router.index, broker._session_of, router.groups._by_key, broker.forwarder, large
    )
    router.groups = GroupTable(router.groups._by_key, router.fanouts, router.announcer)
    broker.fanouts = broker.services.fanouts = router.fanouts


class RememberedFanouts(RuleBasedStateMachine):
    """A broker whose clients come, go, subscribe and publish at random."""

    large = LARGE
    censored = False

    @initialize()
    def begin(self) -> None:
        """Start a broker."""
        self.censor = Censor()
        self.house = House(plugins={"censor": self.censor} if self.censored else {})
        regard_as_large(self.house, self.large)
        self.peers: dict[str, Peer] = {}
        for client_id in "abcd":
            self.peers[client_id] = self.house.connect(client_id, V5, expiry_s=5).subscribe("t/#")
        self.publishers = [self.house.connect(f"publisher-{version}", version) for version in (V311, V5)]

    def peer(self, client_id: str) -> Peer:
        """A client, which comes back where it is not connected."""
        if self.peers[client_id].closed:
            self.peers[client_id] = self.house.connect(client_id, V5, clean_start=False, expiry_s=5)
        return self.peers[client_id]

    @rule(
        client_id=CLIENTS,
        version=st.sampled_from([V311, V5]),
        clean=st.booleans(),
        expiry_s=st.sampled_from([0, 5]),
        largest=st.sampled_from([None, 1000]),
        aliases=st.sampled_from([None, 3]),
    )
    def connect(
        self, client_id: str, version: int, clean: bool, expiry_s: int, largest: int | None, aliases: int | None
    ) -> None:
        """A client comes, or takes its session over; what it takes may be other than before."""
        present = {"maximum_packet_size": largest, "topic_alias_maximum": aliases}
        given: Any = {name: value for name, value in present.items() if value is not None}
        more: dict[str, Any] = {"properties": Properties(**given), "expiry_s": expiry_s} if version == V5 else {}
        self.peers[client_id] = self.house.connect(client_id, version, clean_start=clean, **more)

    @rule(client_id=CLIENTS, orderly=st.booleans())
    def leave(self, client_id: str, orderly: bool) -> None:
        """A client goes."""
        peer = self.peers[client_id]
        if not peer.closed:
            peer.disconnect() if orderly else peer.drop()

    @rule(
        client_id=CLIENTS,
        filter=FILTERS,
        qos=st.integers(0, 2),
        no_local=st.booleans(),
        as_published=st.booleans(),
        identifier=st.sampled_from([None, 1, 2]),
    )
    def subscribe(
        self, client_id: str, filter: str, qos: int, no_local: bool, as_published: bool, identifier: int | None
    ) -> None:
        """A client subscribes, or subscribes anew."""
        peer = self.peer(client_id)
        if peer.version != V5:
            peer.subscribe(filter, qos)
            return
        properties = Properties() if identifier is None else Properties(subscription_identifier=(identifier,))
        peer.subscribe(filter, qos, properties, no_local=no_local, retain_as_published=as_published)

    @rule(client_id=CLIENTS, filter=FILTERS, group=GROUPS, qos=st.integers(0, 2))
    def share(self, client_id: str, filter: str, group: str, qos: int) -> None:
        """A client becomes a member of a shared subscription."""
        self.peer(client_id).subscribe(f"$share/{group}/{filter}", qos)

    @rule(client_id=CLIENTS, filter=FILTERS, group=st.sampled_from(["", "$share/g/", "$share/h/"]))
    def unsubscribe(self, client_id: str, filter: str, group: str) -> None:
        """A client gives a filter up."""
        self.peer(client_id).unsubscribe(group + filter)

    @rule(topic=st.sampled_from(TOPICS), qos=st.integers(0, 1), number=st.integers(0, 1))
    def publish(self, topic: str, qos: int, number: int) -> None:
        """A message reaches exactly those who are to have it, by what connections and the broker remember."""
        broker = self.house.broker
        matches = broker.router.index.match(topic)
        wanted = {
            subscriber.client_id
            for subscriber in matches.subscribers
            if (subscriber.client_id, topic) not in self.censor.denied or not self.censored
        }
        before = {client_id: len(peer.messages) for client_id, peer in self.peers.items()}

        self.publishers[number].publish(topic, b"x", qos=qos)

        for client_id, peer in self.peers.items():
            if not peer.closed and not matches.groups:
                assert len(peer.messages) - before[client_id] == (client_id in wanted), (client_id, topic)

    @rule(client_id=CLIENTS, topic=st.sampled_from(TOPICS))
    def publish_oneself(self, client_id: str, topic: str) -> None:
        """A subscriber publishes, too."""
        self.peer(client_id).publish(topic, b"x")

    @rule(seconds=st.integers(1, 12))
    def wait(self, seconds: int) -> None:
        """Sessions expire, and what nobody wants is forgotten."""
        self.house.advance(seconds)

    @precondition(lambda self: self.censored)
    @rule(client_id=CLIENTS, topic=st.sampled_from(TOPICS), one=st.booleans())
    def change_rights(self, client_id: str, topic: str, one: bool) -> None:
        """The rules of one client, or of all, are others than before."""
        self.censor.denied ^= {(client_id, topic)}
        session = self.house.broker.sessions.get(client_id)
        if one and session is not None:
            session.receive_rights = None
            self.house.broker.router.changed(session)
        else:
            self.house.broker.authorization_changed(Scope())

    @rule()
    def invalidate(self) -> None:
        """Whatever is remembered may be wrong."""
        self.house.broker.router.invalidate()

    @invariant()
    def what_is_remembered_is_what_the_index_says(self) -> None:
        """Targets, their parts, groups and their members."""
        broker = self.house.broker
        for topic in TOPICS:
            fanout = broker.fanouts.get(topic)
            matches = broker.router.index.match(topic)
            fresh = {target.session.client_id: target for target in merge(matches.subscribers, broker._session_of)}

            assert {t.session.client_id: told(t) for t in fanout.targets} == {
                client_id: told(target) for client_id, target in fresh.items()
            }
            wanted = {id: delivery_path(broker.runtime, target, topic, False) for id, target in fresh.items()}
            # What was found out since is taken over with the next message, which asks those that are not known.
            assert {id: part for id, part in parts(fanout).items() if part != UNKNOWN or wanted[id] == UNKNOWN} == {
                id: part for id, part in wanted.items() if parts(fanout)[id] != UNKNOWN or part == UNKNOWN
            }
            assert {target.session.client_id for target in fanout._served} == {
                id for id, part in parts(fanout).items() if part != DENIED
            }
            groups = {(group.name, group.filter): group for group in fanout.groups}
            assert groups.keys() == matches.groups.keys()
            for key, members in matches.groups.items():
                group = groups[key]
                assert group.members == {member.client_id: member for member in members}
                connected = [m for m in group.members.values() if broker.client(m.client_id) is not None]
                assert list(group.candidates) == (connected or list(group.members.values()))
                assert group._connected == {member.client_id for member in connected}
            assert fanout.is_simple == (
                bool(fresh)
                and not groups
                and len(set(parts(fanout).values()) - {DENIED}) == 1
                and (set(parts(fanout).values()) - {DENIED}) <= {SHARED, V5}
            )

    def teardown(self) -> None:
        """Nothing of those who are gone is left in the book-keeping."""
        if not hasattr(self, "house"):
            return
        for peer in self.peers.values():
            if not peer.closed:
                peer.send_bytes(b"\xe0\0")
        self.house.advance(8)
        router = self.house.broker.router
        if not self.house.broker.sessions.by_id.keys() - {"publisher-4", "publisher-5"}:
            assert (router.groups._by_key, router.groups._keys_of, router.announcer._routes) == ({}, {}, {})


class LargeFanouts(RememberedFanouts):
    """The same with fan-outs that are kept up to date entry by entry."""

    large = 2


class CensoredFanouts(RememberedFanouts):
    """The same where rights to receive are remembered, too."""

    large = 2
    censored = True


class CensoredSmallFanouts(RememberedFanouts):
    """The same with small fan-outs."""

    censored = True


for each in (RememberedFanouts, LargeFanouts, CensoredFanouts, CensoredSmallFanouts):
    each.TestCase.settings = settings(max_examples=examples(80), stateful_step_count=40, deadline=None)

TestRememberedFanouts = RememberedFanouts.TestCase
TestLargeFanouts = LargeFanouts.TestCase
TestCensoredFanouts = CensoredFanouts.TestCase
TestCensoredSmallFanouts = CensoredSmallFanouts.TestCase


# What a change touches


class Remembering(House):
    """A broker, and the fan-outs that it had when that was noted down."""

    before: dict[str, Fanout]


@pytest.fixture
def house() -> Remembering:
    """A broker with a subscriber of everything, and fan-outs of three topics."""
    house = Remembering()
    house.connect("all").subscribe("#")
    for topic in ("a", "a/b", "c"):
        house.broker.fanouts.get(topic)
    return house


def kept(house: Remembering, *topics: str) -> list[bool]:
    """Whether the fan-outs of some topics are those that they were before what is done meanwhile."""
    return [house.broker.fanouts.get(topic) is house.before[topic] for topic in topics]


def remember(house: Remembering) -> Remembering:
    """Note down the fan-outs that there are."""
    house.before = house.broker.fanouts.cached
    return house


@pytest.mark.parametrize(
    ("filter", "wanted"),
    [
        ("a", [False, True, True]),
        ("x", [True, True, True]),
        ("a/+", [True, False, True]),
        ("a/#", [False, False, True]),
        ("+", [False, True, False]),
        ("$d/#", [True, True, True]),
        ("$share/g/a", [False, True, True]),
        ("$share/g/+", [False, True, False]),
    ],
)
def test_a_subscription_makes_stale_what_it_touches(house: Remembering, filter: str, wanted: list[bool]) -> None:
    """Other topics keep their fan-outs, when a subscription comes and when it goes."""
    client = house.connect("c")
    remember(house)

    client.subscribe(filter)
    coming = kept(house, "a", "a/b", "c")
    remember(house)
    client.unsubscribe(filter)
    going = kept(house, "a", "a/b", "c")

    assert coming == going == wanted


def test_a_second_member_of_a_shared_subscription_makes_nothing_stale(house: Remembering) -> None:
    """Who its members are is the group's own matter."""
    house.connect("c").subscribe("$share/g/a")
    house.broker.fanouts.get("a")
    remember(house)

    house.connect("d").subscribe("$share/g/a").drop()

    assert kept(house, "a", "a/b", "c") == [True, True, True]


def test_a_client_that_comes_back_as_it_was_makes_nothing_stale(house: Remembering) -> None:
    """Only where its packets are others than before is it sorted anew, in the fan-outs that hold it."""
    house.connect("c", V5, expiry_s=60).subscribe("a").drop()
    house.connect("c", V5, expiry_s=60, clean_start=False).drop()
    for topic in ("a", "c"):
        house.broker.fanouts.get(topic)

    remember(house)
    back = house.connect("c", V5, expiry_s=60, clean_start=False)
    same = kept(house, "a", "c")
    back.drop()
    small = Properties(maximum_packet_size=500)
    house.connect("c", V5, expiry_s=60, clean_start=False, properties=small)
    other = kept(house, "a", "c")

    assert same == [True, True]
    assert other == [False, True]


def fanout_of(peer: Peer, topic: bytes) -> Fanout | None:
    """The fan-out that a connection remembers of a topic."""
    routes = peer.connection.routes
    assert routes is not None
    return routes[topic].fanout


def test_a_subscription_elsewhere_leaves_the_short_way_open() -> None:
    """What a connection remembers of a topic stands while others subscribe to other topics."""
    house = House()
    sub = house.connect("sub").subscribe("t")
    pub = house.connect("pub").publish("t", b"1").publish("t", b"2")
    other = house.connect("other")
    fanout = fanout_of(pub, b"t")

    other.subscribe("u").subscribe("v/+").unsubscribe("v/+")
    pub.publish("t", b"3")

    assert fanout_of(pub, b"t") is fanout
    assert len(sub.messages) == 3


LEVELS = st.sampled_from(["a", "b", "+", "$s", ""])
FILTER = st.builds(
    lambda levels, many: "/".join([*levels, "#"] if many else levels),
    st.lists(LEVELS, min_size=1, max_size=4),
    st.booleans(),
)


@given(FILTER, st.lists(st.sampled_from(["a", "b", "$s", ""]), min_size=1, max_size=4).map("/".join))
def test_changes_are_compared_as_filters_match(filter: str, topic: str) -> None:
    """What a noted change touches is what its filter matches (section 4.7)."""
    assert _matches(filter.split("/"), topic.split("/")) == matches(filter, topic)


# Large ones


def test_a_large_fanout_is_not_put_together_anew() -> None:
    """Who subscribes to a topic that very many have, or leaves it, is one entry: the index is not asked."""
    house = House()
    regard_as_large(house, 10)
    broker = house.broker
    broker.fanouts.get("t")
    peers = [house.connect(f"c{n}", V5).subscribe("t") for n in range(12)]
    broker.fanouts.get("t")  # The first that is large, and that one is put together without entries.
    peers[0].unsubscribe("t")
    peers[0].subscribe("t")
    pub = house.connect("pub", V5).publish("t", b"1")
    asked: list[str] = []
    index = broker.router.index

    class Asked(type(index)):  # type: ignore[misc]
        def match(self, topic: str) -> Any:
            asked.append(topic)
            return super().match(topic)

    index.__class__ = Asked
    late = house.connect("late", V311).subscribe("t", 1)
    wild = house.connect("wild", V5).subscribe("+")
    peers[0].unsubscribe("t")
    peers[1].drop()
    pub.publish("t", b"2")
    index.__class__ = Asked.__base__

    assert "t" not in asked
    assert [len(peer.messages) for peer in (late, wild, *peers[:3])] == [1, 1, 1, 1, 2]
    assert len(broker.fanouts.get("t").targets) == 12


def test_a_large_fanout_that_became_small_is_one_of_the_small() -> None:
    """When most are gone it is put together anew."""
    house = House()
    regard_as_large(house, 10)
    peers = [house.connect(f"c{n}").subscribe("t") for n in range(11)]
    house.broker.fanouts.get("t")
    peers.pop().unsubscribe("t")
    house.broker.fanouts.get("t")
    before = len(house.broker.fanouts._incremental)

    for peer in peers[:6]:
        peer.unsubscribe("t")
    fanout = house.broker.fanouts.get("t")

    assert (before, len(house.broker.fanouts._incremental)) == (1, 0)
    assert len(fanout.targets) == 4


def test_large_fanouts_are_bounded_together() -> None:
    """The oldest give way; a client with many topics does not hold them all."""
    house = House()
    regard_as_large(house, 10)
    for n in range(200):
        house.connect(f"c{n}").subscribe("#")
    comes = house.connect("comes")
    fanouts = house.broker.fanouts

    for number in range(CACHED_TARGETS // 2 // 200 + 10):
        fanouts.get(f"t/{number}")
        comes.subscribe(f"t/{number}").unsubscribe(f"t/{number}")
        fanouts.get(f"t/{number}")

    assert 0 < sum(map(len, fanouts._incremental.values())) <= INCREMENTAL_TARGETS
    assert len(fanouts) == len(fanouts._incremental)


def test_a_topic_that_is_wanted_once_leaves_nothing_large() -> None:
    """Each message to a topic of its own: few of their fan-outs are remembered, and none is kept up to date."""
    house = House()
    regard_as_large(house, 10)
    sub = house.connect("c0").subscribe("#")
    for n in range(1, 20):
        house.connect(f"c{n}").subscribe("#")
    pub = house.connect("pub")

    for number in range(50):
        pub.publish(f"t/{number}")

    assert len(sub.messages) == 50
    assert len(house.broker.fanouts) == MAX_REQUESTED_ONCE
    assert not house.broker.fanouts._incremental


def test_many_changes_elsewhere_do_not_slow_a_message_to_very_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large fan-out nobody looks through the targets for each session that may be among them."""
    house = House()
    regard_as_large(house, 10)
    looked: list[str] = []
    has_client = Fanout.has_client

    def look(fanout: Fanout, client_id: str) -> bool:
        looked.append(client_id)
        return has_client(fanout, client_id)

    monkeypatch.setattr(Fanout, "has_client", look)
    for n in range(20):
        house.connect(f"c{n}").subscribe("#")
    fanouts = house.broker.fanouts

    for number in range(10):
        fanouts.changed(f"other{number}")
        fanout = fanouts.get("t")
        fanouts.changed("another")
        fanouts.is_current(fanout)

    assert not looked
    assert list(fanouts._incremental) == ["t"]


def test_large_fanouts_of_topics_wanted_once_leave_the_small_ones_alone() -> None:
    """They have a part of their own of what is remembered."""
    house = House()
    regard_as_large(house, 10)
    fanouts = house.broker.fanouts
    house.connect("small").subscribe("small/+")
    small = [fanouts.get(f"small/{number}") for number in range(100)]
    large = [Fanout(house.broker.runtime, fanouts.generation, f"large/{n}", SortedTargets(()), ()) for n in range(3)]
    for each in large:
        each.targets = small[0].targets * (REQUESTED_ONCE_TARGETS // 2 + 1)
        fanouts._cache_once(each.topic, each)

    assert all(fanouts.get(f"small/{number}") is each for number, each in enumerate(small))
    assert [each.topic for each in large if each.targets] == ["large/2"]


# Bounds


def test_a_fanout_that_was_not_wanted_for_long_is_put_together_anew(house: Remembering) -> None:
    """Of more changes than are noted nobody can say whether they touched it."""
    client = house.connect("c")
    remember(house)

    for number in range(MAX_COMPARISONS // 2):
        client.subscribe(f"x/{number}/+")
    some = kept(house, "a")
    for number in range(MAX_CHANGES + 10):
        client.subscribe(f"y/{number}/+")
    many = kept(house, "a", "c")

    assert some == [True]
    assert many == [False, False]


def test_sessions_that_are_gone_are_not_held() -> None:
    """Neither what is remembered of topics nor what connections remember of them holds a session that has ended."""
    house = House()
    topics = [f"t/{number}" for number in range(5)]
    pub = house.connect("pub")
    peers = [house.connect(f"gone-{n}").subscribe("+/+") for n in range(3)]
    peers.append(house.connect("gone-3").subscribe("t/1"))
    for topic in topics:
        pub.publish(topic)

    for peer in peers:
        peer.drop()
    house.advance(DROPPED_AFTER_SWEEPS + 2)
    house.peers.clear()
    peers.clear()
    del peer
    gc.collect()

    held = [each for each in gc.get_objects() if isinstance(each, Session) and each.client_id.startswith("gone-")]
    assert held == []
    assert len(house.broker.fanouts) == 0


def test_what_is_wanted_is_not_forgotten() -> None:
    """A topic that is published to keeps its fan-out while others subscribe and wait."""
    house = House()
    house.connect("sub").subscribe("+")
    pub = house.connect("pub").publish("t")
    other = house.connect("other")
    fanout = house.broker.fanouts.get("t")

    for number in range(DROPPED_AFTER_SWEEPS + 5):
        other.subscribe(f"x/{number}/+")
        pub.publish("t")
        house.advance(1)

    assert house.broker.fanouts.get("t") is fanout
