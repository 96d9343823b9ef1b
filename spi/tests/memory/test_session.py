"""Sessions in memory, against a model of plain dicts."""

from __future__ import annotations

import pytest
from attrs import evolve
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kinmqtt_spi.errors import Fenced
from kinmqtt_spi.memory.session import MemorySessionStore
from kinmqtt_spi.services.session import (
    Claim,
    ClearWill,
    DiscardSession,
    OpenSession,
    ReleaseSession,
    RemoveSubscriptions,
    ResumeSession,
    SaveSubscriptions,
    SessionWrite,
    StoredSession,
)
from kinmqtt_spi.values import Message, NodeIdentity, Subscription, Will
from spi_harness.examples import examples

ONE = NodeIdentity("one", 1)
TWO = NodeIdentity("two", 2)
WILL = Will(Message("gone"), delay_s=5)


def stored(store: MemorySessionStore, client_id: str, **values: object) -> int:
    """Claim a client id for node ONE and open a session under it; answers the epoch."""
    epoch = store.claim(client_id, ONE).epoch
    store.apply([OpenSession(epoch, StoredSession(client_id, 60, **values))])  # type: ignore[arg-type]
    return epoch


def test_epochs_rise_with_each_claim() -> None:
    """A claim's epoch is one more than any before, and it names who held the client id until now."""
    store = MemorySessionStore()

    claims = [store.claim("c", ONE), store.claim("c", TWO), store.claim("c", TWO)]

    assert claims == [Claim(1), Claim(2, ONE), Claim(3, TWO)]


def test_epochs_do_not_go_back_after_a_discard() -> None:
    """The height of an epoch outlives its session, so that a former owner stays fenced."""
    store = MemorySessionStore()
    epoch = stored(store, "c")
    store.apply([DiscardSession("c", epoch)])

    claim = store.claim("c", ONE)

    assert claim == Claim(epoch + 1)
    with pytest.raises(Fenced):
        store.apply([SaveSubscriptions("c", epoch, ())])


def test_forgotten_heights_still_hold_epochs_up() -> None:
    """However many client ids came and went, no epoch is given twice to the same one."""
    store = MemorySessionStore(remembered_epochs=2)
    given = {}
    for name in "abcd":
        for _ in range(3):
            given[name] = stored(store, name)
        store.apply([DiscardSession(name, given[name])])

    with pytest.raises(Fenced) as caught:
        store.apply([OpenSession(given["a"] - 1, StoredSession("a", 1))])
    again = {name: store.claim(name, ONE).epoch for name in "abcd"}

    assert caught.value.client_ids == {"a"}
    assert all(again[name] > given[name] for name in "abcd")
    assert len(store._past_epochs) == 0


def test_a_released_claim_is_forgotten() -> None:
    """A client id that ends up nobody's leaves no record and no owner, and its next epoch is higher all the same."""
    store = MemorySessionStore()
    epoch = store.claim("c", ONE).epoch

    store.release("c", epoch)

    assert len(store._records) == 0
    assert store.claim("c", TWO) == Claim(epoch + 1)


def test_a_claim_is_released_by_its_owner_only() -> None:
    """Who was outbid meanwhile, and who was never there, takes nothing from anybody."""
    store = MemorySessionStore()
    epoch = store.claim("c", ONE).epoch
    newer = store.claim("c", TWO).epoch

    store.release("c", epoch)
    store.release("unknown", 1)

    assert store.claim("c", ONE) == Claim(newer + 1, TWO)


def test_a_stored_session_is_not_released_with_a_claim() -> None:
    """It stays where it is, with its owner: its end is another matter."""
    store = MemorySessionStore()
    epoch = stored(store, "c")

    store.release("c", epoch)

    claim = store.claim("c", TWO)
    assert (claim.previous_owner, store.count()) == (ONE, 1)
    assert claim.session is not None


def test_a_claim_of_a_session_that_has_ended_can_be_released() -> None:
    """Also one whose session was stored and discarded under it: nothing is left of it but the height of its epoch."""
    store = MemorySessionStore()
    epoch = stored(store, "c")
    store.apply([DiscardSession("c", epoch)])

    store.release("c", epoch)

    assert len(store._records) == 0
    assert store.claim("c", TWO) == Claim(epoch + 1)


def test_what_would_be_refused_can_be_taken_out_beforehand() -> None:
    """A batch is left with what will be kept, in its order; the clients of the rest are named, nothing is written."""
    store = MemorySessionStore()
    old, fine = stored(store, "old"), stored(store, "fine")
    store.claim("old", TWO)
    good: list[SessionWrite] = [
        ClearWill("fine", fine),
        SaveSubscriptions("new", 1, ()),
        ReleaseSession("fine", fine, None),
    ]
    writes: list[SessionWrite] = [ClearWill("old", old), good[0], DiscardSession("old", old), *good[1:]]
    before = list(store.iterate().sessions)

    fenced = store.take_fenced(writes)

    assert (fenced, writes) == ({"old"}, good)
    assert list(store.iterate().sessions) == before


