"""What clients hold of what all share: bounds in bytes, a share for each user, and accounts that are right."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from core_harness.house import House, Peer
from core_harness.stores import Failing
from kinmqtt.broker.session.memory_queue import MemoryQueue
from kinmqtt.broker.session.session import FLIGHT_BYTES, INBOUND_BYTES
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import V5, V31, V311, Connack, Puback, Publish, Pubrec, Suback, Subscribe, SubscribeRequest
from kinmqtt.settings import BrokerSettings
from kinmqtt_spi import ALLOW, Client, Decision, Message, Properties, Subscription, Will, hookimpl
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authentication import ConnectRequest
from kinmqtt_spi.services.queue import Entry
from kinmqtt_spi.services.retain import retained_bytes
from spi_harness.examples import examples

QUOTA = 0x97
ONE = Subscription("0").size_bytes
"""What a subscription to a filter of one character counts for."""
WILL = Will(Message("w", b"x"), 0)
WILL_BYTES = WILL.message.size_bytes


class Users:
    """Vouches for everybody, by whatever user name."""

    @hookimpl
    def authenticate(self, request: ConnectRequest) -> Decision:
        return ALLOW


def granted(peer: Peer, *filters: str) -> list[int]:
    """What a client is answered that subscribes to some filters, one after the other."""
    return [code for filter in filters for code in peer.subscribe(filter).granted]


def subscription_bytes(house: House) -> int:
    """What all subscriptions count for."""
    return house.broker.runtime.accounts.all.subscription_bytes


def will_bytes(house: House) -> int:
    """What all wills count for."""
    return house.broker.runtime.accounts.all.will_bytes


def check_accounts(house: House) -> None:
    """Compare what is counted with what there is."""
    runtime = house.broker.runtime
    users: dict[str, list[int]] = {}
    waiting = 0
    for client_id, session in house.broker.sessions.by_id.items():
        subscriptions = sum(each.size_bytes for each in session.subscriptions.values())
        will = 0 if session.will is None else session.will.message.size_bytes
        if isinstance(session.queue, MemoryQueue):
            queued = sum(each.size_bytes for each in session.queue.deliveries)
        else:
            queued = runtime.stores.queue.sizes(client_id).queued_bytes
            waiting += runtime.stores.queue.sizes(client_id).queued
        assert session.queue.size_bytes == queued
        if session.connection is not None:
            queued += sum(each.large_bytes for _, each in session.outgoing)
        elif session.persistent:
            queued += sum(FLIGHT_BYTES + each.size_bytes for _, each in session.outgoing)
            queued += INBOUND_BYTES * len(session.incoming.packet_ids)
        assert (session.subscription_bytes, session.will_bytes, session.queued_bytes) == (subscriptions, will, queued)
        user = users.setdefault(session.client.quota_key, [0, 0, 0, 0, 0])
        for place, more in enumerate((1, int(session.persistent), subscriptions, will, queued)):
            user[place] += more
    accounts = runtime.accounts
    held = {
        name: [each.users, each.sessions, each.subscription_bytes, each.will_bytes, each.queued_bytes]
        for name, each in ((name, accounts.of(name)) for name in users)
        if each is not None
    }
    assert held == users
    assert len(accounts) == len(users)
    everybody = accounts.all
    together = [sum(user[place] for user in users.values()) for place in (1, 2, 3)]
    assert [everybody.sessions, everybody.subscription_bytes, everybody.will_bytes] == together
    assert runtime.queued.size_bytes == sum(user[4] for user in users.values())
    assert house.broker.router.index.count() == sum(
        len(session.subscriptions) for session in house.broker.sessions.by_id.values()
    )


# Subscriptions


@pytest.mark.parametrize(("version", "told"), [(V31, 0x80), (V311, 0x80), (V5, QUOTA)])
def test_the_subscriptions_of_a_client_are_bounded_in_bytes(version: int, told: int) -> None:
    """Those that fit are granted, the next is not; another client has its own, and one that goes makes room."""
    house = House(max_subscription_bytes=3 * ONE)
    client = house.connect("c", version)

    answers = granted(client, "0", "1", "2", "3")
    client.unsubscribe("1")
    again = granted(client, "0", "4", "5")

    assert answers == [0, 0, 0, told]
    assert again == [0, 0, told]
    assert granted(house.connect("d", version), "0", "1", "2", "3") == answers
    assert subscription_bytes(house) == 6 * ONE


@pytest.mark.parametrize(
    "filter", ["0" * 1001, "/".join("0" * 10), "$share/g/0", "$share/" + "g" * 1000 + "/0", "\u4e2d" * 250, "+/" * 9]
)
def test_what_a_filter_takes_counts(filter: str) -> None:
    """Long ones, deep ones and those of groups are fewer than others."""
    subscription = Subscription(filter) if filter[0] != "$" else Subscription("0", share_group=filter.split("/")[1])
    size_bytes = subscription.size_bytes
    house = House(max_subscription_bytes=size_bytes + ONE)

    answers = granted(house.connect("c", V5), filter, "1", "2")

    assert size_bytes > ONE
    assert answers == [0, 0, QUOTA]
    assert subscription_bytes(house) == size_bytes + ONE


def test_a_subscription_in_place_of_another_takes_no_more() -> None:
    """At the bound a client may still ask for another QoS or other options."""
    house = House(max_subscription_bytes=2 * ONE)
    client = house.connect("c", V5)
    granted(client, "0", "1")

    answers = [client.subscribe("0", qos=qos, no_local=True).granted for qos in (1, 2)]

    assert answers == [[1], [2]]
    assert subscription_bytes(house) == 2 * ONE


def test_one_packet_can_not_step_over_the_bound() -> None:
    """Each filter of a SUBSCRIBE is answered by itself, and what was granted stands."""
    house = House(max_subscription_bytes=3 * ONE)
    client = house.connect("c", V5)

    client.send(Subscribe(1, tuple(SubscribeRequest(f"{number}") for number in range(6))))

    assert client.granted == [0, 0, 0, QUOTA, QUOTA, QUOTA]
    assert house.broker.router.index.count() == 3


def test_the_subscriptions_of_all_clients_are_bounded_in_bytes() -> None:
    """Whoever asks for one more is refused, and what ends in whatever way makes room."""
    house = House(max_all_subscription_bytes=4 * ONE, user_share=1)
    one, other = house.connect("a", V5), house.connect("b", V5, expiry_s=5)
    answers = granted(one, "0", "1") + granted(other, "0", "1") + granted(one, "2")

    one.drop()
    after_drop = granted(other, "2", "3", "4")
    other.drop()
    full = granted(house.connect("c", V5), "0")
    house.advance(8)
    after_expiry = granted(house.connect("d", V5), "0", "1", "2", "3", "4")

    assert answers == [0, 0, 0, 0, QUOTA]
    assert after_drop == [0, 0, QUOTA]
    assert full == [QUOTA]
    assert after_expiry == [0, 0, 0, 0, QUOTA]


def test_one_user_leaves_room_for_others() -> None:
    """However many client ids it comes under, it takes its share, and no more; another user has what is left."""
    house = House(plugins={"users": Users()}, max_all_subscription_bytes=8 * ONE)
    greedy = [house.connect(f"g{number}", V5, username="greedy") for number in range(6)]

    taken = [granted(peer, "0")[0] for peer in greedy]
    other = granted(house.connect("b", V5, username="other"), "0", "1", "2", "3", "4")

    assert taken == [0, 0, 0, 0, QUOTA, QUOTA]
    assert other == [0, 0, 0, 0, QUOTA]


def test_who_is_anonymous_counts_by_its_address() -> None:
    """Whatever user names it makes up: nobody has checked them."""
    house = House(max_all_subscription_bytes=8 * ONE)

    here = [granted(house.connect(f"c{number}", V5, username=f"u{number}"), "0")[0] for number in range(5)]
    there = granted(house.connect("d", V5, host="198.51.100.1"), "0")

    assert here == [0, 0, 0, 0, QUOTA]
    assert there == [0]


def test_a_single_client_takes_little_of_what_all_share() -> None:
    """By the defaults the bound of one is far below what there is for all."""
    limits = House().broker.runtime.limits

    assert limits.max_subscription_bytes * 64 <= limits.max_all_subscription_bytes
    assert limits.max_will_bytes * 1000 <= limits.max_all_will_bytes
    assert limits.max_subscription_bytes < limits.share_of(limits.max_all_subscription_bytes)


class Giving:
    """Subscribes each client to some filters."""

    @hookimpl
    def initial_subscriptions(self, client: Client) -> list[Subscription]:
        return [Subscription("g0"), Subscription("g1")]


def test_subscriptions_that_plugins_make_count_and_are_not_refused() -> None:
    """They are the operator's; what the client asks for on top of them is bounded."""
    house = House(plugins={"giving": Giving()}, max_subscription_bytes=1024)

    client = house.connect("c", V5)

    assert len(house.broker.sessions.by_id["c"].subscriptions) == 2
    assert granted(client, "0") == [QUOTA]
    check_accounts(house)


