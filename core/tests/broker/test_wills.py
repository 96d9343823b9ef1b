"""Wills: when they are published, when they are not, and what of them reaches others (section 3.1.2.5)."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from core_harness.house import House, Peer, Trusting
from core_harness.stores import SlowSessions
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import V5, V31, V311, Connack, ConnectWill, DisconnectPacket, Publish
from kinmqtt_spi import NO_PROPERTIES, Properties, hookimpl
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authentication import ConnectRequest
from kinmqtt_spi.services.authorization import Action, AuthorizationRequest
from kinmqtt_spi.values import ALLOW, Decision, Message, deny

VERSIONS = [V31, V311, V5]


def will(payload: bytes = b"gone", qos: int = 0, retain: bool = False, **properties: Any) -> ConnectWill:
    """A will on ``wills``."""
    return ConnectWill("wills", payload, qos, retain, Properties(**properties))


def heir(house: House, version: int = V5, qos: int = 2, **more: Any) -> Peer:
    """A client that gets wills."""
    return house.connect("heir", version, **more).subscribe("wills", qos)


def published_at(house: House, peer: Peer, seconds: int) -> list[int]:
    """After how many seconds messages came, within so many."""
    moments: list[int] = []
    for second in range(seconds + 1):
        moments += [second] * (len(peer.messages) - len(moments))
        house.advance(1)
    return moments


# When


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_will_is_published_when_the_connection_is_lost(version: int, qos: int) -> None:
    """A network connection that ends without DISCONNECT publishes the will with its QoS, once [MQTT-3.1.2-8]."""
    house = House()
    sub = heir(house, version)
    client = house.connect("c", version, will=will(qos=qos))
    before = len(sub.messages)

    client.drop()
    house.advance(5)

    assert before == 0
    assert sub.messages == [("wills", b"gone", qos)]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kept", [False, True])
def test_a_disconnect_deletes_the_will(version: int, kept: bool) -> None:
    """After DISCONNECT the will is not published, neither now nor when the session ends [MQTT-3.14.4-3]."""
    house = House()
    sub = heir(house, version)
    expiry = {"expiry_s": 10} if version == V5 and kept else {}

    house.connect("c", version, clean_start=not kept, will=will(), **expiry).disconnect()  # type: ignore[arg-type]
    house.advance(15)
    house.connect("c", version)

    assert sub.messages == []


class SlowAuthorizer:
    """Answers later whether a client may publish."""

    def __init__(self) -> None:
        self.answers: list[Deferred[Decision]] = []

    @hookimpl
    def authorize(self, request: AuthorizationRequest) -> Decision | Deferred[Decision]:
        """Allow subscriptions; answer about the rest when the test does."""
        if request.action is not Action.PUBLISH:
            return ALLOW
        self.answers.append(Deferred())
        return self.answers[-1]


@pytest.mark.parametrize("end", ["lost", "taken over"])
@pytest.mark.parametrize(("reason", "wills"), [(ReasonCode.SUCCESS, 0), (ReasonCode.DISCONNECT_WITH_WILL, 1)])
def test_a_disconnect_that_waits_behind_a_publish_is_carried_out(end: str, reason: ReasonCode, wills: int) -> None:
    """A DISCONNECT that was received counts, although the connection ends before its turn comes [MQTT-3.14.4-3]."""
    house = House(plugins={"slow": SlowAuthorizer()})
    sub = heir(house)
    client = house.connect("c", V5, will=will())
    publishes = [encode(Publish.build(topic, b"x"), V5) for topic in ("slow", "next")]
    client.send_bytes(b"".join((*publishes, encode(DisconnectPacket(reason), V5))))
    assert not client.closed

    if end == "lost":
        client.drop()
    else:
        house.connect("c", V5)
    house.advance(5)

    assert len(sub.messages) == wills


@pytest.mark.parametrize(
    "reason",
    [ReasonCode.DISCONNECT_WITH_WILL, ReasonCode.UNSPECIFIED_ERROR, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR],
)
def test_a_disconnect_may_ask_for_the_will(reason: ReasonCode) -> None:
    """DISCONNECT with 0x04, or any other reason than 0x00, publishes the will [MQTT-3.1.2-8, MQTT-3.1.2-10]."""
    house = House()
    sub = heir(house)

    client = house.connect("c", V5, will=will()).disconnect(reason=reason)

    assert sub.messages == [("wills", b"gone", 0)]
    assert client.of(DisconnectPacket) == []
    assert client.closed


def test_a_will_belongs_to_one_connection() -> None:
    """A connection without a will publishes none, though the one before had one [MQTT-3.1.2-10]."""
    house = House()
    sub = heir(house)
    house.connect("c", V5, expiry_s=60, will=will()).drop()

    house.connect("c", V5, clean_start=False, expiry_s=60).drop()
    house.advance(100)

    assert len(sub.messages) == 1


def test_who_was_not_let_in_leaves_no_will() -> None:
    """A CONNECT that is refused is nobody's loss [MQTT-3.1.4-6]."""

    class Guard:
        @hookimpl
        def authenticate(self, request: ConnectRequest) -> Decision:
            return ALLOW if request.client_id == "heir" else deny()

    house = House(plugins={"guard": Guard()})
    sub = heir(house)

    refused = house.connect("c", V5, will=will())

    assert refused.connack.reason is ReasonCode.NOT_AUTHORIZED
    assert sub.messages == []


