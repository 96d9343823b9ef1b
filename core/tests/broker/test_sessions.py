"""Sessions: where they begin and end, who may use one, and what of them outlives a connection or a broker."""

from __future__ import annotations

from typing import Any

import pytest

from core_harness.house import House, Peer
from core_harness.stores import SlowQueues, SlowSessions
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import V5, V31, V311, ConnectWill, DisconnectPacket, Puback, Publish, Pubrec, Pubrel
from kinmqtt.settings import NEVER_EXPIRES
from kinmqtt_spi import Message, Properties
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.queue import Append, Entry, Purge
from kinmqtt_spi.services.session import ReleaseSession, SaveSubscriptions
from kinmqtt_spi.values import NodeIdentity, Subscription

VERSIONS = [V31, V311, V5]


def keeps(version: int) -> dict[str, Any]:
    """What CONNECT says in that version for a session that is kept."""
    return {"version": version, "clean_start": False} | ({"expiry_s": 60} if version == V5 else {})


def payloads(peer: Peer) -> list[bytes]:
    """The payloads of what a client got."""
    return [payload for _, payload, _ in peer.messages]


def restarted(house: House, plugins: dict[str, Any], after_s: float = 0) -> House:
    """Another broker with the same stores, so many seconds later; the first one has not been stopped."""
    return House(plugins=plugins, clock=TurnableClock(house.clock.now() + after_s))


# Beginning and coming back