def test_what_is_refused_is_counted_and_told_once() -> None:
    """By the name of the bound; the log has a line for each connection, and not for each filter."""
    house = House(max_subscription_bytes=2 * ONE)
    client = house.connect("c", V5)

    granted(client, "0", "1", "2", "3")

    refused = house.broker.runtime.statistics.subscriptions_refused
    assert {bound: counter.value for bound, counter in refused.items() if counter.value} == {
        "max_subscription_bytes": 2
    }
    assert client.connection.limited_by == {"limits.max_subscription_bytes"}


# Wills


@pytest.mark.parametrize(("version", "told"), [(V311, 0x88), (V5, QUOTA)])
def test_the_will_of_a_client_is_bounded_in_bytes(version: int, told: int) -> None:
    """One at the bound is taken, with a byte more the client is not let in (return code 3 before MQTT 5)."""
    house = House(max_will_bytes=WILL_BYTES + 9)

    fits = house.connect("a", version, will=Will(Message("w", b"x" * 10), 0))
    over = house.connect("b", version, will=Will(Message("w", b"x" * 11), 0))

    assert fits.connack.reason is ReasonCode.SUCCESS
    assert (over.of(Connack)[0].reason, over.closed) == (told, True)
    assert will_bytes(house) == WILL_BYTES + 9