# Delay


def test_a_will_may_be_delayed() -> None:
    """The will comes when its delay is over, where the session outlives it [MQTT-3.1.2-8]."""
    house = House()
    sub = heir(house)
    client = house.connect("c", V5, expiry_s=60, will=will(will_delay_interval=10))
    house.advance(100)

    client.drop()

    assert published_at(house, sub, 70) == [10]


@pytest.mark.parametrize(("expiry_s", "due_s"), [(5, 5), (0, 0)])
def test_the_end_of_the_session_cuts_the_delay(expiry_s: int, due_s: int) -> None:
    """A session that ends before the delay publishes the will as it ends, once [MQTT-3.1.2-8]."""
    house = House()
    sub = heir(house)

    house.connect("c", V5, expiry_s=expiry_s, will=will(will_delay_interval=10)).drop()

    assert published_at(house, sub, 20) == [due_s]


@pytest.mark.parametrize(("expiry_s", "due_s"), [(0, 0), (5, 5), (100, 10)])
def test_a_disconnect_with_will_keeps_to_the_delay(expiry_s: int, due_s: int) -> None:
    """The session that ends as DISCONNECT says cuts the delay; 0x04 does not [section 3.14.2.2.2]."""
    house = House()
    sub = heir(house)
    client = house.connect("c", V5, expiry_s=60, will=will(will_delay_interval=10))

    properties = Properties(session_expiry_interval=expiry_s)
    client.disconnect(reason=ReasonCode.DISCONNECT_WITH_WILL, properties=properties)

    assert published_at(house, sub, 20) == [due_s]


def test_a_client_that_comes_back_in_time_keeps_its_will() -> None:
    """A new connection to the session within the delay cancels the old will, and its own counts [MQTT-3.1.3-9]."""
    house = House()
    sub = heir(house)
    house.connect("c", V5, expiry_s=60, will=will(b"old", will_delay_interval=10)).drop()
    house.advance(9)

    again = house.connect("c", V5, clean_start=False, expiry_s=60, will=will(b"new", will_delay_interval=3))
    house.advance(30)
    before = len(sub.messages)
    again.drop()

    assert before == 0
    assert published_at(house, sub, 10) == [3]
    assert sub.messages == [("wills", b"new", 0)]


def test_a_client_that_is_lost_before_its_connack_leaves_the_will_of_its_session() -> None:
    """It was not accepted, but no DISCONNECT has deleted the will that its session had [MQTT-3.1.2-8]."""
    sessions = SlowSessions()
    house = House(plugins={"sessions": sessions})
    sub = heir(house)
    house.connect("c", V5, expiry_s=60, will=will(will_delay_interval=10)).drop()
    # What is written waits as soon as the session is claimed, so CONNACK does too.
    sessions.claims.slow = True
    again = house.connect("c", V5, clean_start=False, expiry_s=60, will=will(will_delay_interval=10))
    sessions.writes.slow = True
    sessions.claims.answer_all()
    house.settle()
    assert again.connection.session is not None
    assert again.of(Connack) == []

    again.drop()
    sessions.writes.answer_all()
    sessions.writes.slow = False

    assert published_at(house, sub, 20) == [10]


def test_a_client_that_comes_back_too_late_finds_its_will_published() -> None:
    """When the delay is over the will is published though the session goes on, and not again later."""
    house = House()
    sub = heir(house)
    house.connect("c", V5, expiry_s=60, will=will(will_delay_interval=5)).drop()

    house.advance(7)
    again = house.connect("c", V5, clean_start=False, expiry_s=60)
    again.drop()
    house.advance(100)

    assert again.connack.session_present
    assert len(sub.messages) == 1


def test_a_clean_start_publishes_a_delayed_will() -> None:
    """A new session ends the old one, and with it the delay of its will [MQTT-3.1.2-8, MQTT-3.1.4-5]."""
    house = House()
    sub = heir(house)
    house.connect("c", V5, expiry_s=60, will=will(will_delay_interval=30)).drop()

    house.connect("c", V5, clean_start=True, expiry_s=60)
    at_once = len(sub.messages)
    house.advance(100)

    assert (at_once, len(sub.messages)) == (1, 1)