@pytest.mark.parametrize("version", [V311, V5])
def test_a_session_is_resumed(version: int) -> None:
    """Without Clean Start a session goes on with its subscriptions and what waits [MQTT-3.1.2-5, MQTT-3.2.2-3]."""
    house = House()
    first = house.connect("c", **keeps(version)).subscribe("a", qos=1).drop()
    house.connect("p").publish("a", b"waits", qos=1)

    again = house.connect("c", **keeps(version))
    house.connect("p").publish("a", b"new")

    assert (first.connack.session_present, again.connack.session_present) == (False, True)
    assert payloads(again) == [b"waits", b"new"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_clean_start_discards_everything(version: int) -> None:
    """With Clean Start subscriptions, in flight and queue are gone, for good [MQTT-3.1.2-4, MQTT-3.2.2-2]."""
    house = House()
    first = house.connect("c", **keeps(version), silent=True).subscribe("a", qos=2)
    pub = house.connect("p").publish("a", b"in flight", qos=2)
    first.drop()
    pub.publish("a", b"waits", qos=1)

    clean = house.connect("c", version)
    pub.publish("a", b"new", qos=1)
    clean.disconnect()
    last = house.connect("c", **keeps(version))

    assert (clean.messages, last.messages) == ([], [])
    assert not clean.connack.session_present
    assert not last.connack.session_present
    assert house.broker.router.index.count() == 0


@pytest.mark.parametrize("version", [V311, V5])
def test_a_session_without_expiry_ends_with_its_connection(version: int) -> None:
    """A session with an expiry interval of 0, or a clean one before MQTT 5, is discarded [MQTT-4.1.0-2]."""
    house = House()
    house.connect("c", version).subscribe("a", qos=1).drop()
    unrouted = house.connect("p", V5).publish("a", qos=1)

    again = house.connect("c", version, clean_start=False)

    assert not again.connack.session_present
    assert int(unrouted.packets[-1].reason) == ReasonCode.NO_MATCHING_SUBSCRIBERS  # type: ignore[union-attr]


def test_another_version_may_resume() -> None:
    """A session belongs to a client id, whichever version made it; what is sent again suits the new one."""
    house = House()
    house.connect("c", **keeps(V5), silent=True).subscribe("a", qos=1)
    properties = Properties(content_type="text", user_property=(("k", "v"),))
    house.connect("p", V5).publish("a", b"x", qos=1, properties=properties)

    old = house.connect("c", **keeps(V311), silent=True)
    new = house.connect("c", **keeps(V5))

    assert [(p.payload, p.dup, len(p.properties.present)) for p in old.of(Publish)] == [(b"x", True, 0)]
    assert [(p.payload, p.dup, p.properties.content_type) for p in new.of(Publish)] == [(b"x", True, "text")]


def test_the_qos_2_state_of_both_directions_is_resumed() -> None:
    """Neither side of an exchange that was cut in the middle is begun anew [MQTT-4.4.0-1, MQTT-4.3.3-10]."""
    house = House()
    sub = house.connect("s").subscribe("b")
    client = house.connect("c", **keeps(V5), silent=True).subscribe("a", qos=2)
    house.connect("p").publish("a", b"to", qos=2)
    client.send(Pubrec(1)).publish("b", b"from", qos=2, packet_id=9).drop()

    again = house.connect("c", **keeps(V5), silent=True).publish("b", b"from", qos=2, packet_id=9, dup=True)

    assert [p.packet_id for p in again.of(Pubrel)] == [1]
    assert again.messages == []
    assert payloads(sub) == [b"from"]


# Expiry


def test_a_session_expires_when_its_time_is_over() -> None:
    """The interval counts from the end of the connection; then nothing of the session is left [MQTT-4.1.0-2]."""
    house = House()
    house.connect("c", V5, expiry_s=30).subscribe("a", qos=1)
    house.advance(100)
    house.peers[0].drop()
    house.connect("p").publish("a", b"x", qos=1)

    house.advance(29)
    before = house.broker.sessions.get("c") is not None
    house.advance(2)

    assert before
    assert house.broker.sessions.by_id.keys() == {"p"}
    assert house.broker.router.index.count() == 0
    assert house.broker.runtime.stores.session.count() == 0
    assert house.broker.runtime.stores.queue.totals().queued == 0
    assert not house.connect("c", V5, clean_start=False).connack.session_present


def test_a_session_that_is_over_is_not_resumed_before_it_is_swept() -> None:
    """A client that comes between the end of its session and the housekeeping's next round finds none."""
    house = House()
    house.advance(0.5)
    house.connect("c", V5, expiry_s=10).subscribe("a").drop()

    house.advance(10.25)
    left = "c" in house.broker.sessions.by_id
    again = house.connect("c", V5, clean_start=False, expiry_s=10)

    assert left
    assert not again.connack.session_present
    assert house.broker.router.index.count() == 0


@pytest.mark.parametrize("connect", [{"version": V5, "expiry_s": NEVER_EXPIRES}, {"version": V311}])
def test_some_sessions_never_expire(connect: dict[str, Any]) -> None:
    """0xFFFFFFFF, and MQTT 3 without Clean Session, stand for ever [section 3.1.2.11.2]."""
    house = House()
    house.connect("c", clean_start=False, **connect).drop()

    house.clock.step(10 * 365 * 86_400)
    house.advance(2)

    assert house.connect("c", clean_start=False, **connect).connack.session_present


def test_the_last_connection_sets_the_expiry() -> None:
    """A session that is resumed with another interval keeps to that, also to one of 0 [MQTT-3.1.2-23]."""
    house = House()
    house.connect("c", V5, expiry_s=10).drop()
    house.connect("c", V5, clean_start=False, expiry_s=100).drop()

    house.advance(50)
    resumed = house.connect("c", V5, clean_start=False).drop()
    last = house.connect("c", V5, clean_start=False)

    assert resumed.connack.session_present
    assert not last.connack.session_present


@pytest.mark.parametrize(("limit", "told"), [(20, 20), (1000, None)])
def test_the_broker_may_cut_the_expiry(limit: int, told: int | None) -> None:
    """A longer interval than the broker's limit is cut, and the client told of what counts [section 3.2.2.3.2]."""
    house = House(max_session_expiry_s=limit)
    client = house.connect("c", V5, expiry_s=100)

    client.disconnect(properties=Properties(session_expiry_interval=500))
    house.advance(min(limit, 500) - 1)
    before = "c" in house.broker.sessions.by_id
    house.advance(2)

    assert client.connack.properties.session_expiry_interval == told
    assert (before, "c" in house.broker.sessions.by_id) == (True, False)


@pytest.mark.parametrize(("expiry_s", "survives_s"), [(200, 199), (5, 4), (0, 0), (None, 99)])
def test_disconnect_may_change_the_expiry(expiry_s: int | None, survives_s: int) -> None:
    """The interval of DISCONNECT holds in place of CONNECT's [section 3.14.2.2.2]."""
    house = House()
    properties = Properties() if expiry_s is None else Properties(session_expiry_interval=expiry_s)

    house.connect("c", V5, expiry_s=100).disconnect(properties=properties)
    house.advance(survives_s)
    before = "c" in house.broker.sessions.by_id
    house.advance(2)

    assert before is (survives_s > 0)
    assert "c" not in house.broker.sessions.by_id


def test_disconnect_of_0_ends_a_session_with_its_queue() -> None:
    """A session that DISCONNECT ends leaves nothing that a later one of the client id would get."""
    house = House()
    client = house.connect("c", V5, expiry_s=100, properties=Properties(receive_maximum=1), silent=True)
    client.subscribe("a", qos=1)
    house.connect("p").publish("a", b"1", qos=1).publish("a", b"2", qos=1)

    client.disconnect(properties=Properties(session_expiry_interval=0))
    again = house.connect("c", V5, clean_start=False, expiry_s=100).subscribe("a", qos=1)

    assert not again.connack.session_present
    assert again.messages == []


def test_disconnect_can_not_raise_the_expiry_from_0() -> None:
    """That is a protocol error, and the session ends as CONNECT said [section 3.14.2.2.2, MQTT-4.13.1-1]."""
    house = House()
    heir = house.connect("heir").subscribe("wills")
    client = house.connect("c", V5, will=ConnectWill("wills", b"x"))

    client.disconnect(properties=Properties(session_expiry_interval=1))

    assert client.of(DisconnectPacket)[0].reason is ReasonCode.PROTOCOL_ERROR
    assert "c" not in house.broker.sessions.by_id
    assert payloads(heir) == [b"x"]


# One connection for each client id


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("clean_start", [True, False])
def test_the_second_connection_takes_over(version: int, clean_start: bool) -> None:
    """The first is told 0x8E where its version can say so, and closed; the session is the second's [MQTT-3.1.4-3]."""
    house = House()
    first = house.connect("c", **keeps(version)).subscribe("a")

    second = house.connect("c", **(keeps(V5) | {"clean_start": clean_start}))
    house.connect("p").publish("a", b"x")

    assert first.closed
    told = [p.reason for p in first.of(DisconnectPacket)]
    assert told == ([ReasonCode.SESSION_TAKEN_OVER] if version == V5 else [])
    assert second.connack.session_present is not clean_start
    assert (payloads(first), payloads(second)) == ([], [] if clean_start else [b"x"])
    assert house.broker.sessions.connected == 2


def test_a_takeover_loses_and_repeats_nothing_but_what_was_in_flight() -> None:
    """What was unacknowledged goes to the new connection with DUP, what waited without, in order [MQTT-4.4.0-1]."""
    house = House()
    narrow = Properties(receive_maximum=2)
    house.connect("c", **keeps(V5), silent=True, properties=narrow).subscribe("a", qos=1)
    pub = house.connect("p")
    for number in range(4):
        pub.publish("a", b"%d" % number, qos=1)

    second = house.connect("c", **keeps(V5))

    assert [(p.payload, p.dup) for p in second.of(Publish)] == [
        (b"0", True),
        (b"1", True),
        (b"2", False),
        (b"3", False),
    ]


def test_the_end_of_a_connection_that_was_taken_over_changes_nothing() -> None:
    """When the transport of the first reports its loss the session stays the second's."""
    house = House()
    first = house.connect(
        "c", V5, expiry_s=60, will=ConnectWill("wills", b"x", 0, False, Properties(will_delay_interval=5))
    )
    second = house.connect("c", V5, clean_start=False, expiry_s=60).subscribe("wills")

    first.drop()
    house.advance(10)

    assert house.broker.sessions.by_id["c"].connection is second.connection
    assert second.messages == []


# CONNECTs that meet


def test_of_three_connects_in_line_the_last_has_the_session() -> None:
    """However the claims are answered: one session, one connection, and the session's state is whole."""
    sessions = SlowSessions()
    house = House(plugins={"sessions": sessions})
    house.connect("c", **keeps(V5)).subscribe("a", qos=1).drop()
    sessions.claims.slow = True

    peers = [house.connect("c", **keeps(V5)) for _ in range(3)]
    waiting = [len(sessions.claims.pending)]
    for _ in peers:
        sessions.claims.answer()
        house.settle()
        waiting.append(len(sessions.claims.pending))
    sessions.claims.answer_all()
    house.connect("p").publish("a", b"x", qos=1)

    assert waiting == [1, 1, 1, 0]
    assert [peer.closed for peer in peers] == [True, True, False]
    assert peers[-1].connack.session_present
    assert payloads(peers[-1]) == [b"x"]
    assert house.broker.sessions.connected == 2


def test_a_clean_start_in_line_ends_the_session_of_the_one_before() -> None:
    """The order of the CONNECTs counts: what the last one asks for is what becomes of the session [MQTT-3.1.2-4]."""
    sessions = SlowSessions()
    house = House(plugins={"sessions": sessions})
    house.connect("c", **keeps(V5)).subscribe("a", qos=1).drop()
    sessions.claims.slow = True

    house.connect("c", **keeps(V5))
    clean = house.connect("c", V5, expiry_s=60)
    last = house.connect("c", **keeps(V5))
    sessions.claims.answer_all()
    house.settle()

    assert clean.closed
    assert last.connack.session_present
    assert house.broker.router.index.count() == 0
    assert sessions.count() == 1


def test_one_that_left_the_line_does_not_hold_it_up() -> None:
    """A connection that is lost while it waits in line is passed over, and the next is served."""
    sessions = SlowSessions()
    house = House(plugins={"sessions": sessions})
    sessions.claims.slow = True
    peers = [house.connect("c", **keeps(V5)) for _ in range(3)]

    peers[1].drop()
    sessions.claims.answer_all()
    house.settle()

    assert [bool(peer.packets) for peer in peers] == [True, False, True]
    assert not peers[2].closed
    assert house.broker.sessions.connected == 1


def test_a_claim_that_fails_lets_the_next_try() -> None:
    """A store that fails one CONNECT costs that client its connection, and nobody in line behind it."""
    sessions = SlowSessions()
    house = House(plugins={"sessions": sessions})
    sessions.claims.slow = True
    first, second = (house.connect("c", **keeps(V5)) for _ in range(2))

    sessions.claims.answer(ServiceUnavailable("gone"))
    house.settle()
    sessions.claims.answer_all()
    house.settle()

    assert first.connack.reason is ReasonCode.SERVER_UNAVAILABLE
    assert first.closed
    assert second.connack.reason is ReasonCode.SUCCESS


def test_client_ids_do_not_wait_for_each_other() -> None:
    """A claim that takes its time holds up its own client id only."""
    sessions = SlowSessions()
    house = House(plugins={"sessions": sessions})
    sessions.claims.slow = True
    slow = house.connect("a", V5)
    sessions.claims.slow = False

    quick = house.connect("b", V5)

    assert slow.packets == []
    assert quick.connack.reason is ReasonCode.SUCCESS


def test_a_takeover_waits_for_what_was_under_way() -> None:
    """A claim is made when the earlier connection's writes are in, so that they are not shut out."""
    sessions = SlowSessions()
    house = House(plugins={"sessions": sessions})
    first = house.connect("c", **keeps(V5))
    sessions.writes.slow = True
    first.subscribe("a", qos=1)

    second = house.connect("c", **keeps(V5))
    early = len(second.packets)
    sessions.writes.answer_all()
    house.settle()
    house.connect("p").publish("a", b"x", qos=1)

    assert early == 0
    assert second.connack.session_present
    assert not second.closed
    assert payloads(second) == [b"x"]


def test_a_goodbye_holds_though_a_takeover_comes_before_it_is_done() -> None:
    """DISCONNECT deletes the will also where the client's next CONNECT overtakes its commits [MQTT-3.14.4-3]."""
    sessions = SlowSessions()
    house = House(plugins={"sessions": sessions})
    heir = house.connect("heir").subscribe("wills")
    client = house.connect("c", **keeps(V5), will=ConnectWill("wills", b"x"))
    sessions.writes.slow = True

    client.subscribe("a").disconnect()
    again = house.connect("c", **keeps(V5))
    sessions.writes.answer_all()
    house.settle()

    assert again.connack.session_present
    assert heir.messages == []


def test_a_session_that_disconnect_ended_is_not_taken_over() -> None:
    """DISCONNECT with an expiry of 0 ends the session also where the next CONNECT overtakes it [MQTT-4.1.0-2]."""
    sessions = SlowSessions()
    house = House(plugins={"sessions": sessions})
    client = house.connect("c", **keeps(V5), silent=True, properties=Properties(receive_maximum=1))
    client.subscribe("a", qos=1)
    house.connect("p").publish("a", b"1", qos=1).publish("a", b"2", qos=1)
    sessions.writes.slow = True

    client.subscribe("b").disconnect(properties=Properties(session_expiry_interval=0))
    again = house.connect("c", **keeps(V5))
    sessions.writes.answer_all()
    house.settle()

    assert not again.connack.session_present
    assert again.messages == []


# Restart


def test_a_restarted_broker_goes_on_where_it_was() -> None:
    """Subscriptions, in flight, queue and QoS 2 both ways come back from the stores [MQTT-4.1.0-1]."""
    stores = {"sessions": SlowSessions(), "queues": SlowQueues()}
    first = House(plugins=stores)
    client = first.connect("c", **keeps(V5), silent=True, properties=Properties(receive_maximum=3))
    client.subscribe("a", qos=2)
    pub = first.connect("p")
    for number in range(5):
        pub.publish("a", b"%d" % number, qos=1 + number % 2)
    client.send(Pubrec(2)).publish("b", b"from", qos=2, packet_id=9)

    second = restarted(first, stores, after_s=1)
    sub = second.connect("s").subscribe("b")
    again = second.connect("c", **keeps(V5))
    again.publish("b", b"from", qos=2, packet_id=9, dup=True)
    second.connect("p").publish("a", b"new", qos=1)

    assert again.connack.session_present
    assert [p.packet_id for p in again.of(Pubrel)][:1] == [2]
    assert [(p.payload, p.dup) for p in again.of(Publish)] == [
        (b"0", True),
        (b"2", True),
        (b"3", False),
        (b"4", False),
        (b"new", False),
    ]
    assert sub.messages == []


def test_a_restarted_broker_lets_clocks_run() -> None:
    """Who was away has what was left of its time; who was connected has all of it, from the start on."""
    stores = {"sessions": SlowSessions(), "queues": SlowQueues()}
    first = House(plugins=stores)
    first.connect("away", V5, expiry_s=30).drop()
    first.connect("there", V5, expiry_s=30)
    first.connect("ever", V311, clean_start=False).drop()

    second = restarted(first, stores, after_s=20)
    second.advance(15)
    at_15_s = set(second.broker.sessions.by_id)
    second.advance(20)

    assert at_15_s == {"there", "ever"}
    assert set(second.broker.sessions.by_id) == {"ever"}
    assert stores["sessions"].count() == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("delay_s", "left", "due_s"), [(10, True, 6), (10, False, 10), (0, False, 0), (1000, True, 56)], ids=repr
)
def test_a_restarted_broker_publishes_wills(delay_s: int, left: bool, due_s: int) -> None:
    """A will that was due or that its client could not take back is published once, when its time is over."""
    stores = {"sessions": SlowSessions(), "queues": SlowQueues()}
    first = House(plugins=stores)
    will = ConnectWill("wills", b"x", 0, False, Properties(will_delay_interval=delay_s))
    client = first.connect("c", **keeps(V5), will=will)
    if left:
        client.drop()

    second = restarted(first, stores, after_s=4)
    heir = second.connect("heir").subscribe("wills")
    second.advance(max(0, due_s - 1))
    early = len(heir.messages)
    second.advance(2)
    after = len(heir.messages)
    second.advance(100)

    assert (early, after, len(heir.messages)) == (0, 1, 1)


