"""Whose a client id is: the user's who is connected under it, or has a session that waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.logger import ILogObserver, formatEvent, globalLogPublisher
from zope.interface import provider

from core_harness.house import House, Peer
from core_harness.stores import SlowSessions
from kinmqtt.mqtt.packets import V5, V31, V311, ConnectWill, DisconnectPacket
from kinmqtt.settings import BrokerSettings
from kinmqtt_spi import ALLOW, Decision, Properties, hookimpl
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.memory.session import MemorySessionStore
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authentication import ALLOW_ANONYMOUS, ConnectRequest
from kinmqtt_spi.services.session import Claim, Claimant, OpenSession, StoredSession
from kinmqtt_spi.values import Address, Client, NodeIdentity

VERSIONS = [V31, V311, V5]
REFUSED = ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
ELSEWHERE = NodeIdentity("elsewhere", 8)


class Door:
    """Vouches for every user name but for that of a guest, whom it lets in as nobody."""

    @hookimpl
    def authenticate(self, request: ConnectRequest) -> Decision:
        return ALLOW_ANONYMOUS if request.password == b"guest" else ALLOW


def a_house(reuse: Any = "same_user", **more: Any) -> House:
    """A broker whose clients are who they say they are."""
    settings = BrokerSettings(client_id_reuse=reuse, sys_interval_s=0)
    plugins = {"door": Door()} | more.pop("plugins", {})
    return House(plugins=plugins, settings=settings, **more)


def keeps(version: int) -> dict[str, Any]:
    """What CONNECT says in that version for a session that is kept."""
    return {"version": version, "clean_start": False} | ({"expiry_s": 60} if version == V5 else {})


def payloads(peer: Peer) -> list[bytes]:
    """The payloads of what a client got."""
    return [payload for _, payload, _ in peer.messages]


@pytest.fixture
def lines() -> Any:
    """What is logged."""
    found: list[str] = []

    @provider(ILogObserver)
    def observe(event: Any) -> None:
        found.append(formatEvent(event))

    globalLogPublisher.addObserver(observe)
    yield found
    globalLogPublisher.removeObserver(observe)


@pytest.mark.parametrize("clean_start", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
def test_another_user_is_refused_while_the_client_is_connected(version: int, clean_start: bool) -> None:
    """With 0x85, before MQTT 5 with return code 2 [MQTT-3.1.4-2]; the connection stays as it is."""
    house = a_house()
    victim = house.connect("c", version, username="ann").subscribe("a")
    heir = house.connect("heir", username="bob").subscribe("wills")
    house.connect("d", version, username="ann", will=ConnectWill("wills", b"gone"))

    thief = house.connect("c", version, clean_start=clean_start, username="mallory")
    house.connect("d", version, clean_start=clean_start, username="mallory")
    house.connect("p", username="bob").publish("a", b"x")

    assert thief.connack.reason is REFUSED
    assert thief.closed
    assert not victim.closed
    assert payloads(victim) == [b"x"]
    assert heir.messages == []
    assert house.broker.runtime.statistics.sessions_taken_over.value == 0


@pytest.mark.parametrize("clean_start", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
def test_another_user_does_not_drain_a_session_that_waits(version: int, clean_start: bool) -> None:
    """Neither resumed nor ended by a clean start: its messages wait for its user, who finds them all."""
    house = a_house()
    house.connect("c", **keeps(version), username="ann").subscribe("a", qos=1).drop()
    publisher = house.connect("p", username="bob")
    for number in range(50):
        publisher.publish("a", b"%d" % number, qos=1)

    thief = house.connect("c", **(keeps(version) | {"clean_start": clean_start}), username="mallory")
    back = house.connect("c", **keeps(version), username="ann")

    assert thief.connack.reason is REFUSED
    assert payloads(thief) == []
    assert back.connack.session_present is (version != V31)
    assert payloads(back) == [b"%d" % number for number in range(50)]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_same_user_takes_over(version: int) -> None:
    """The connection before is closed [MQTT-3.1.4-3, in 3.1.1 MQTT-3.1.4-2], with 0x8E in MQTT 5."""
    house = a_house()
    before = house.connect("c", **keeps(version), username="ann").subscribe("a", qos=1)

    again = house.connect("c", **keeps(version), username="ann")

    assert before.closed
    if version == V5:
        assert [packet.reason for packet in before.of(DisconnectPacket)] == [ReasonCode.SESSION_TAKEN_OVER]
    assert again.connack.reason is ReasonCode.SUCCESS


@pytest.mark.parametrize(
    ("first", "second", "lets_in"),
    [
        ({}, {}, True),
        ({}, {"username": "ann"}, False),
        ({"username": "ann"}, {}, False),
        ({"username": "ann"}, {"username": "ann", "password": b"guest"}, False),
        ({"username": "ann", "password": b"guest"}, {"username": "bob", "password": b"guest"}, True),
        ({"username": "ann"}, {"username": "Ann"}, False),
        ({"username": ""}, {}, False),
    ],
)
@pytest.mark.parametrize("waits", [False, True])
def test_clients_without_a_user_are_one_nobody(
    first: dict[str, Any], second: dict[str, Any], lets_in: bool, waits: bool
) -> None:
    """Whatever name they give, they may take over from each other, and from nobody who has a user."""
    house = a_house()
    before = house.connect("c", **keeps(V5), **first)
    if waits:
        before.drop()

    again = house.connect("c", **keeps(V5), **second)

    assert again.connack.reason is (ReasonCode.SUCCESS if lets_in else REFUSED)
    assert before.closed is (lets_in or waits)


def test_anybody_may_reuse_a_client_id_where_the_settings_say_so() -> None:
    """As with Mosquitto and EMQX: who gives the client id takes over the connection and the session."""
    house = a_house("anybody")
    before = house.connect("c", **keeps(V5), username="ann").subscribe("a", qos=1)

    again = house.connect("c", **keeps(V5), username="mallory")

    assert before.closed
    assert again.connack.session_present
    assert house.broker.sessions.by_id["c"].client.username == "mallory"


def _disconnects(house: House, peer: Peer) -> None:
    peer.disconnect()


def _ends(house: House, peer: Peer) -> None:
    peer.disconnect(properties=Properties(session_expiry_interval=0))


def _expires(house: House, peer: Peer) -> None:
    peer.drop()
    house.advance(62)


@pytest.mark.parametrize(
    ("expiry_s", "ends"), [(0, _disconnects), (0, lambda house, peer: peer.drop()), (60, _ends), (60, _expires)]
)
def test_a_client_id_is_free_when_its_session_has_ended(expiry_s: int, ends: Callable[[House, Peer], object]) -> None:
    """With its connection, by DISCONNECT, or after its time."""
    house = a_house()
    ends(house, house.connect("c", V5, expiry_s=expiry_s, username="ann"))

    other = house.connect("c", V5, clean_start=False, expiry_s=60, username="bob")

    assert other.connack.reason is ReasonCode.SUCCESS
    assert not other.connack.session_present


def test_the_user_is_known_after_a_restart() -> None:
    """It is stored with the session, also where the client came back meanwhile."""
    sessions = SlowSessions()
    house = a_house(plugins={"sessions": sessions})
    house.connect("c", **keeps(V5), username="ann").drop()
    house.connect("c", **keeps(V5), username="ann").drop()

    later = a_house(plugins={"sessions": sessions}, clock=TurnableClock(house.clock.now()))

    assert later.connect("c", **keeps(V5), username="bob").connack.reason is REFUSED
    assert later.connect("c", **keeps(V5), username="ann").connack.session_present


def test_the_log_says_whose_it_is_and_the_client_is_not_told(lines: list[str]) -> None:
    """One line; the owner's name stands there and nowhere else."""
    house = a_house()
    house.connect("c", V5, username="ann")
    lines.clear()

    thief = house.connect("c", V5, username="mallory")

    [line] = [each for each in lines if "refused" in each]
    assert line.endswith(
        "(client 'c', user 'mallory') refused (the session has user 'ann'): another user has a session under this "
        "client id (0x85 CLIENT_IDENTIFIER_NOT_VALID)"
    )
    assert "ann" not in str(thief.packets)
    assert house.broker.runtime.statistics.connections_refused.value == 1