def test_nothing_is_taken_out_of_a_batch_that_will_be_kept() -> None:
    """Nobody is named, and the batch is as it was."""
    store = MemorySessionStore()
    writes: list[SessionWrite] = [OpenSession(1, StoredSession("a", 60)), ClearWill("b", 1), DiscardSession("a", 2)]

    fenced = store.take_fenced(whole := list(writes))

    assert (fenced, whole) == (set(), writes)


def test_a_batch_shuts_out_its_own_older_writes() -> None:
    """What is taken out beforehand is what would have been refused, owners that change within the batch included."""
    store, other = MemorySessionStore(), MemorySessionStore()
    writes: list[SessionWrite] = [
        ClearWill("c", 1),
        OpenSession(3, StoredSession("c", 60)),
        ClearWill("c", 2),
        DiscardSession("c", 3),
    ]

    fenced = store.take_fenced(left := list(writes))
    with pytest.raises(Fenced) as caught:
        other.apply(writes)
    store.apply(left)

    assert left == [*writes[:2], writes[3]]
    assert fenced == caught.value.client_ids == {"c"}
    assert store.iterate() == other.iterate()


def test_forgotten_heights_shut_out_beforehand_too() -> None:
    """A client id of which nothing is left but a common height is judged by that."""
    store = MemorySessionStore(remembered_epochs=0, floor=5)

    writes: list[SessionWrite] = [ClearWill("a", 4), ClearWill("b", 5)]

    assert store.take_fenced(writes) == {"a"}
    assert writes == [ClearWill("b", 5)]


def test_a_former_owner_is_fenced_and_the_others_are_kept() -> None:
    """A write of an older epoch is refused by name; the rest of its batch is kept."""
    store = MemorySessionStore()
    old, other = stored(store, "old"), stored(store, "other")
    store.claim("old", TWO)

    with pytest.raises(Fenced) as caught:
        store.apply(
            [
                SaveSubscriptions("old", old, (Subscription("a"),)),
                SaveSubscriptions("other", other, (Subscription("b"),)),
            ]
        )

    sessions = {session.client_id: session for _, session in store.iterate().sessions}
    assert caught.value.client_ids == {"old"}
    assert sessions["old"].subscriptions == ()
    assert sessions["other"].subscriptions == (Subscription("b"),)


def test_an_expired_session_is_handed_over_with_its_will() -> None:
    """A claim hides nothing that is stored: an expired session still owes its will (MQTT-3.1.2-8)."""
    store = MemorySessionStore()
    epoch = stored(store, "c", will=WILL)
    store.apply([ReleaseSession("c", epoch, expires_at=10.0, will_due_at=10.0)])

    claim = store.claim("c", ONE)

    assert claim.session is not None
    assert (claim.session.will, claim.session.expires_at) == (WILL, 10.0)


def test_a_session_that_waits_is_handed_over_whole() -> None:
    """A client that comes back in time finds its subscriptions and what else was stored (section 4.1)."""
    store = MemorySessionStore()
    session = StoredSession("c", 60, (Subscription("a"), Subscription("b", share_group="g")), WILL, 3.0, "u", 5)
    epoch = store.claim("c", ONE).epoch
    store.apply([OpenSession(epoch, session), ReleaseSession("c", epoch, 60.0, 5.0)])

    claim = store.claim("c", TWO)

    assert claim == Claim(epoch + 1, None, evolve(session, expires_at=60.0, will_due_at=5.0))


def test_a_resumed_session_does_not_expire() -> None:
    """A connection within the time takes expiry and old will off the session (MQTT-3.1.3-9)."""
    store = MemorySessionStore()
    epoch = stored(store, "c", will=WILL)
    store.apply([ReleaseSession("c", epoch, 60.0, 5.0)])
    epoch = store.claim("c", ONE).epoch

    store.apply([ResumeSession("c", epoch, 30, username="u", protocol_version=5)])

    assert store.iterate().sessions == ((epoch, StoredSession("c", 30, username="u", protocol_version=5)),)
    assert (store.expired(1e9, 9), store.due_wills(1e9, 9)) == ([], [])


def test_opening_forgets_what_was_stored() -> None:
    """A clean start leaves nothing of the session before (MQTT-3.1.2-4)."""
    store = MemorySessionStore()
    stored(store, "c", subscriptions=(Subscription("old"),), will=WILL)

    epoch = stored(store, "c", subscriptions=(Subscription("new"),))

    assert store.iterate().sessions == ((epoch, StoredSession("c", 60, (Subscription("new"),))),)