# Takeover


@pytest.mark.parametrize(
    ("expiry_s", "clean_start", "delay_s", "published"),
    [
        (60, False, 0, True),
        (60, False, 10, False),
        (60, True, 10, True),
        (0, False, 10, True),
        (0, True, 0, True),
    ],
)
def test_a_takeover_and_the_will(expiry_s: int, clean_start: bool, delay_s: int, published: bool) -> None:
    """The loser's will is published, unless it has a delay in which its session is taken up [MQTT-3.1.4-3]."""
    house = House()
    sub = heir(house)
    house.connect("c", V5, expiry_s=expiry_s, will=will(will_delay_interval=delay_s))

    house.connect("c", V5, clean_start=clean_start, expiry_s=60)
    at_once = len(sub.messages)
    house.advance(100)

    assert (at_once, len(sub.messages)) == (int(published), int(published))


@pytest.mark.parametrize("version", [V31, V311])
def test_a_takeover_publishes_the_will_of_older_versions(version: int) -> None:
    """Older versions have no delay: who is cut off leaves the will [MQTT-3.1.4-2 of 3.1.1]."""
    house = House()
    sub = heir(house)
    house.connect("c", version, clean_start=False, will=will(b"1"))

    house.connect("c", version, clean_start=False, will=will(b"2")).disconnect()

    assert [payload for _, payload, _ in sub.messages] == [b"1"]


# What


def test_a_retained_will_is_kept() -> None:
    """With Will Retain the message is retained, and comes to those there are as any other [MQTT-3.1.2-15]."""
    house = House()
    sub = heir(house)

    house.connect("c", V5, will=will(qos=1, retain=True)).drop()
    late = house.connect("late", V5).subscribe("wills", qos=1)

    assert [(p.payload, p.qos, p.retain) for p in sub.of(Publish)] == [(b"gone", 1, False)]
    assert [(p.payload, p.qos, p.retain) for p in late.of(Publish)] == [(b"gone", 1, True)]


def test_an_empty_retained_will_clears_its_topic() -> None:
    """A will may take back what is retained [MQTT-3.3.1-6]; without Will Retain it does not [MQTT-3.1.2-14]."""
    house = House()
    house.connect("p").publish("wills", b"here", retain=True)

    house.connect("a", V5, will=will(b"")).drop()
    between = house.connect("s1", V5).subscribe("wills").messages
    house.connect("b", V5, will=will(b"", retain=True)).drop()

    assert between == [("wills", b"here", 0)]
    assert house.connect("s2", V5).subscribe("wills").messages == []


def test_the_properties_of_a_will_reach_its_heirs() -> None:
    """What belongs to the message goes along in order, the delay does not; older versions get none."""
    house = House()
    sub = heir(house)
    old = house.connect("old").subscribe("wills")
    message: dict[str, Any] = {
        "payload_format_indicator": 1,
        "content_type": "text/plain",
        "response_topic": "answers",
        "correlation_data": b"\x00\x01",
        "user_property": (("b", "1"), ("a", "2"), ("b", "3")),
    }

    house.connect("c", V5, expiry_s=9, will=will(will_delay_interval=1, **message)).drop()
    house.advance(2)

    assert [p.properties for p in sub.of(Publish)] == [Properties(**message)]
    assert [p.properties for p in old.of(Publish)] == [NO_PROPERTIES]


def test_the_expiry_of_a_will_counts_from_its_publication() -> None:
    """Neither the time of the connection nor the delay uses up the message expiry interval [section 3.1.3.2.4]."""
    house = House()
    sub = heir(house, expiry_s=1000, clean_start=False).drop()
    client = house.connect("c", V5, expiry_s=60, will=will(qos=1, will_delay_interval=20, message_expiry_interval=30))
    house.advance(50)
    client.drop()
    house.advance(20 + 10)

    again = house.connect("heir", V5, clean_start=False, expiry_s=1000)

    assert sub.messages == []
    [publish] = again.of(Publish)
    assert publish.properties.message_expiry_interval in (20, 21)


def test_a_will_expires() -> None:
    """A will that nobody took in its time is gone, retained or waiting [MQTT-3.3.2-5]."""
    house = House()
    heir(house, expiry_s=1000, clean_start=False).drop()
    house.connect("c", V5, will=will(qos=1, retain=True, message_expiry_interval=5)).drop()

    house.advance(7)
    again = house.connect("heir", V5, clean_start=False, expiry_s=1000).subscribe("wills", 1)

    assert again.messages == []