def test_a_refused_client_leaves_no_trace_in_plugins() -> None:
    """No session is told of as taken over, resumed, created or ended, and nobody as connected."""
    told: list[str] = []

    class Watcher:
        @hookimpl
        def session_taken_over(self, client: Client, old_address: Address) -> None:
            told.append("taken over")

        @hookimpl
        def session_resumed(self, client: Client) -> None:
            told.append("resumed")

        @hookimpl
        def session_created(self, client: Client) -> None:
            told.append("created")

        @hookimpl
        def session_discarded(self, client_id: str) -> None:
            told.append("discarded")

        @hookimpl
        def connected(self, client: Client) -> None:
            told.append("connected")

    house = a_house(plugins={"watcher": Watcher()})
    house.connect("c", **keeps(V5), username="ann")
    told.clear()

    house.connect("c", V5, username="mallory")
    house.advance(100)

    assert told == []


# What was stored before names were verified


def stored_before(username: str | None) -> SlowSessions:
    """A store with a session of which nobody knows whether its user was verified."""
    sessions = SlowSessions()
    epoch = sessions.claim("c", ELSEWHERE).epoch
    session = StoredSession("c", 10_000, username=username, protocol_version=5, username_unverified=True)
    sessions.apply([OpenSession(epoch, session)])
    return sessions