def test_properties_count_in_a_will() -> None:
    """Very many empty ones make a large will of one that is small on the wire."""
    house = House()
    many = Properties(user_property=(("", ""),) * 10_000)

    refused = house.connect("a", V5, will=Will(Message("w", b"x", properties=many), 0))

    assert refused.connack.reason == QUOTA
    check_accounts(house)


@pytest.mark.parametrize(("version", "told"), [(V311, 0x88), (V5, QUOTA)])
def test_the_wills_of_all_clients_are_bounded_in_bytes(version: int, told: int) -> None:
    """Who has none is let in all the same, and so is who has one already; what falls away makes room."""
    house = House(max_all_will_bytes=2 * WILL_BYTES, user_share=1)
    first = house.connect("a", version, will=WILL)
    house.connect("b", version, will=WILL)

    over = house.connect("c", version, will=WILL)
    plain = house.connect("d", version)
    again = house.connect("b", version, will=WILL)
    first.disconnect()
    late = house.connect("e", version, will=WILL)

    assert over.of(Connack)[0].reason == told
    assert [peer.closed for peer in (plain, again, late)] == [False, False, False]
    assert will_bytes(house) == 2 * WILL_BYTES
    assert "c" not in house.broker.sessions.by_id


def test_a_will_that_is_not_due_yet_counts() -> None:
    """Its client is gone, and it is held all the same; once it is published it counts no more (section 3.1.3.2.2)."""
    house = House(max_all_will_bytes=2 * WILL_BYTES, user_share=1)
    for name in "ab":
        house.connect(name, V5, expiry_s=600, will=Will(WILL.message, 60)).drop()

    early = house.connect("c", V5, will=WILL)
    held = will_bytes(house)
    house.advance(61)
    late = house.connect("d", V5, will=WILL)

    assert (early.connack.reason, held) == (QUOTA, 2 * WILL_BYTES)
    assert late.connack.reason is ReasonCode.SUCCESS
    assert will_bytes(house) == WILL_BYTES
    check_accounts(house)