@pytest.mark.parametrize("no_local", [False, True])
def test_a_client_may_get_its_own_will(no_local: bool) -> None:
    """A client that comes back finds its will waiting, unless it asked not to get its own messages [MQTT-3.8.3-3]."""
    house = House()
    client = house.connect("c", V5, expiry_s=60, will=will(qos=1)).subscribe("wills", 1, no_local=no_local)
    client.drop()

    again = house.connect("c", V5, clean_start=False, expiry_s=60)

    assert again.messages == ([] if no_local else [("wills", b"gone", 1)])


def test_a_will_is_told_of_as_its_clients_message() -> None:
    """Plugins see who left it, under an id of its own and the moment of its publication."""
    seen: list[Message] = []

    class Watch:
        @hookimpl
        def published(self, message: Message) -> None:
            seen.append(message)

    house = House(plugins={"watch": Watch(), "door": Trusting()})
    house.connect("p").publish("wills")
    client = house.connect("c", V5, username="u", expiry_s=60, will=will(will_delay_interval=5))
    client.drop()
    house.advance(10)

    assert [(m.publisher.client_id, m.publisher.username) for m in seen] == [("p", None), ("c", "u")]
    assert seen[0].id != seen[1].id
    assert seen[1].received_at - seen[0].received_at == 5


def test_wills_of_many_are_published() -> None:
    """When many connections are lost at once each will comes, once."""
    house = House()
    sub = heir(house)
    clients = [
        house.connect(f"c{n}", V5, expiry_s=60, will=will(b"%d" % n, 1, will_delay_interval=3)) for n in range(50)
    ]

    for client in clients:
        client.drop()
    house.advance(5)

    assert sorted(int(payload) for _, payload, _ in sub.messages) == list(range(50))


# Rights that were lost since


class Rules:
    """Lets wills be left and published by an answer that the test sets."""

    def __init__(self) -> None:
        self.answer: Any = ALLOW
        self.asked: list[AuthorizationRequest] = []
        self.dropped_for: list[tuple[str, str, str]] = []

    @hookimpl
    def authorize(self, request: AuthorizationRequest) -> Any:
        if request.action is not Action.WILL:
            return ALLOW
        self.asked.append(request)
        return self.answer(request) if callable(self.answer) else self.answer

    @hookimpl
    def dropped(self, client_id: str, message: Message, why: str) -> None:
        self.dropped_for.append((client_id, message.topic, why))


ENDS = ["lost", "delayed", "expired", "clean start", "cut short"]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("lost", [True, False])
def test_a_will_is_published_by_the_rights_of_the_moment(end: str, lost: bool) -> None:
    """Whoever may not leave it any more when it is due leaves none: it is dropped once, and counted."""
    rules = Rules()
    house = House(plugins={"rules": rules})
    sub = heir(house)
    properties: dict[str, Any] = {"will_delay_interval": 0 if end == "lost" else 5 if end == "delayed" else 50}
    client = house.connect("c", V5, expiry_s=0 if end == "lost" else 10, will=will(qos=1, **properties))
    rules.answer = deny(text="not any more") if lost else ALLOW

    if end == "cut short":
        closing = Properties(session_expiry_interval=0)
        client.disconnect(reason=ReasonCode.DISCONNECT_WITH_WILL, properties=closing)
    else:
        client.drop()
    if end == "clean start":
        house.connect("c", V5)
    house.advance(100)

    assert [payload for _, payload, _ in sub.messages] == ([] if lost else [b"gone"])
    assert rules.dropped_for == ([("c", "wills", "not_authorized")] if lost else [])
    assert [(r.client.client_id, r.topic, r.qos) for r in rules.asked] == [("c", "wills", 1)] * 2
    assert "c" not in house.broker.sessions.by_id or end == "clean start"


def test_an_authorizer_that_answers_late_is_waited_for() -> None:
    """The will comes when it has answered; where it fails there is none."""
    waiting: list[Deferred[Decision]] = []

    def later(request: AuthorizationRequest) -> Deferred[Decision]:
        waiting.append(Deferred())
        return waiting[-1]

    rules = Rules()
    house = House(plugins={"rules": rules})
    sub = heir(house)
    clients = [house.connect(name, V5, will=will(name.encode())) for name in "ab"]
    rules.answer = later
    for client in clients:
        client.drop()
    early = list(sub.messages)

    waiting[1].callback(ALLOW)
    house.settle()
    house.advance(20)  # The other has not answered in time.

    assert early == []
    assert sub.messages == [("wills", b"b", 0)]
    assert rules.dropped_for == [("a", "wills", "not_authorized")]