@pytest.mark.parametrize(
    ("username", "comes"),
    [
        ("ha", {"username": "ha"}),
        ("ha", {"username": "ha", "password": b"guest"}),
        (None, {}),
    ],
)
def test_an_unverified_session_is_for_whoever_has_the_name_it_was_stored_with(
    username: str | None, comes: dict[str, Any]
) -> None:
    """Verified, or given as it was given then; from then on it is that user's, and verified."""
    house = a_house(plugins={"sessions": stored_before(username)})

    back = house.connect("c", **keeps(V5), **comes)
    house.settle()
    back.drop()

    assert back.connack.session_present
    verified = None if "password" in comes else comes.get("username")
    [(_, stored)] = house.assembly.stores.session.iterate().sessions  # type: ignore[union-attr]
    assert (stored.username, stored.username_unverified) == (verified, False)
    if verified is None and username is not None:
        assert house.connect("c", **keeps(V5), username="ha").connack.reason is REFUSED


@pytest.mark.parametrize("comes", [{"username": "eve"}, {"username": "eve", "password": b"guest"}, {}])
def test_an_unverified_session_is_for_nobody_else(comes: dict[str, Any]) -> None:
    """Not for a client of another name, and not for one without."""
    house = a_house(plugins={"sessions": stored_before("ha")})

    assert house.connect("c", **keeps(V5), **comes).connack.reason is REFUSED


def test_a_session_of_nobody_is_for_no_user() -> None:
    """Who has a user name by now was not the one without it."""
    house = a_house(plugins={"sessions": stored_before(None)})

    assert house.connect("c", **keeps(V5), username="ann").connack.reason is REFUSED


# Stores that several brokers share, and stores that answer late


def two_houses() -> tuple[House, House]:
    """Two brokers over one store of sessions."""
    sessions = SlowSessions()
    here = a_house(plugins={"sessions": sessions})
    there = a_house(plugins={"sessions": sessions}, clock=TurnableClock(here.clock.now()))
    return here, there


@pytest.mark.parametrize("expiry_s", [0, 60])
def test_a_client_of_another_broker_is_not_disturbed(expiry_s: int) -> None:
    """The store says whose the client id is before anybody has claimed it, also where nothing is stored."""
    here, there = two_houses()
    victim = here.connect("c", V5, expiry_s=expiry_s, username="ann").subscribe("a", qos=1)

    thief = there.connect("c", V5, expiry_s=expiry_s, username="mallory")
    victim.subscribe("b", qos=1)
    here.connect("p", username="bob").publish("b", b"x", qos=1)
    here.advance(5)

    assert thief.connack.reason is REFUSED
    assert not victim.closed
    assert payloads(victim) == [b"x"]