def test_a_session_of_another_node_is_adopted_at_connect() -> None:
    """A stored session that this node does not have is taken over with all of its state when its client comes."""
    sessions, queues = SlowSessions(), SlowQueues()
    elsewhere = House(plugins={"sessions": sessions, "queues": queues})
    here = restarted(elsewhere, {"sessions": sessions, "queues": queues})
    elsewhere.connect("c", **keeps(V5)).subscribe("a", qos=1).drop()
    elsewhere.connect("p").publish("a", b"waits", qos=1)

    client = here.connect("c", **keeps(V5))
    here.connect("q").publish("a", b"new", qos=1)

    assert client.connack.session_present
    assert payloads(client) == [b"waits", b"new"]


# Fencing


def test_what_a_fenced_owner_does_is_not_kept() -> None:
    """With a newer owner the client here gets 0x8E; no will, and the other's session and queue are left alone."""
    sessions = SlowSessions()
    house = House(plugins={"sessions": sessions})
    heir = house.connect("heir").subscribe("wills")
    client = house.connect("c", **keeps(V5), will=ConnectWill("wills", b"x")).subscribe("a", qos=1)
    owner = NodeIdentity("other", 8)
    sessions.claim("c", owner)

    client.subscribe("b", qos=1)
    house.advance(100)

    assert [p.reason for p in client.of(DisconnectPacket)] == [ReasonCode.SESSION_TAKEN_OVER]
    assert client.closed
    assert heir.messages == []
    assert "c" not in house.broker.sessions.by_id
    assert house.broker.router.index.count() == 1
    assert house.broker.sessions.connected == 1
    assert list(sessions.owned_by(owner, 10)) == ["c"]


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("kept", [False, True])
def test_what_is_meant_for_anothers_session_is_not_acknowledged(qos: int, kept: bool) -> None:
    """A message that the newer owner's epoch refused is lost to nobody: its publisher is sent away with 0x9C.

    It sends again, and then it counts as new; others of the same turn are acknowledged.
    """
    sessions, queues = SlowSessions(), SlowQueues()
    house = House(plugins={"sessions": sessions, "queues": queues})
    house.connect("c", **keeps(V5)).subscribe("a", qos=2).drop()
    heir = house.connect("heir", V5).subscribe("a", qos=2)
    publisher = house.connect("p", **(keeps(V5) if kept else {"version": V5}))
    other = house.connect("o", V5)
    queues.apply([Purge("c", sessions.claim("c", NodeIdentity("other", 8)).epoch)])

    publisher.connection.receive(encode(Publish.build("a", b"x", qos=qos, packet_id=7), V5))
    other.publish("b", b"y", qos=1)
    told = [p.reason for p in publisher.of(DisconnectPacket)]
    again = house.connect("p", **(keeps(V5) if kept else {"version": V5}))
    again.publish("a", b"x", qos=qos, packet_id=7, dup=True)

    assert told == [ReasonCode.USE_ANOTHER_SERVER]
    assert (publisher.of(Puback), publisher.of(Pubrec)) == ([], [])
    assert [p.reason for p in other.of(Puback)] == [ReasonCode.NO_MATCHING_SUBSCRIBERS]
    assert len(again.of(Puback) + again.of(Pubrec)) == 1
    assert payloads(heir) == [b"x", b"x"]
    assert house.broker.runtime.statistics.dropped["store_failed"].value == 1