def test_a_will_that_a_store_could_not_keep_counts_until_it_does() -> None:
    """Its session is gone, and it is tried again every second."""
    failing = Failing()
    house = House(plugins={"failing": failing})
    house.connect("s", V5, expiry_s=600).subscribe("w", qos=1).drop()
    client = house.connect("c", V5, will=Will(Message("w", b"x", 1), 0))

    failing.refuses = lambda write: True
    client.drop()
    house.advance(3)
    meanwhile = will_bytes(house)
    failing.refuses = lambda write: False
    house.advance(3)

    assert (meanwhile, will_bytes(house)) == (WILL_BYTES, 0)


def test_the_wills_of_one_user_leave_room_for_others() -> None:
    """A user under many client ids takes its share of what wills may take."""
    house = House(plugins={"users": Users()}, max_all_will_bytes=8 * WILL_BYTES)

    greedy = [house.connect(f"g{number}", V5, username="greedy", will=WILL).closed for number in range(6)]
    other = house.connect("o", V5, username="other", will=WILL)

    assert greedy == [False] * 4 + [True] * 2
    assert not other.closed


# Sessions and queues


def test_the_sessions_of_one_user_leave_room_for_others() -> None:
    """One that comes under ever new client ids takes its share; a session that is there may be used, or replaced."""
    house = House(plugins={"users": Users()}, max_sessions=8)
    for number in range(4):
        house.connect(f"g{number}", V5, username="greedy", expiry_s=60).drop()

    over = house.connect("g4", V5, username="greedy", expiry_s=60)
    plain = house.connect("g5", V5, username="greedy")
    again = house.connect("g0", V5, username="greedy", expiry_s=60)
    other = house.connect("o", V5, username="other", expiry_s=60)
    house.connect("g1", V5, username="greedy").disconnect()
    freed = house.connect("g6", V5, username="greedy", expiry_s=60)

    assert over.connack.reason == QUOTA
    assert [peer.connack.reason for peer in (plain, again, other, freed)] == [0, 0, 0, 0]
    check_accounts(house)


def test_the_queues_of_one_user_leave_room_for_others() -> None:
    """A subscriber with many sessions that are away fills its share, and another's messages are queued still."""
    one_bytes = Entry(1, Message("t", b"x" * 100), 1).size_bytes
    house = House(plugins={"users": Users()}, max_all_queued_bytes=20 * one_bytes)
    for number in range(4):
        house.connect(f"g{number}", V5, username="greedy", expiry_s=60).subscribe("t", 1).drop()
    house.connect("o", V5, username="other", expiry_s=60).subscribe("t", 1).drop()
    pub = house.connect("p", V5, username="pub")

    for _ in range(5):
        pub.publish("t", b"x" * 100, qos=1)

    sizes = {name: session.queue.count for name, session in house.broker.sessions.by_id.items()}
    assert sum(sizes[f"g{number}"] for number in range(4)) == 10
    assert sizes["o"] == 5
    check_accounts(house)