def test_a_clean_start_over_a_stored_session_holds_the_client_id() -> None:
    """With the session that it ends the store forgets who holds the id, and so it is claimed once more."""
    here, there = two_houses()
    here.connect("c", **keeps(V5), username="ann").drop()
    victim = here.connect("c", V5, username="ann").subscribe("a")

    thief = there.connect("c", V5, username="mallory")
    here.connect("p", username="bob").publish("a", b"x")

    assert thief.connack.reason is REFUSED
    assert payloads(victim) == [b"x"]
    victim.disconnect()
    assert there.connect("c", V5, username="mallory").connack.reason is ReasonCode.SUCCESS


def test_its_user_may_come_to_another_broker() -> None:
    """The session goes along."""
    here, there = two_houses()
    here.connect("c", **keeps(V5), username="ann").drop()

    assert there.connect("c", **keeps(V5), username="ann").connack.session_present


class Hasty(MemorySessionStore):
    """A store that claims whatever is claimed, as one that knows nothing of users does."""

    def claim_for(self, client_id: str, node: NodeIdentity, claimant: Claimant, above: int = 0) -> Claim:
        return self.claim(client_id, node)

    @hookimpl
    def session_store(self) -> Hasty:
        return self


def test_what_a_store_has_claimed_too_soon_is_given_back() -> None:
    """The client is refused all the same, and the session waits for its user, and for its end, as before."""
    sessions = Hasty()
    house = a_house(plugins={"sessions": sessions})
    epoch = sessions.claim("c", ELSEWHERE).epoch
    stored = StoredSession("c", 60, username="ann", protocol_version=5, expires_at=house.clock.now() + 60)
    sessions.apply([OpenSession(epoch, stored)])

    thief = house.connect("c", **keeps(V5), username="mallory")
    house.settle()

    assert thief.connack.reason is REFUSED
    [(_, left)] = sessions.iterate().sessions
    assert left == stored
    assert sessions.claim("c", ELSEWHERE).previous_owner is None


def test_two_users_at_once_get_one_session() -> None:
    """The second waits until the first has claimed, and is refused then."""
    sessions = SlowSessions()
    house = a_house(plugins={"sessions": sessions})
    sessions.claims.slow = True
    first = house.connect("c", **keeps(V5), username="ann")
    second = house.connect("c", **keeps(V5), username="bob")

    sessions.claims.answer_all()
    house.settle()

    assert first.connack.reason is ReasonCode.SUCCESS
    assert second.connack.reason is REFUSED
    assert not first.closed


# Both as one: whatever happens, a session is its user's

_NAMES = st.sampled_from([None, "ann", "bob"])
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("connect"), st.sampled_from("cd"), _NAMES, st.booleans(), st.sampled_from([0, 60])),
        st.tuples(st.just("drop"), st.sampled_from("cd")),
        st.tuples(st.just("leave"), st.sampled_from("cd")),
        st.tuples(st.just("wait"), st.sampled_from([1, 70])),
    ),
    max_size=12,
)


@given(_STEPS)
def test_a_session_never_changes_its_user(steps: list[Any]) -> None:
    """Whoever comes and goes: let in is who has the id to itself, or is its user, and nobody else is disturbed."""
    house = a_house()
    owners: dict[str, tuple[str | None, Peer | None, int]] = {}
    for kind, *what in steps:
        if kind == "wait":
            house.advance(what[0])
            if what[0] > 61:
                owners = {name: its for name, its in owners.items() if its[1] is not None}
            continue
        client_id = what[0]
        user, peer, expiry_s = owners.get(client_id, (None, None, -1))
        if kind == "connect":
            _, username, clean_start, wanted_s = what
            comes = house.connect(client_id, V5, username=username, clean_start=clean_start, expiry_s=wanted_s)
            free = client_id not in owners or user == username
            assert comes.connack.reason is (ReasonCode.SUCCESS if free else REFUSED)
            if free:
                owners[client_id] = (username, comes, wanted_s)
            elif peer is not None:
                assert not peer.closed
        elif peer is not None:
            (peer.drop if kind == "drop" else peer.disconnect)()
            if expiry_s:
                owners[client_id] = (user, None, expiry_s)
            else:
                del owners[client_id]