def test_what_a_group_chose_anothers_session_for_goes_to_another_member() -> None:
    """A message of a shared subscription whose member has moved to another broker is the group's all the same."""
    sessions, queues = SlowSessions(), SlowQueues()
    house = House(plugins={"sessions": sessions, "queues": queues})
    house.connect("c", **keeps(V5)).subscribe("$share/g/a", qos=1)
    queues.apply([Purge("c", sessions.claim("c", NodeIdentity("other", 8)).epoch)])
    there = house.connect("d", V5)

    # The member is known here still, and the only one when the message comes.
    house.connect("p", V5).connection.receive(encode(Publish.build("a", b"x", qos=1, packet_id=7), V5))
    there.subscribe("$share/g/a", qos=1)
    house.settle()

    assert payloads(there) == [b"x"]
    assert house.broker.runtime.statistics.dropped["store_failed"].value == 0


def test_a_queue_that_holds_less_than_was_counted_is_not_read_for_ever() -> None:
    """What the store expired, while its answer was lost, waits no more: reads come to an end."""
    queues = SlowQueues()
    house = House(plugins={"queues": queues})
    house.connect("c", **keeps(V5)).subscribe("a", qos=1).drop()
    house.connect("p", V5).publish("a", b"1", qos=1).publish("a", b"2", qos=1)
    queues.apply([Purge("c", house.broker.sessions.by_id["c"].epoch)])
    queues.reads.slow = True

    client = house.connect("c", **keeps(V5))
    reads = 0
    while queues.reads.pending and reads < 10:
        queues.reads.answer()
        house.settle()
        reads += 1
    queues.reads.answer_all()
    house.connect("p", V5).publish("a", b"3", qos=1)

    assert 1 <= reads < 10
    assert payloads(client) == [b"3"]
    assert house.broker.runtime.queued.messages == 0