def test_a_session_that_another_user_takes_counts_for_that_one() -> None:
    """What it holds goes along, and the account of who had it is closed."""
    settings = BrokerSettings(sys_interval_s=0, client_id_reuse="anybody")
    house = House(plugins={"users": Users()}, settings=settings, max_inflight=1)
    house.connect("c", V5, username="one", expiry_s=60, will=WILL).subscribe("t", 1).drop()
    pub = house.connect("p", V5, username="pub")
    for _ in range(3):
        pub.publish("t", b"x", qos=1)

    house.connect("c", V5, username="two", expiry_s=60, clean_start=False, silent=True)

    accounts = house.broker.runtime.accounts
    assert accounts.of("user one") is None
    account = accounts.of("user two")
    assert account is not None
    assert (account.sessions, account.subscription_bytes > 0, account.queued_bytes > 0) == (1, True, True)
    check_accounts(house)


def test_identifiers_that_a_client_keeps_count_while_it_is_away() -> None:
    """One that sends QoS 2 and never releases it is held for each of its sessions (section 4.3.3)."""
    house = House()
    client = house.connect("c", V311, clean_start=False, silent=True)
    for number in range(1, 101):
        client.publish("t", b"", qos=2, packet_id=number)

    client.drop()
    held = house.broker.runtime.queued.size_bytes
    house.connect("c", V311).disconnect()

    assert held == 100 * INBOUND_BYTES
    assert house.broker.runtime.queued.size_bytes == 0


# Retained messages


def retains(peer: Peer, *messages: tuple[str, bytes]) -> list[int]:
    """What a publisher is told of messages to retain, one after the other; that nobody wants them is a success."""
    before = len(peer.of(Puback))
    for topic, payload in messages:
        peer.publish(topic, payload, qos=1, retain=True)
    return [0 if packet.reason == 0x10 else int(packet.reason) for packet in peer.of(Puback)[before:]]


def test_what_one_user_retains_leaves_room_for_others() -> None:
    """Under whatever client ids it has its share of the topics; one that it has may get another message."""
    house = House(plugins={"users": Users()}, max_retained_messages=8)
    one = [house.connect(f"g{number}", V5, username="greedy") for number in range(3)]
    taken = [retains(peer, (f"{number}/a", b"x"), (f"{number}/b", b"x")) for number, peer in enumerate(one)]

    again = retains(one[2], ("0/a", b"y"))
    other = retains(house.connect("o", V5, username="other"), ("o/a", b"x"))
    freed = retains(one[0], ("0/b", b""), ("2/a", b"x"), ("2/b", b"x"))

    assert taken == [[0, 0], [0, 0], [QUOTA, QUOTA]]
    assert (again, other, freed) == ([0], [0], [0, 0, QUOTA])


def test_the_bytes_of_what_one_user_retains_leave_room_for_others() -> None:
    """One that is larger is refused, one that is not is taken."""
    one_bytes = retained_bytes(Message("a", b"x" * 1000))
    house = House(plugins={"users": Users()}, max_retained_bytes=4 * one_bytes)
    greedy = house.connect("g", V5, username="greedy")

    taken = retains(greedy, *((topic, b"x" * 1000) for topic in "abc"), ("a", b"x" * 1001), ("a", b"x" * 999))
    other = retains(house.connect("o", V5, username="other"), ("o", b"x" * 1000))

    assert (taken, other) == ([0, 0, QUOTA, QUOTA, 0], [0])


def test_one_read_can_not_step_over_the_share_of_what_is_retained() -> None:
    """What comes in one turn counts before the store has it, for each user by itself."""
    house = House(plugins={"users": Users()}, max_retained_messages=8)
    greedy = house.connect("g", V5, username="greedy")
    packets = [Publish.build(topic, b"x", qos=1, packet_id=n, retain=True) for n, topic in enumerate("abcdef", 1)]

    greedy.send_bytes(b"".join(encode(packet, V5) for packet in packets))

    assert [int(packet.reason) for packet in greedy.of(Puback)] == [0x10] * 4 + [QUOTA] * 2
    assert house.broker.runtime.stores.retain.count() == 4


