"""Members of a shared subscription that may not receive: others get their messages (section 4.8.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred

from core_harness.house import House, Peer
from kinmqtt.builtins.share_strategy import ShareStrategySettings, Strategy
from kinmqtt.mqtt.packets import V5, Puback, Pubrec
from kinmqtt_spi import ALLOW, Client, Drop, Message, Properties, Subscription, Verdict, deny, hookimpl
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authorization import Authorization, AuthorizationRequest, Cache
from kinmqtt_spi.services.queue import OverflowPolicy
from kinmqtt_spi.services.subscription import Subscriber

YES_FOR_GOOD = Authorization(Verdict.ALLOW, cache=Cache.TOPIC)
NO_FOR_GOOD = Authorization(Verdict.DENY, ReasonCode.NOT_AUTHORIZED, "never", Cache.TOPIC)


class Censor:
    """Denies every message to those who are named."""

    def __init__(self, *denied: str, yes: Any = ALLOW, no: Any = deny) -> None:
        self.denied = set(denied)
        self.asked: list[str] = []
        self._yes = yes
        self._no = no

    @hookimpl
    def authorize_receive(self, request: AuthorizationRequest) -> Any:
        client_id = request.client.client_id
        self.asked.append(client_id)
        if client_id not in self.denied:
            return self._yes
        return self._no() if callable(self._no) else self._no


class Witness:
    """Sees what is dropped, and who is refused."""

    def __init__(self) -> None:
        self.dropped_for: list[tuple[str, str]] = []

    @hookimpl
    def dropped(self, client_id: str, message: Message, why: str) -> None:
        self.dropped_for.append((client_id, why))


class Chooser:
    """Takes the first candidate, and remembers who they were."""

    def __init__(self) -> None:
        self.shown: list[list[str]] = []

    @hookimpl
    def choose_member(self, candidates: Sequence[Subscriber]) -> Subscriber:
        self.shown.append([candidate.client_id for candidate in candidates])
        return candidates[0]


def broken() -> Any:
    """What a broken plugin does."""
    raise ValueError("broken")


def never() -> Deferred[Any]:
    """What a plugin does that wants to be waited for."""
    return Deferred()


def members(house: House, names: str, qos: int = 2, **more: Any) -> list[Peer]:
    """One member for each letter."""
    return [house.connect(name, V5, **more).subscribe("$share/g/t", qos) for name in names]


def counts(peers: Sequence[Peer]) -> list[int]:
    """How many messages each has."""
    return [len(peer.messages) for peer in peers]


def drops(house: House, why: str = "not_authorized") -> int:
    """How often it was counted that a message was dropped for that reason."""
    return house.broker.runtime.statistics.dropped[why].value


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize(
    "censor",
    [
        lambda: Censor("a"),
        lambda: Censor("a", yes=YES_FOR_GOOD, no=NO_FOR_GOOD),
        lambda: Censor("a", no=broken),
        lambda: Censor("a", no=never),
    ],
    ids=["asked each time", "answered for good", "fails", "answers late"],
)
def test_a_member_that_may_not_receive_loses_nothing(censor: Callable[[], Censor], qos: int) -> None:
    """All of forty messages reach the members that may have them, each its part, and nothing counts as dropped."""
    house = House(plugins={"censor": censor()})
    denied, *others = members(house, "abc")
    publisher = house.connect("p", V5)

    for _ in range(40):
        publisher.publish("t", b"x", qos)

    assert counts([denied, *others]) == [0, 20, 20]
    assert drops(house) == 0


@pytest.mark.parametrize(("qos", "answer"), [(0, None), (1, Puback), (2, Pubrec)])
@pytest.mark.parametrize("no", [deny, NO_FOR_GOOD, broken, never], ids=["each time", "for good", "fails", "late"])
def test_where_no_member_may_receive_one_drop_is_counted(no: Any, qos: int, answer: Any) -> None:
    """One for each message, whatever the number of members, and told of the member whose turn it was."""
    witness = Witness()
    house = House(plugins={"censor": Censor(*"abc", no=no), "witness": witness})
    all_three = members(house, "abc")
    publisher = house.connect("p", V5)

    for _ in range(4):
        publisher.publish("t", b"x", qos)

    assert counts(all_three) == [0, 0, 0]
    assert drops(house) == 4
    assert [why for _, why in witness.dropped_for] == ["not_authorized"] * 4
    assert {client_id for client_id, _ in witness.dropped_for} <= set("abc")
    if answer is not None:
        assert [packet.reason for packet in publisher.of(answer)] == [ReasonCode.SUCCESS] * 4


@pytest.mark.parametrize("for_good", [False, True])
def test_a_member_is_asked_about_once_for_each_message(for_good: bool) -> None:
    """Who is chosen is not asked about again as it is delivered; what holds for good is asked about once."""
    censor = Censor("b", yes=YES_FOR_GOOD, no=NO_FOR_GOOD) if for_good else Censor("b")
    house = House(plugins={"censor": censor})
    members(house, "ab")
    publisher = house.connect("p")

    for _ in range(4):
        publisher.publish("t", b"x", 1)

    if for_good:
        assert sorted(censor.asked) == ["a", "b"]
    else:
        # The first turn is a's; then it is b's, who may not, and passes it on.
        assert censor.asked == ["a", "b", "a", "b", "a", "b", "a"]


def test_rights_that_change_hold_for_the_next_message() -> None:
    """A member that loses its right loses its turns, and one that gets it back has them again."""
    censor = Censor(yes=YES_FOR_GOOD, no=NO_FOR_GOOD)
    house = House(plugins={"censor": censor})
    both = members(house, "ab")
    publisher = house.connect("p")

    found = []
    for denied in ("", "a", "b", ""):
        censor.denied = set(denied)
        house.assembly.contexts["censor"].authorization_changed(_everybody())
        before = counts(both)
        for _ in range(4):
            publisher.publish("t", b"x")
        found.append([now - then for now, then in zip(counts(both), before, strict=True)])

    assert found == [[2, 2], [0, 4], [4, 0], [2, 2]]


def _everybody() -> Any:
    from kinmqtt_spi.services.authorization import EVERYBODY

    return EVERYBODY


@pytest.mark.parametrize(("qos", "waiting"), [(0, 0), (1, 3)])
def test_a_member_that_is_away_takes_what_those_who_are_there_may_not_have(qos: int, waiting: int) -> None:
    """Its queue keeps QoS 1, rather than that the message goes to nobody."""
    house = House(plugins={"censor": Censor("here")})
    house.connect("away", V5, expiry_s=60).subscribe("$share/g/t", 1).drop()
    here = house.connect("here", V5).subscribe("$share/g/t", 1)
    publisher = house.connect("p")

    for _ in range(3):
        publisher.publish("t", b"x", qos)

    assert here.messages == []
    assert house.broker.sessions.by_id["away"].queue.count == waiting
    assert (drops(house), drops(house, "offline")) == (0, 3 - waiting)


def test_a_plugin_chooses_among_those_that_may_receive() -> None:
    """It sees connected members that may have the message, else those that are away and may; else it is not asked."""
    chooser = Chooser()
    censor = Censor("a")
    house = House(plugins={"chooser": chooser, "censor": censor})
    house.connect("d", V5, expiry_s=60).subscribe("$share/g/t", 1).drop()
    members(house, "abc", 1)
    publisher = house.connect("p")

    publisher.publish("t", b"1", 1)
    censor.denied = set("abc")
    publisher.publish("t", b"2", 1)
    censor.denied = set("abcd")
    publisher.publish("t", b"3", 1)

    assert chooser.shown == [["b", "c"], ["d"]]
    assert house.broker.sessions.by_id["d"].queue.count == 1
    assert drops(house) == 1


@pytest.mark.parametrize("strategy", list(Strategy))
@pytest.mark.parametrize("for_good", [False, True])
def test_no_strategy_loses_messages_to_a_member_that_may_not_receive(strategy: Strategy, for_good: bool) -> None:
    """Whatever it goes by, the members that may receive get them all."""
    censor = Censor("a", "c", yes=YES_FOR_GOOD, no=NO_FOR_GOOD) if for_good else Censor("a", "c")
    settings = {"share_strategy": ShareStrategySettings(groups={"g": strategy})}
    house = House(plugins={"censor": censor}, plugin_settings=settings)
    everybody = [house.connect(name).subscribe("$share/g/#") for name in "abcd"]

    for n in range(20):
        house.connect(f"p{n}").publish(f"t/{n}", b"x")

    a, b, c, d = counts(everybody)
    assert (a, c, b + d) == (0, 0, 20)
    assert drops(house) == 0


def test_a_full_member_decides_where_the_others_may_not_receive() -> None:
    """The queue policy of the last that may have the message holds: it is neither refused nor gone unseen."""
    house = House(
        plugins={"censor": Censor("b")}, max_queued_messages=2, max_inflight=1, queue_full=OverflowPolicy.DROP_OLDEST
    )
    full = house.connect("a", V5, expiry_s=60, silent=True).subscribe("$share/g/t", 1)
    house.connect("b", V5).subscribe("$share/g/t", 1)
    publisher = house.connect("p", V5)

    for n in range(5):
        publisher.publish("t", b"%d" % n, qos=1)
    full.drop()
    again = house.connect("a", V5, clean_start=False, expiry_s=60)

    assert [packet.reason for packet in publisher.of(Puback)] == [ReasonCode.SUCCESS] * 5
    assert [payload for _, payload, _ in again.messages] == [b"0", b"3", b"4"]
    assert (drops(house), drops(house, "queue_full")) == (0, 2)


@pytest.mark.parametrize("expiry_s", [None, 60], ids=["on_commit_failed", "kept"])
@pytest.mark.parametrize("held", ["in flight", "waiting"])
def test_what_a_lost_member_held_goes_to_one_that_may_receive(held: str, expiry_s: int | None) -> None:
    """Never to one that may not, which would lose it."""
    house = House(plugins={"censor": Censor("b")}, max_inflight=1 if held == "waiting" else 10)
    lost = house.connect("a", V5, expiry_s=expiry_s, silent=True).subscribe("$share/g/t", 1)
    publisher = house.connect("p")
    for n in range(3):
        publisher.publish("t", b"%d" % n, qos=1)
    others = members(house, "bc")

    lost.drop()

    assert counts(others) == [0, 3]
    assert drops(house) == 0


def test_what_a_lost_member_held_stays_where_nobody_else_may_receive() -> None:
    """It waits for its own client, which comes back to it."""
    house = House(plugins={"censor": Censor("b")})
    lost = house.connect("a", V5, expiry_s=60, silent=True).subscribe("$share/g/t", 1)
    house.connect("p").publish("t", b"x", qos=1)
    house.connect("b", V5).subscribe("$share/g/t", 1)

    lost.drop()
    again = house.connect("a", V5, clean_start=False, expiry_s=60)

    assert [payload for _, payload, _ in again.messages] == [b"x"]
    assert drops(house) == 0


def test_a_delivery_that_a_plugin_drops_goes_to_no_other_member() -> None:
    """``delivering`` has the last word on a message for the member that was chosen, and is counted once."""

    class Dropper:
        @hookimpl
        def delivering(self, client: Client, message: Message) -> Drop | None:
            return Drop() if client.client_id == "a" else None

    house = House(plugins={"dropper": Dropper()})
    both = members(house, "ab")
    publisher = house.connect("p")

    for _ in range(4):
        publisher.publish("t", b"x", 1)

    assert counts(both) == [0, 2]
    assert drops(house, "intercepted") == 2


def test_no_local_is_nothing_to_a_shared_subscription() -> None:
    """A plugin that asks for both does not make a member's own messages vanish [MQTT-3.8.3-4]."""

    class Clerk:
        @hookimpl
        def subscribing(self, subscription: Subscription) -> Subscription:
            return evolve(subscription, no_local=True)

    house = House(plugins={"clerk": Clerk()})
    client = house.connect("c", V5).subscribe("$share/g/t", 1)

    client.publish("t", b"x", qos=1)

    assert client.messages == [("t", b"x", 1)]