def test_a_fenced_client_may_come_back() -> None:
    """A client that connects here again claims its session anew, with what the other node has kept of it."""
    sessions = SlowSessions()
    house = House(plugins={"sessions": sessions})
    house.connect("c", **keeps(V5)).subscribe("a", qos=1)
    sessions.claim("c", NodeIdentity("other", 8))
    house.broker.sessions.fenced("c", 1)
    house.settle()

    again = house.connect("c", **keeps(V5))
    house.connect("p").publish("a", b"x", qos=1)

    assert again.connack.session_present
    assert payloads(again) == [b"x"]


def test_who_comes_back_from_another_node_finds_what_it_left_there() -> None:
    """A copy of before another node's claim counts no more: what the stores hold does."""
    sessions = SlowSessions()
    queues = SlowQueues()
    house = House(plugins={"sessions": sessions, "queues": queues})
    house.connect("c", **keeps(V5)).subscribe("a", qos=1).drop()
    epoch = sessions.claim("c", NodeIdentity("other", 8)).epoch
    message = Message("b", b"from there", 1)
    sessions.apply([SaveSubscriptions("c", epoch, (Subscription("b", 1),)), ReleaseSession("c", epoch, None)])
    queues.apply([Append("c", epoch, Entry(7, message, 1))])

    again = house.connect("c", **keeps(V5))
    house.connect("p").publish("b", b"from here", qos=1)

    assert again.connack.session_present
    assert payloads(again) == [b"from there", b"from here"]
    assert house.broker.router.index.count() == 2


def test_a_session_left_alone_may_be_fenced_too() -> None:
    """A session whose client is away goes without a word, and is not expired here."""
    sessions = SlowSessions()
    house = House(plugins={"sessions": sessions})
    house.connect("c", V5, expiry_s=5).subscribe("a", qos=1).drop()
    sessions.claim("c", NodeIdentity("other", 8))

    house.broker.sessions.fenced("c", 1)
    house.advance(10)

    assert house.broker.router.index.count() == 0
    assert sessions.count() == 1