def test_what_is_retained_without_a_user_name_has_the_room_there_is() -> None:
    """Of such messages no store knows whose they are."""
    house = House(max_retained_messages=8)

    assert retains(house.connect("c", V5), *((f"{number}", b"x") for number in range(9))) == [0] * 8 + [QUOTA]


# Large messages in flight


LARGE = b"x" * 20_000
LARGE_BYTES = Entry(1, Message("t", LARGE), 1).size_bytes


@pytest.mark.parametrize("kept", [False, True], ids=["here", "kept"])
@pytest.mark.parametrize("qos", [1, 2])
def test_large_messages_in_flight_are_bounded_in_bytes(kept: bool, qos: int) -> None:
    """Who takes them and does not acknowledge is sent no more, and the rest waits in its queue."""
    house = House(max_inflight_bytes=3 * LARGE_BYTES)
    sub = house.connect("s", V5, expiry_s=60 if kept else 0, silent=True).subscribe("t", qos)
    pub = house.connect("p", V5)

    for _ in range(6):
        pub.publish("t", LARGE, qos=qos)
    sent = len(sub.messages)
    held = house.broker.runtime.queued.size_bytes
    sub.send(Puback(1) if qos == 1 else Pubrec(1))
    after = len(sub.messages)

    assert (sent, after) == (3, 4)
    assert held == 6 * LARGE_BYTES
    check_accounts(house)
    sub.drop()
    check_accounts(house)


def test_one_large_message_is_sent_in_any_case() -> None:
    """It may be larger than all that may be in flight."""
    house = House(max_inflight_bytes=1024)
    sub = house.connect("s", V5).subscribe("t", 1)
    pub = house.connect("p", V5)

    for _ in range(3):
        pub.publish("t", LARGE, qos=1)

    assert len(sub.messages) == 3
    assert house.broker.runtime.queued.size_bytes == 0


def test_properties_make_a_message_large() -> None:
    """A message of one byte with very many of them is held with all of them."""
    many = Properties(user_property=(("", ""),) * 1000)
    house = House(
        max_user_properties=1000,
        max_inflight_bytes=3 * Entry(1, Message("t", b"x", properties=many), 1).size_bytes,
    )
    sub = house.connect("s", V5, silent=True).subscribe("t", 1)
    pub = house.connect("p", V5)

    for _ in range(6):
        pub.publish("t", b"x", qos=1, properties=many)

    assert len(sub.messages) == 3
    check_accounts(house)


def test_of_a_released_message_nothing_is_held() -> None:
    """After PUBREC only the packet identifier matters: the message is forgotten, and PUBREL is sent again."""
    house = House()
    sub = house.connect("s", V5, expiry_s=60, silent=True).subscribe("t", 2)
    house.connect("p", V5).publish("t", LARGE, qos=2)

    sub.send(Pubrec(1))
    [(_, delivery)] = list(house.broker.sessions.by_id["s"].outgoing)
    sub.drop()
    back = house.connect("s", V5, expiry_s=60, clean_start=False)

    assert delivery.publication.publish.payload == b""
    assert back.of(Publish) == []
    assert house.broker.runtime.queued.size_bytes == 0
    check_accounts(house)


def test_what_is_in_flight_to_who_is_away_is_held_once() -> None:
    """The packet it came in, and what was encoded of it, are not."""
    house = House()
    house.connect("s", V5, expiry_s=60, silent=True).subscribe("t", 1)
    house.connect("p", V5).publish("t", LARGE, qos=1)

    house.peers[0].drop()
    [(_, delivery)] = list(house.broker.sessions.by_id["s"].outgoing)
    back = house.connect("s", V5, expiry_s=60, clean_start=False)

    publication = delivery.publication
    assert publication.publish.frame is publication.stored.payload
    assert back.messages == [("t", LARGE, 1)]