def test_subscriptions_are_added_replaced_and_removed_by_full_filter() -> None:
    """A shared subscription and a plain one to one filter are two; the same again replaces (MQTT-3.8.4-3)."""
    store = MemorySessionStore()
    epoch = stored(store, "c", subscriptions=(Subscription("a"), Subscription("a", share_group="g")))

    store.apply(
        [
            SaveSubscriptions("c", epoch, (Subscription("a", qos=2), Subscription("b"))),
            RemoveSubscriptions("c", epoch, ("$share/g/a", "never")),
        ]
    )

    assert store.iterate().sessions[0][1].subscriptions == (Subscription("a", qos=2), Subscription("b"))


def test_writes_to_a_session_that_is_not_stored_change_nothing() -> None:
    """A client whose session ends with its connection leaves nothing but its epoch."""
    store = MemorySessionStore()
    epoch = store.claim("c", ONE).epoch

    store.apply(
        [
            ResumeSession("c", epoch, 1),
            SaveSubscriptions("c", epoch, (Subscription("a"),)),
            RemoveSubscriptions("c", epoch, ("a",)),
            ClearWill("c", epoch),
            ReleaseSession("c", epoch, None),
        ]
    )

    assert (store.count(), store.claim("c", TWO)) == (0, Claim(epoch + 1))


def test_due_sessions_and_wills_are_listed_until_they_are_dealt_with() -> None:
    """Asking removes nothing: a sweep that fails half-way finds the rest again."""
    store = MemorySessionStore()
    for number, name in enumerate("abc", start=1):
        epoch = stored(store, name, will=WILL)
        store.apply([ReleaseSession(name, epoch, expires_at=10.0 * number, will_due_at=float(number))])

    first = [session.client_id for _, session in store.expired(20.0, 9)]
    again = [session.client_id for _, session in store.expired(20.0, 1)]
    wills = [session.client_id for _, session in store.due_wills(2.5, 9)]
    store.apply([ClearWill("a", 1), DiscardSession("b", 1)])

    assert (first, again, wills) == (["a", "b"], ["a"], ["a", "b"])
    assert [session.client_id for _, session in store.expired(30.0, 9)] == ["a", "c"]
    assert [session.client_id for _, session in store.due_wills(30.0, 9)] == ["c"]


def test_a_claimed_session_is_nobodys_to_expire() -> None:
    """From its claim on, a session's end is its owner's affair."""
    store = MemorySessionStore()
    epoch = stored(store, "c", will=WILL)
    store.apply([ReleaseSession("c", epoch, 10.0, 5.0)])

    store.claim("c", ONE)

    assert (store.expired(99.0, 9), store.due_wills(99.0, 9)) == ([], [])


def test_the_sessions_of_a_dead_node_are_listed_for_adoption() -> None:
    """Only stored sessions that the node still owned are owned_by, until another node claims them."""
    store = MemorySessionStore()
    epochs = {name: stored(store, name) for name in "abc"}
    store.claim("connection-only", ONE)
    store.apply([ReleaseSession("b", epochs["b"], None)])

    before = store.owned_by(ONE, 9)
    store.claim("a", TWO)

    assert before == ("a", "c")
    assert (store.owned_by(ONE, 9), store.owned_by(TWO, 9), store.owned_by(ONE, 0)) == (("c",), ("a",), ())


def test_a_session_that_stays_is_seen_once_whatever_comes_and_goes() -> None:
    """Pages continue after the last session seen, not at a count that discards would move."""
    store = MemorySessionStore()
    for number in range(6):
        stored(store, f"c{number}")

    page = store.iterate(limit=3)
    store.apply([DiscardSession("c0", 1), DiscardSession("c1", 1), DiscardSession("c4", 1)])
    stored(store, "late")
    stored(store, "c2")
    rest = store.iterate(page.cursor, 3)

    assert [session.client_id for _, session in page.sessions] == ["c0", "c1", "c2"]
    assert [session.client_id for _, session in rest.sessions] == ["c3", "c5", "late"]
    assert (page.cursor is None, rest.cursor) == (False, None)


def test_iteration_forgets_discarded_sessions() -> None:
    """The list behind iteration does not grow with sessions that came and went."""
    store = MemorySessionStore()

    for number in range(3000):
        name = f"c{number}"
        store.apply([DiscardSession(name, stored(store, name))])

    assert len(store._order) <= 1025


NAMES = st.sampled_from(["a", "b", "c"])
NODES = st.sampled_from([ONE, TWO])
FILTERS = st.sampled_from([Subscription("x"), Subscription("y", qos=1), Subscription("x", share_group="g")])