@given(
    rights=st.lists(st.sampled_from(["may", "may not"]), min_size=1, max_size=5),
    state=st.lists(st.sampled_from(["here", "away", "full"]), min_size=5, max_size=5),
    for_good=st.booleans(),
    chosen=st.booleans(),
    messages=st.integers(1, 6),
)
def test_a_message_reaches_a_member_that_may_receive_if_there_is_one(
    rights: list[str], state: list[str], for_good: bool, chosen: bool, messages: int
) -> None:
    """Whoever is there, away or full: it is sent, queued or dropped for a full queue, never for a missing right."""
    names = "abcde"[: len(rights)]
    denied = [name for name, right in zip(names, rights, strict=True) if right == "may not"]
    censor = Censor(*denied, yes=YES_FOR_GOOD, no=NO_FOR_GOOD) if for_good else Censor(*denied)
    plugins: dict[str, Any] = {"censor": censor}
    if chosen:
        plugins["chooser"] = Chooser()
    house = House(plugins=plugins, max_queued_messages=2, max_inflight=1)
    for name, how in zip(names, state, strict=False):
        peer = house.connect(name, V5, expiry_s=60, silent=how == "full", properties=Properties())
        peer.subscribe("$share/g/t", 1)
        if how == "away":
            peer.drop()
    publisher = house.connect("p", V5)

    for _ in range(messages):
        publisher.publish("t", b"x", 1)

    assert [packet.reason for packet in publisher.of(Puback)] == [ReasonCode.SUCCESS] * messages
    sessions = [house.broker.sessions.by_id[name] for name in names]
    reached = {
        session.client_id: len(peer.messages) + session.queue.count
        for session, peer in zip(sessions, house.peers, strict=False)
    }
    assert all(not reached[name] for name in denied)
    if len(denied) == len(names):
        assert (sum(reached.values()), drops(house)) == (0, messages)
    else:
        assert sum(reached.values()) + drops(house, "queue_full") == messages
        assert drops(house) == 0
    assert house.broker.runtime.statistics.dropped["offline"].value == 0