# Restarts


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory."""
    return tmp_path / "data"


def opened(data: Path | None, clock: TurnableClock | None = None, **limits: Any) -> House:
    """A broker that keeps what it holds there, or in memory."""
    broker = BrokerSettings(sys_interval_s=0, client_id_reuse="anybody", data="memory" if data is None else str(data))
    return House(settings=broker, clock=clock, plugins={"users": Users()}, **limits)


def killed(house: House) -> TurnableClock:
    """The broker ends without notice; answers its clock."""
    plugin: Any = house.assembly.manager._pm.get_plugin("embedded")
    plugin._journal.abandon()
    plugin._directory.close()
    clock = house.clock
    assert isinstance(clock, TurnableClock)
    return clock


def test_sessions_that_come_back_count(data: Path) -> None:
    """After a restart what is stored is held as before: of all, and of its user."""
    house = opened(data)
    for name in "ab":
        peer = house.connect(name, V5, username="one", expiry_s=600, will=Will(WILL.message, 60))
        granted(peer, "0", "1")
        peer.drop()
    before = (subscription_bytes(house), will_bytes(house))

    limits = {"max_all_subscription_bytes": 4 * ONE, "max_all_will_bytes": 3 * WILL_BYTES}
    house = opened(data, TurnableClock(killed(house).now()), **limits)
    after = (subscription_bytes(house), will_bytes(house))
    check_accounts(house)
    peer = house.connect("c", V5, username="two")
    refused = granted(peer, "0")
    no_will = house.connect("d", V5, username="one", will=WILL)
    house.connect("a", V5, username="one").disconnect()

    assert before == after == (4 * ONE, 2 * WILL_BYTES)
    assert (refused, no_will.connack.reason) == ([QUOTA], QUOTA)
    assert granted(peer, "0", "1", "2") == [0, 0, QUOTA]
    check_accounts(house)
    killed(house)


class Life(RuleBasedStateMachine):
    """Clients that come, go, subscribe, publish and are taken over at random; the broker may be killed."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.peers: dict[str, Peer] = {}

    @initialize(embedded=st.booleans(), tight=st.booleans())
    def begin(self, embedded: bool, tight: bool) -> None:
        self.data = Path(self.folder.name) / "data" if embedded else None
        self.limits: dict[str, Any] = {"max_inflight": 3}
        if tight:
            self.limits |= {
                "max_subscription_bytes": 4 * ONE,
                "max_all_subscription_bytes": 10 * ONE,
                "max_all_will_bytes": 3 * WILL_BYTES,
                "max_all_queued_bytes": 5000,
                "max_inflight_bytes": 30_000,
                "max_sessions": 4,
            }
        self.house = opened(self.data, **self.limits)

    CLIENTS = st.sampled_from("abc")
    FILTERS = st.sampled_from(["0", "1", "a/b/c", "$share/g/0", "x" * 500, "#"])

    @rule(
        client=CLIENTS,
        user=st.sampled_from([None, "u", "v"]),
        expiry_s=st.sampled_from([0, 5, 600]),
        clean=st.booleans(),
        will=st.sampled_from([None, Will(WILL.message, 0), Will(Message("0", b"x" * 700, 1), 3)]),
        silent=st.booleans(),
    )
    def connect(
        self, client: str, user: str | None, expiry_s: int, clean: bool, will: Will | None, silent: bool
    ) -> None:
        more: dict[str, Any] = {} if user is None else {"username": user}
        self.peers[client] = self.house.connect(
            client, V5, expiry_s=expiry_s, clean_start=clean, will=will, silent=silent, **more
        )

    @rule(
        client=CLIENTS,
        filter=st.sampled_from(["0", "1", "a/b/c", "$share/g/0", "x" * 500, "#"]),
        qos=st.integers(0, 2),
    )
    def subscribe(self, client: str, filter: str, qos: int) -> None:
        if client in self.peers:
            self.peers[client].subscribe(filter, qos)

    @rule(client=CLIENTS, filter=FILTERS)
    def unsubscribe(self, client: str, filter: str) -> None:
        if client in self.peers:
            self.peers[client].unsubscribe(filter)

    @rule(
        topic=st.sampled_from(["0", "1", "a/b/c"]),
        payload=st.sampled_from([b"", b"x" * 100, LARGE]),
        qos=st.integers(0, 2),
        times=st.integers(1, 5),
        expires=st.booleans(),
    )
    def publish(self, topic: str, payload: bytes, qos: int, times: int, expires: bool) -> None:
        publisher = self.house.connect("", V5)
        properties = Properties(message_expiry_interval=2) if expires else Properties()
        packets = [
            Publish.build(topic, payload, qos=qos, packet_id=number if qos else 0, properties=properties)
            for number in range(1, times + 1)
        ]
        publisher.send_bytes(b"".join(encode(packet, V5) for packet in packets))
        publisher.disconnect()

    @rule(client=CLIENTS, number=st.integers(1, 4), again=st.booleans())
    def acknowledge(self, client: str, number: int, again: bool) -> None:
        """A client that acknowledges of its own accord; what it must not ends its connection."""
        if client in self.peers:
            self.peers[client].send(Pubrec(number) if again else Puback(number))

    @rule(client=CLIENTS, packet_id=st.integers(1, 5))
    def keep_identifiers(self, client: str, packet_id: int) -> None:
        if client in self.peers:
            self.peers[client].publish("nobody", b"", qos=2, packet_id=packet_id)

    @rule(client=CLIENTS, properly=st.booleans())
    def leave(self, client: str, properly: bool) -> None:
        peer = self.peers.pop(client, None)
        if peer is not None and not peer.closed:
            peer.disconnect() if properly else peer.drop()

    @rule(client=CLIENTS)
    def another_node_takes_it(self, client: str) -> None:
        session = self.house.broker.sessions.get(client)
        if session is not None and session.persistent and self.data is None:
            self.house.broker.sessions.fenced(client, session.epoch)
            self.house.settle()

    @rule(seconds=st.sampled_from([1, 3, 8]))
    def wait(self, seconds: int) -> None:
        self.house.advance(seconds)

    @rule()
    def restart(self) -> None:
        if self.data is not None:
            self.peers.clear()
            self.house = opened(self.data, TurnableClock(killed(self.house).now()), **self.limits)

    @invariant()
    def accounts_are_right(self) -> None:
        if hasattr(self, "house"):
            check_accounts(self.house)

    def teardown(self) -> None:
        if not hasattr(self, "house"):
            return
        for peer in self.house.peers:
            if not peer.closed:
                peer.drop()
        for client in "abc":
            self.house.connect(client, V5).disconnect()
        self.house.advance(2)
        check_accounts(self.house)
        accounts = self.house.broker.runtime.accounts
        everybody = accounts.all
        held = (everybody.sessions, everybody.subscription_bytes, everybody.will_bytes, len(accounts))
        assert (*held, self.house.broker.runtime.queued.size_bytes) == (0, 0, 0, 0, 0)
        if self.data is not None:
            killed(self.house)
        self.folder.cleanup()


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=examples(40), stateful_step_count=30, deadline=None)


def test_a_suback_says_for_each_filter_what_came_of_it() -> None:
    """In one packet those that fit are granted beside those that don't (MQTT-3.8.4-6)."""
    long = "x" * 400
    house = House(max_subscription_bytes=Subscription(long).size_bytes + ONE)
    client = house.connect("c", V5)

    client.send(Subscribe(1, (SubscribeRequest(long), SubscribeRequest("y" * 400), SubscribeRequest("0", 1))))

    assert [int(reason) for reason in client.of(Suback)[0].reasons] == [0, QUOTA, 1]