class SessionModel(RuleBasedStateMachine):
    """Client ids with an epoch, an owner and a session each, and a clock that only goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.store = MemorySessionStore(remembered_epochs=1)
        self.now = 0.0
        self.epochs: dict[str, int] = {}
        self.owners: dict[str, NodeIdentity] = {}
        self.sessions: dict[str, StoredSession] = {}

    @rule(seconds=st.integers(0, 5))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule(name=NAMES, node=NODES)
    def claim(self, name: str, node: NodeIdentity) -> None:
        session = self.sessions.get(name)
        claim = self.store.claim(name, node)
        assert claim.epoch > self.epochs.get(name, 0)
        assert (claim.previous_owner, claim.session) == (self.owners.get(name), session)
        self.epochs[name] = claim.epoch
        self.owners[name] = node

    @rule(name=NAMES, will=st.none() | st.just(WILL))
    def open(self, name: str, will: Will | None) -> None:
        if name in self.owners:
            self.sessions[name] = StoredSession(name, 9, (Subscription("x"),), will)
            self.store.apply([OpenSession(self.epochs[name], self.sessions[name])])

    @rule(name=NAMES)
    def resume(self, name: str) -> None:
        if name in self.owners:
            self.store.apply([ResumeSession(name, self.epochs[name], 7)])
            self.change(name, expiry_s=7, will=None, expires_at=None, will_due_at=None)

    @rule(name=NAMES, subscription=FILTERS, add=st.booleans())
    def subscribe(self, name: str, subscription: Subscription, add: bool) -> None:
        if name not in self.owners:
            return
        epoch, full = self.epochs[name], subscription.full_filter
        write = SaveSubscriptions(name, epoch, (subscription,)) if add else RemoveSubscriptions(name, epoch, (full,))
        self.store.apply([write])
        if name in self.sessions:
            held = {each.full_filter: each for each in self.sessions[name].subscriptions}
            if add:
                held[full] = subscription
            else:
                held.pop(full, None)
            self.change(name, subscriptions=tuple(held.values()))

    @rule(name=NAMES, expiry=st.none() | st.integers(0, 9), will=st.none() | st.integers(0, 9))
    def release(self, name: str, expiry: int | None, will: int | None) -> None:
        if self.owners.pop(name, None) is not None:
            expires_at = None if expiry is None else self.now + expiry
            will_due_at = None if will is None else self.now + will
            self.store.apply([ReleaseSession(name, self.epochs[name], expires_at, will_due_at)])
            self.change(name, expires_at=expires_at, will_due_at=will_due_at)

    @rule(name=NAMES)
    def clear_will(self, name: str) -> None:
        if name in self.sessions:
            self.store.apply([ClearWill(name, self.epochs[name])])
            self.change(name, will=None, will_due_at=None)

    @rule(name=NAMES)
    def discard(self, name: str) -> None:
        if name in self.sessions:
            self.store.apply([DiscardSession(name, self.epochs[name])])
            self.owners.pop(name, None)
            del self.sessions[name]

    @rule(name=NAMES)
    def former_owner(self, name: str) -> None:
        if name in self.sessions:
            with pytest.raises(Fenced):
                self.store.apply([DiscardSession(name, self.epochs[name] - 1)])

    def change(self, name: str, **values: object) -> None:
        if name in self.sessions:
            self.sessions[name] = evolve(self.sessions[name], **values)  # type: ignore[arg-type]

    @invariant()
    def store_and_model_agree(self) -> None:
        assert {session.client_id: (epoch, session) for epoch, session in self.store.iterate().sessions} == {
            name: (self.epochs[name], session) for name, session in self.sessions.items()
        }
        assert self.store.count() == len(self.sessions)
        subscriptions = [each for session in self.sessions.values() for each in session.subscriptions]
        expected = (len(subscriptions), sum(each.size_bytes for each in subscriptions))
        assert self.store.subscriptions() == expected
        released = {name: session for name, session in self.sessions.items() if name not in self.owners}
        assert {session.client_id for _, session in self.store.expired(self.now, 9)} == {
            name for name, session in released.items() if due(session.expires_at, self.now)
        }
        assert {session.client_id for _, session in self.store.due_wills(self.now, 9)} == {
            name for name, session in released.items() if due(session.will_due_at, self.now)
        }
        for node in (ONE, TWO):
            owned = {name for name in self.sessions if self.owners.get(name) == node}
            assert set(self.store.owned_by(node, 9)) == owned


def due(at: float | None, now: float) -> bool:
    return at is not None and at <= now


TestSessionModel = SessionModel.TestCase
TestSessionModel.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
