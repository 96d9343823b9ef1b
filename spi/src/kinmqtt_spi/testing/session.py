"""The contract of a session store: owners of client ids, and persistent sessions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from attrs import evolve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kinmqtt_spi.errors import Fenced, ServiceUnavailable
from kinmqtt_spi.properties import Properties
from kinmqtt_spi.services.session import (
    Claim,
    Claimant,
    ClearWill,
    DiscardSession,
    OpenSession,
    ReleaseSession,
    RemoveSubscriptions,
    ResumeSession,
    SaveSubscriptions,
    SessionStore,
    SessionWrite,
    StoredSession,
)
from kinmqtt_spi.testing.behaviours import behaviour
from kinmqtt_spi.testing.build import HERE, NOW, THERE, session, subscription, will
from kinmqtt_spi.testing.contract import StoreContract, many
from kinmqtt_spi.testing.driving import Driver
from kinmqtt_spi.values import NodeIdentity, Will

FAR = NodeIdentity("far", 3)
"""A third node."""


class SessionStoreContract(StoreContract):
    """Override the fixture ``session_store``: an empty store, opened with ``drive`` if it must be awaited.

    It is the store of the node ``HERE``.
    """

    can_lose_nodes = False
    """Whether nodes share what is behind the store, so that it knows which of them live: override :meth:`lost`."""

    def lost(self, store: SessionStore, node: NodeIdentity, drive: Driver) -> None:
        """Make another node die."""
        raise NotImplementedError(f"{type(self).__name__} sets can_lose_nodes, and does not override lost")

    def look(self, store: SessionStore, drive: Driver) -> None:
        """Make the store check for claims by other nodes; nothing to do if it notifies at once."""

    @pytest.fixture
    def session_store(self) -> SessionStore:
        """The store under test, empty."""
        raise NotImplementedError(f"{type(self).__name__} does not override the fixture session_store")

    # Claims

    @behaviour("SESSION-01")
    def test_session_01_the_first_claim_finds_nothing(self, session_store: SessionStore, drive: Driver) -> None:
        """The first claim of a client id has an epoch of at least one, no previous owner and no session."""
        claim = drive(session_store.claim("a", HERE))

        assert claim.epoch >= 1
        assert claim.previous_owner is None
        assert claim.session is None

    @behaviour("SESSION-02")
    def test_session_02_epochs_only_rise(self, session_store: SessionStore, drive: Driver) -> None:
        """Each claim's epoch is above all earlier ones of this client id, whichever node claims."""
        epochs = [drive(session_store.claim("a", node)).epoch for node in (HERE, HERE, THERE, HERE)]

        assert epochs == sorted(set(epochs))

    @behaviour("SESSION-03")
    def test_session_03_a_claim_names_the_owner_before(self, session_store: SessionStore, drive: Driver) -> None:
        """A claim returns the previous owner of the client id, possibly the claiming node itself."""
        owners = [drive(session_store.claim("a", node)).previous_owner for node in (HERE, HERE, THERE, HERE)]

        assert owners == [None, HERE, HERE, THERE]

    @behaviour("SESSION-04")
    def test_session_04_a_claim_finds_the_session(self, session_store: SessionStore, drive: Driver) -> None:
        """A claim returns the stored session of this client id."""
        ours = session("a", subscriptions=(subscription("x/#", qos=1),))
        self._opened(session_store, drive, ours, session("b"))

        assert drive(session_store.claim("a", THERE)).session == ours

    @behaviour("SESSION-05")
    def test_session_05_an_older_epoch_is_refused(self, session_store: SessionStore, drive: Driver) -> None:
        """A write with an older epoch than the last claim's raises Fenced with its client id, and changes nothing."""
        stored = session("a", subscriptions=(subscription("x"),), will=will())
        old = self._opened(session_store, drive, stored)["a"]
        drive(session_store.claim("a", THERE))

        for write in _every_write("a", old):
            with pytest.raises(Fenced) as refused:
                self._apply(session_store, drive, write)
            assert refused.value.client_ids == {"a"}

        claim = drive(session_store.claim("a", HERE))
        assert (claim.session, claim.previous_owner) == (stored, THERE)

    @behaviour("SESSION-06")
    def test_session_06_others_of_the_batch_are_kept(self, session_store: SessionStore, drive: Driver) -> None:
        """If some writes of a batch are refused, all others are committed, and Fenced names all refused ones."""
        epochs = self._opened(session_store, drive, *(session(name) for name in "abc"))
        for name in "ac":
            drive(session_store.claim(name, THERE))
        writes = [SaveSubscriptions(name, epochs[name], (subscription("x"),)) for name in "abc"]

        with pytest.raises(Fenced) as refused:
            self.persist(session_store, lambda: session_store.apply(writes), drive)

        assert refused.value.client_ids == {"a", "c"}
        assert {name: len(self._stored(session_store, drive, name).subscriptions) for name in "abc"} == {
            "a": 0,
            "b": 1,
            "c": 0,
        }

    @behaviour("SESSION-07")
    def test_session_07_a_released_claim_leaves_no_owner(self, session_store: SessionStore, drive: Driver) -> None:
        """A claim without a stored session can be released: the next claim has no previous owner.

        Its epoch is still higher. A release with an older epoch does nothing.
        """
        first = drive(session_store.claim("a", HERE)).epoch
        session_store.release("a", first)
        second = drive(session_store.claim("a", HERE))
        session_store.release("a", first)

        third = drive(session_store.claim("a", THERE))

        assert second.epoch > first
        assert third.epoch > second.epoch
        assert third.previous_owner == HERE

    # Writes

    @behaviour("SESSION-08")
    def test_session_08_everything_comes_back(self, session_store: SessionStore, drive: Driver) -> None:
        """A stored session is returned unchanged: subscriptions with all options, will, times, names, version."""
        stored = StoredSession(
            "ä/client+#",
            0xFFFFFFFF,
            (
                subscription("x/+/y", qos=2, no_local=True, retain_as_published=True, retain_handling=2),
                subscription("#", qos=1, identifier=268_435_455),
                subscription("#", share_group="grüppe"),
            ),
            Will(
                will("wi/ll", qos=2, retain=True).message.replace(
                    payload=bytes(range(256)),
                    properties=Properties(content_type="t", user_property=(("k", "v"), ("k", "v"))),
                ),
                0xFFFFFFFF,
            ),
            NOW + 0.123456,
            "us:er \U0001f600",
            5,
        )
        self._opened(session_store, drive, stored)

        assert self._stored(session_store, drive, stored.client_id) == stored

    @behaviour("SESSION-09")
    def test_session_09_opening_forgets_what_was(self, session_store: SessionStore, drive: Driver) -> None:
        """OpenSession replaces everything that was stored under the client id."""
        self._opened(session_store, drive, session("a", subscriptions=(subscription("x"),), will=will()))
        fresh = session("a", expiry_s=1, created_at=NOW + 1)
        self._opened(session_store, drive, fresh)

        assert self._stored(session_store, drive, "a") == fresh
        assert session_store.count() == 1

    @behaviour("SESSION-10")
    def test_session_10_resuming_keeps_subscriptions(self, session_store: SessionStore, drive: Driver) -> None:
        """ResumeSession keeps the subscriptions; expiry, will, user and version are the new connection's."""
        stored = session("a", subscriptions=(subscription("x"),), will=will("old"))
        epoch = self._opened(session_store, drive, stored)["a"]
        self._apply(session_store, drive, ReleaseSession("a", epoch, NOW + 10, NOW + 5))
        epoch = drive(session_store.claim("a", HERE)).epoch

        self._apply(session_store, drive, ResumeSession("a", epoch, 7, will("new"), "user", 5))

        found = self._stored(session_store, drive, "a")
        assert found == evolve(stored, expiry_s=7, will=will("new"), username="user", protocol_version=5)

    @behaviour("SESSION-11")
    def test_session_11_subscriptions_are_added_and_replaced(
        self, session_store: SessionStore, drive: Driver
    ) -> None:
        """SaveSubscriptions adds, and replaces those with the same full filter: shared and plain ones differ."""
        epoch = self._opened(session_store, drive, session("a", subscriptions=(subscription("x"),)))["a"]
        new = (subscription("x", qos=2), subscription("x", share_group="g"), subscription("y"))

        self._apply(session_store, drive, SaveSubscriptions("a", epoch, new))

        assert set(self._stored(session_store, drive, "a").subscriptions) == set(new)

    @behaviour("SESSION-12")
    def test_session_12_subscriptions_are_removed(self, session_store: SessionStore, drive: Driver) -> None:
        """RemoveSubscriptions removes the named full filters; an unknown one changes nothing."""
        plain, shared = subscription("x"), subscription("x", share_group="g")
        epoch = self._opened(session_store, drive, session("a", subscriptions=(plain, shared)))["a"]

        self._apply(session_store, drive, RemoveSubscriptions("a", epoch, ("$share/g/x", "unknown")))

        assert self._stored(session_store, drive, "a").subscriptions == (plain,)

    @behaviour("SESSION-13")
    def test_session_13_a_will_is_cleared(self, session_store: SessionStore, drive: Driver) -> None:
        """ClearWill deletes the will and its due time, and nothing else."""
        stored = session("a", subscriptions=(subscription("x"),), will=will())
        epoch = self._opened(session_store, drive, stored)["a"]
        self._apply(session_store, drive, ReleaseSession("a", epoch, NOW + 10, NOW + 5), ClearWill("a", epoch))

        assert not drive(session_store.due_wills(NOW + 100, 10))
        assert self._stored(session_store, drive, "a") == evolve(stored, will=None, expires_at=NOW + 10)

    @behaviour("SESSION-14")
    def test_session_14_releasing_leaves_the_session(self, session_store: SessionStore, drive: Driver) -> None:
        """ReleaseSession leaves a session without owner, with its expiry time and the due time of its will."""
        stored = session("a", will=will())
        epoch = self._opened(session_store, drive, stored)["a"]

        self._apply(session_store, drive, ReleaseSession("a", epoch, NOW + 10.5, NOW + 5.25))

        claim = drive(session_store.claim("a", THERE))
        assert claim.previous_owner is None
        assert claim.session == evolve(stored, expires_at=NOW + 10.5, will_due_at=NOW + 5.25)

    @behaviour("SESSION-15")
    def test_session_15_discarding_leaves_the_epoch(self, session_store: SessionStore, drive: Driver) -> None:
        """DiscardSession deletes everything but the epoch."""
        epoch = self._opened(session_store, drive, session("a", subscriptions=(subscription("x"),)))["a"]

        self._apply(session_store, drive, DiscardSession("a", epoch))

        assert session_store.count() == 0
        claim = drive(session_store.claim("a", HERE))
        assert (claim.previous_owner, claim.session) == (None, None)
        assert claim.epoch > epoch

    @behaviour("SESSION-16")
    def test_session_16_writes_of_a_batch_are_in_order(self, session_store: SessionStore, drive: Driver) -> None:
        """The writes of a batch are applied in order, also across clients."""
        epochs = {name: drive(session_store.claim(name, HERE)).epoch for name in "ab"}
        writes: list[SessionWrite] = []
        for name, epoch in epochs.items():
            writes += [
                OpenSession(epoch, session(name)),
                SaveSubscriptions(name, epoch, (subscription("x"), subscription("y"))),
                RemoveSubscriptions(name, epoch, ("x",)),
                SaveSubscriptions(name, epoch, (subscription("y", qos=1),)),
            ]

        self._apply(session_store, drive, *writes)

        for name in epochs:
            assert self._stored(session_store, drive, name).subscriptions == (subscription("y", qos=1),)

    # What is asked for from time to time

    @behaviour("SESSION-17")
    def test_session_17_expired_sessions_are_found(self, session_store: SessionStore, drive: Driver) -> None:
        """``expired`` returns the released sessions that have expired, with their epochs.

        Sessions in use, without expiry, or not yet expired are not returned; nothing is removed.
        """
        epochs = self._opened(session_store, drive, *(session(name) for name in "abcd"))
        self._release(session_store, drive, epochs, a=NOW + 10, b=NOW + 20, c=None)

        assert not drive(session_store.expired(NOW + 9.9, 10))
        [(epoch, found)] = drive(session_store.expired(NOW + 10, 10))
        assert (epoch, found.client_id, found.expires_at) == (epochs["a"], "a", NOW + 10)
        assert _names(drive(session_store.expired(NOW + 1e9, 10))) == {"a", "b"}
        assert session_store.count() == 4

    @behaviour("SESSION-18")
    def test_session_18_due_wills_are_found(self, session_store: SessionStore, drive: Driver) -> None:
        """``due_wills`` returns the released sessions whose will is due, with their epochs."""
        epochs = self._opened(session_store, drive, *(session(name, will=will(name)) for name in "abc"))
        for name, due in (("a", NOW + 10), ("b", NOW + 20)):
            self._apply(session_store, drive, ReleaseSession(name, epochs[name], None, due))

        assert not drive(session_store.due_wills(NOW + 9.9, 10))
        [(epoch, found)] = drive(session_store.due_wills(NOW + 10, 10))
        assert (epoch, found.client_id, found.will) == (epochs["a"], "a", will("a"))
        assert _names(drive(session_store.due_wills(NOW + 1e9, 10))) == {"a", "b"}

    @behaviour("SESSION-19")
    def test_session_19_no_more_than_the_limit(self, session_store: SessionStore, drive: Driver) -> None:
        """``expired``, ``due_wills`` and ``owned_by`` return at most the limit, and in the end all."""
        names = {f"c{number}" for number in range(7)}
        epochs = self._opened(session_store, drive, *(session(name, will=will()) for name in names))
        assert len(drive(session_store.owned_by(HERE, 3))) == 3
        self._apply(session_store, drive, *(ReleaseSession(name, epoch, NOW, NOW) for name, epoch in epochs.items()))

        for ask in (session_store.expired, session_store.due_wills):
            assert len(drive(ask(NOW, 3))) == 3
            assert _names(drive(ask(NOW, 100))) == names

    @behaviour("SESSION-20")
    def test_session_20_who_is_back_does_not_expire(self, session_store: SessionStore, drive: Driver) -> None:
        """After a session was claimed and resumed, it is not expired and its old will is not due."""
        epoch = self._opened(session_store, drive, session("a", will=will()))["a"]
        self._apply(session_store, drive, ReleaseSession("a", epoch, NOW, NOW))
        epoch = drive(session_store.claim("a", HERE)).epoch
        self._apply(session_store, drive, ResumeSession("a", epoch, 10, will()))

        assert not drive(session_store.expired(NOW + 1, 10))
        assert not drive(session_store.due_wills(NOW + 1, 10))

    @behaviour("SESSION-21")
    def test_session_21_pages_show_each_session_once(self, session_store: SessionStore, drive: Driver) -> None:
        """``iterate`` returns each session that stays exactly once, in pages up to the limit, whatever changes."""
        staying = {f"s{number}" for number in range(25)}
        going = [f"g{number}" for number in range(5)]
        epochs = self._opened(session_store, drive, *(session(name) for name in [*going, *staying]))

        seen: list[str] = []
        cursor: object = None
        for number in range(100):
            page = drive(session_store.iterate(cursor, 4))
            assert len(page.sessions) <= 4
            seen += [stored.client_id for _, stored in page.sessions]
            if number < len(going):
                self._apply(session_store, drive, DiscardSession(going[number], epochs[going[number]]))
                self._opened(session_store, drive, session(f"new{number}"))
            cursor = page.cursor
            if cursor is None:
                break

        assert cursor is None
        assert sorted(name for name in seen if name in staying) == sorted(staying)

    @behaviour("SESSION-22")
    def test_session_22_orphans_are_those_of_that_node(self, session_store: SessionStore, drive: Driver) -> None:
        """``owned_by`` returns the client ids whose stored sessions that node owns; another claim moves one."""
        self._opened(session_store, drive, session("a"), session("b"))
        self._opened(session_store, drive, session("c"), node=THERE)
        drive(session_store.claim("nothing stored", HERE))

        assert set(drive(session_store.owned_by(HERE, 10))) == {"a", "b"}
        drive(session_store.claim("a", THERE))
        assert set(drive(session_store.owned_by(HERE, 10))) == {"b"}
        assert set(drive(session_store.owned_by(THERE, 10))) == {"a", "c"}

    @behaviour("SESSION-23")
    def test_session_23_counts_what_is_stored(self, session_store: SessionStore, drive: Driver) -> None:
        """``count`` is the number of stored sessions; claims without a stored session do not count."""
        drive(session_store.claim("x", HERE))
        epochs = self._opened(session_store, drive, session("a"), session("b"))
        assert session_store.count() == 2

        self._apply(session_store, drive, DiscardSession("a", epochs["a"]))

        assert session_store.count() == 1

    # Repeated and half-done calls

    @behaviour("SESSION-24")
    def test_session_24_a_repeated_batch_changes_nothing(self, session_store: SessionStore, drive: Driver) -> None:
        """A batch that is applied twice under its epoch has the effect of one."""
        epoch = drive(session_store.claim("a", HERE)).epoch
        batch: list[SessionWrite] = [
            OpenSession(epoch, session("a", will=will())),
            SaveSubscriptions("a", epoch, (subscription("x"), subscription("y"))),
            RemoveSubscriptions("a", epoch, ("x",)),
            ReleaseSession("a", epoch, NOW + 5, NOW),
        ]
        self._apply(session_store, drive, *batch)
        before = drive(session_store.iterate()).sessions

        self._apply(session_store, drive, *batch)

        assert drive(session_store.iterate()).sessions == before
        assert session_store.count() == 1

    @behaviour("SESSION-25")
    def test_session_25_a_half_done_batch_can_be_done_whole(self, session_store: SessionStore, drive: Driver) -> None:
        """After half of a batch was applied, applying the whole batch has the same effect as once."""
        epoch = drive(session_store.claim("a", HERE)).epoch
        batch: list[SessionWrite] = [
            OpenSession(epoch, session("a")),
            SaveSubscriptions("a", epoch, (subscription("x"),)),
            SaveSubscriptions("a", epoch, (subscription("y"),)),
            RemoveSubscriptions("a", epoch, ("x",)),
        ]
        self._apply(session_store, drive, *batch[:2])

        self._apply(session_store, drive, *batch)

        assert self._stored(session_store, drive, "a").subscriptions == (subscription("y"),)

    @behaviour("SESSION-26")
    def test_session_26_batches_are_kept_in_order(self, session_store: SessionStore, drive: Driver) -> None:
        """Batches that are passed before the first is committed are committed in that order."""
        epoch = self._opened(session_store, drive, session("a"))["a"]
        answers = []
        for qos in (0, 1, 2):
            answers.append(session_store.apply([SaveSubscriptions("a", epoch, (subscription("x", qos=qos),))]))
            answers.append(session_store.commit())

        for answer in answers:
            drive(answer)

        assert self._stored(session_store, drive, "a").subscriptions == (subscription("x", qos=2),)

    @behaviour("SESSION-27", needs="can_fail")
    def test_session_27_a_failure_is_told(self, session_store: SessionStore, drive: Driver) -> None:
        """While the store's backend fails, writes raise ServiceUnavailable; afterwards they work again.

        Sessions that were committed before, and those that were reported as committed later, are there.
        """
        epoch = self._opened(session_store, drive, session("a", subscriptions=(subscription("x"),)))["a"]
        mend = self.failing(session_store)

        with pytest.raises(ServiceUnavailable):
            self._apply(session_store, drive, SaveSubscriptions("a", epoch, (subscription("y"),)))
        mend()
        self._apply(session_store, drive, SaveSubscriptions("a", epoch, (subscription("z"),)))

        filters = {each.filter for each in self._stored(session_store, drive, "a").subscriptions}
        assert {"x", "z"} <= filters <= {"x", "y", "z"}

    @behaviour("SESSION-28", needs="survives_restart")
    def test_session_28_sessions_outlive_the_store(self, session_store: SessionStore, drive: Driver) -> None:
        """After a restart committed sessions are there, and new epochs are above all earlier ones."""
        stored = session("a", subscriptions=(subscription("x", qos=1),), will=will())
        epochs = self._opened(session_store, drive, stored, session("b"))
        self._apply(session_store, drive, ReleaseSession("a", epochs["a"], NOW + 10, NOW + 5))
        self._apply(session_store, drive, DiscardSession("b", epochs["b"]))
        passing = drive(session_store.claim("passing", HERE)).epoch

        again = self.reopened(session_store, drive)
        assert isinstance(again, SessionStore)

        assert again.count() == 1
        claim = drive(again.claim("a", HERE))
        assert claim.session == evolve(stored, expires_at=NOW + 10, will_due_at=NOW + 5)
        assert claim.epoch > epochs["a"]
        assert drive(again.claim("b", HERE)).epoch > epochs["b"]
        assert drive(again.claim("passing", HERE)).epoch > passing

    @behaviour("SESSION-29")
    def test_session_29_as_a_plain_model_does(self, session_store: SessionStore, drive: Driver) -> None:
        """With random claims and writes of three clients the store holds what a simple model holds."""
        examples = iter(range(1_000_000))

        @settings(
            max_examples=50, database=None, suppress_health_check=list(HealthCheck), print_blob=False, deadline=None
        )
        @given(many(_steps()))
        def run(steps: list[tuple[str, Callable[[str, int], SessionWrite] | NodeIdentity]]) -> None:
            prefix = f"{next(examples)}-"
            model = _Model()
            for name in "abc":
                model.claimed(prefix + name, HERE, drive(session_store.claim(prefix + name, HERE)))
                opened = OpenSession(model.epochs[prefix + name], session(prefix + name))
                self._apply(session_store, drive, opened)
                model.write(opened)
            for name, step in steps:
                client_id = prefix + name
                if isinstance(step, NodeIdentity):
                    claim = drive(session_store.claim(client_id, step))
                    model.claimed(client_id, step, claim)
                else:
                    write = step(client_id, model.epochs[client_id])
                    self._apply(session_store, drive, write)
                    model.write(write)
            for client_id in list(model.epochs):
                model.claimed(client_id, HERE, drive(session_store.claim(client_id, HERE)))

        run()

    @behaviour("SESSION-41")
    def test_session_41_a_claim_is_above_what_others_know(self, session_store: SessionStore, drive: Driver) -> None:
        """A claim's epoch is above the given one, and above the last one of the client id."""
        first = drive(session_store.claim("a", HERE, 5)).epoch
        second = drive(session_store.claim_for("a", HERE, Claimant(None), first + 1000))
        third = drive(session_store.claim("a", HERE, 1)).epoch

        assert first > 5
        assert second is not None and second.epoch > first + 1000
        assert third > second.epoch

    # Nodes that live, and those that are gone

    @behaviour("SESSION-42", needs="can_lose_nodes")
    def test_session_42_a_buried_node_leaves_its_sessions(self, session_store: SessionStore, drive: Driver) -> None:
        """``bury`` orphans the sessions of a node at once; those of other nodes stay where they are."""
        self._opened(session_store, drive, session("a"), session("b"), node=THERE)
        self._opened(session_store, drive, session("far"), node=FAR)
        drive(session_store.bury(THERE))

        assert sorted(drive(session_store.orphaned(HERE, 10))) == ["a", "b"]
        assert self._elsewhere(session_store, drive) == {"far"}

    @behaviour("SESSION-43", needs="can_lose_nodes")
    def test_session_43_it_knows_who_lives(self, session_store: SessionStore, drive: Driver) -> None:
        """``living`` returns the nodes that are alive of those that are asked about."""
        self._opened(session_store, drive, session("a"), node=THERE)
        self._opened(session_store, drive, session("far"), node=FAR)
        before = drive(session_store.living({THERE.uid, FAR.uid}))
        drive(session_store.bury(THERE))

        assert set(before) == {THERE.uid, FAR.uid}
        assert set(drive(session_store.living({THERE.uid, FAR.uid}))) == {FAR.uid}

    @behaviour("SESSION-44", needs="can_lose_nodes")
    def test_session_44_a_buried_node_claims_nothing(self, session_store: SessionStore, drive: Driver) -> None:
        """After ``bury`` the claims of a node fail with ServiceUnavailable, and change nothing; others claim."""
        self._opened(session_store, drive, session("a"))
        drive(session_store.bury(THERE))
        before = drive(session_store.claim("a", HERE)).epoch

        for client_id in ("a", "new"):
            with pytest.raises(ServiceUnavailable):
                drive(session_store.claim(client_id, THERE))
            with pytest.raises(ServiceUnavailable):
                drive(session_store.claim_for(client_id, THERE, Claimant(None)))
        after = drive(session_store.claim("a", HERE))

        assert (after.previous_owner, after.previous_epoch) in ((HERE, before), (HERE, None))
        assert after.session is not None

    @behaviour("SESSION-45", needs="can_lose_nodes")
    def test_session_45_it_knows_what_is_stored(self, session_store: SessionStore, drive: Driver) -> None:
        """``is_stored`` tells whether a client id has a stored session, wherever it is, owned or not."""

        def stored() -> list[str]:
            return [each for each in ("a", "b", "c", "d") if drive(session_store.is_stored(each))]

        epochs = self._opened(session_store, drive, session("a"), session("b"))
        epochs |= self._opened(session_store, drive, session("c"), node=THERE)
        drive(session_store.claim("d", HERE))
        self._release(session_store, drive, epochs, a=NOW)
        before = stored()
        self._apply(session_store, drive, DiscardSession("b", epochs["b"]))
        drive(session_store.bury(THERE))

        assert before == ["a", "b", "c"]
        assert stored() == ["a", "c"]

    @behaviour("SESSION-30", needs="can_lose_nodes")
    def test_session_30_pages_say_what_others_hold(self, session_store: SessionStore, drive: Driver) -> None:
        """``iterate`` names the sessions that another live node has claimed last, released or not."""
        epochs = self._opened(session_store, drive, session("a"), session("left here"))
        epochs |= self._opened(session_store, drive, session("b"), session("left there"), node=THERE)
        self._release(session_store, drive, epochs, **{"left here": NOW, "left there": NOW})

        assert self._elsewhere(session_store, drive) == {"b", "left there"}
        drive(session_store.claim("b", HERE))
        assert self._elsewhere(session_store, drive) == {"left there"}
        self.lost(session_store, THERE, drive)
        assert self._elsewhere(session_store, drive) == set()

    @behaviour("SESSION-31", needs="can_lose_nodes")
    def test_session_31_what_a_lost_node_held_is_named(self, session_store: SessionStore, drive: Driver) -> None:
        """``orphaned`` returns the stored sessions that a dead node had claimed last, and no others."""
        epochs = self._opened(session_store, drive, session("here"))
        more = (session("open"), session("released"), session("moved"), session("ended"))
        epochs |= self._opened(session_store, drive, *more, node=THERE)
        epochs |= self._opened(session_store, drive, session("far"), node=FAR)
        drive(session_store.claim("nothing stored", THERE))
        drive(session_store.claim("moved", FAR))
        self._release(session_store, drive, epochs, here=NOW, released=NOW, far=NOW)
        self._apply(session_store, drive, DiscardSession("ended", epochs["ended"]))
        before = drive(session_store.orphaned(HERE, 10))

        self.lost(session_store, THERE, drive)

        assert list(before) == []
        assert sorted(drive(session_store.orphaned(HERE, 10))) == ["open", "released"]

    @behaviour("SESSION-32", needs="can_lose_nodes")
    def test_session_32_each_is_told_of_others(self, session_store: SessionStore, drive: Driver) -> None:
        """Each node gets other orphaned sessions, at most ``limit``, which it then owns."""
        names = {f"c{number}" for number in range(6)}
        self._opened(session_store, drive, *(session(name) for name in sorted(names)), node=THERE)
        self.lost(session_store, THERE, drive)

        here = set(drive(session_store.orphaned(HERE, 2)))
        far = set(drive(session_store.orphaned(FAR, 10)))

        assert len(here) == 2
        assert far == names - here
        assert self._elsewhere(session_store, drive) == far

    @behaviour("SESSION-33", needs="can_lose_nodes")
    def test_session_33_named_until_claimed(self, session_store: SessionStore, drive: Driver) -> None:
        """A session that was assigned to a node is returned to it again until it is claimed."""
        self._opened(session_store, drive, *(session(name) for name in "abc"), node=THERE)
        self.lost(session_store, THERE, drive)
        told = [sorted(drive(session_store.orphaned(HERE, 10))) for _ in range(2)]

        drive(session_store.adopt("a", HERE))
        drive(session_store.claim("b", FAR))

        assert told == [["a", "b", "c"]] * 2
        assert list(drive(session_store.orphaned(HERE, 10))) == ["c"]

    @behaviour("SESSION-34", needs="can_lose_nodes")
    def test_session_34_who_was_told_may_be_lost(self, session_store: SessionStore, drive: Driver) -> None:
        """A session that was assigned to a node, adopted or not, is orphaned again if that node dies."""
        self._opened(session_store, drive, session("a"), session("b"), node=THERE)
        self.lost(session_store, THERE, drive)
        drive(session_store.orphaned(FAR, 10))
        drive(session_store.adopt("a", FAR))
        before = drive(session_store.orphaned(HERE, 10))

        self.lost(session_store, FAR, drive)

        assert list(before) == []
        assert sorted(drive(session_store.orphaned(HERE, 10))) == ["a", "b"]

    @behaviour("SESSION-35", needs="can_lose_nodes")
    def test_session_35_adopting_disturbs_nobody(self, session_store: SessionStore, drive: Driver) -> None:
        """``adopt`` claims an assigned session; if it was claimed since, it returns ``None``, without effect."""
        stored = session("a", subscriptions=(subscription("x"),), will=will())
        old = self._opened(session_store, drive, stored, session("b"), session("c"), node=THERE)
        self.lost(session_store, THERE, drive)
        drive(session_store.orphaned(HERE, 10))
        epochs = {"b": drive(session_store.claim("b", FAR)).epoch, "c": drive(session_store.claim("c", HERE)).epoch}

        claims = {name: drive(session_store.adopt(name, HERE)) for name in "abc"}

        assert claims["b"] is None and claims["c"] is None
        self._apply(session_store, drive, *(ReleaseSession(name, epoch, NOW) for name, epoch in epochs.items()))
        claim = claims["a"]
        assert claim is not None and claim.session == stored and claim.epoch > old["a"]
        with pytest.raises(Fenced):
            self._apply(session_store, drive, ClearWill("a", old["a"]))

    @behaviour("SESSION-36", needs="can_lose_nodes")
    def test_session_36_what_others_claim_is_told(self, session_store: SessionStore, drive: Driver) -> None:
        """A node is notified once of its session that another node has claimed, with its epoch."""
        told: list[tuple[str, int]] = []
        session_store.on_taken_over(lambda client_id, epoch: told.append((client_id, epoch)))
        epochs = self._opened(session_store, drive, *(session(name) for name in ("kept", "taken", "own")))
        epochs["passing"] = drive(session_store.claim("passing", HERE)).epoch
        self._opened(session_store, drive, session("there"), node=THERE)

        for name in ("taken", "passing", "there"):
            drive(session_store.claim(name, FAR))
        drive(session_store.claim("own", HERE))
        for _ in range(2):
            self.look(session_store, drive)

        assert sorted(told) == [(name, epochs[name]) for name in ("passing", "taken")]

    # Whose a client id is

    @behaviour("SESSION-37")
    def test_session_37_a_session_is_its_users(self, session_store: SessionStore, drive: Driver) -> None:
        """``claim_for`` returns ``None``, without effect, for a stored session of another user.

        Its user claims it, owned or released. A client without a user name differs from every user.
        """
        stored = {
            "a": session("a", username="ann", will=will()),
            "n": session("n", subscriptions=(subscription("x"),)),
        }
        epochs = self._opened(session_store, drive, *stored.values())
        strangers = {
            "a": [Claimant("bob"), Claimant(None), Claimant(None, "ann"), Claimant("bob", "ann")],
            "n": [Claimant("ann"), Claimant("ann", None), Claimant("")],
        }
        for _ in range(2):
            for name, others in strangers.items():
                for node in (HERE, THERE):
                    assert [drive(session_store.claim_for(name, node, other)) for other in others] == [None] * len(
                        others
                    )
            # Refused as an older owner's, if anybody had claimed it.
            self._release(session_store, drive, epochs, a=None, n=None)

        claims = {name: drive(session_store.claim_for(name, THERE, _user_of(its))) for name, its in stored.items()}

        for name, claim in claims.items():
            assert claim is not None
            assert claim.epoch > epochs[name]
            assert claim.session is not None
            assert evolve(claim.session, will_due_at=None) == stored[name]

    @behaviour("SESSION-38")
    def test_session_38_a_held_client_id_is_its_users(self, session_store: SessionStore, drive: Driver) -> None:
        """A client id without a stored session belongs to the user it was claimed for, until its release.

        After a claim that names no user, and after its session has ended, it is free.
        """
        ann, bob, nobody = Claimant("ann"), Claimant("bob"), Claimant(None)
        first = drive(session_store.claim_for("a", HERE, ann))
        assert first is not None
        assert drive(session_store.claim_for("a", THERE, bob)) is None
        assert drive(session_store.claim_for("a", HERE, nobody)) is None
        again = drive(session_store.claim_for("a", HERE, ann))
        assert again is not None and again.epoch > first.epoch

        session_store.release("a", first.epoch)
        assert drive(session_store.claim_for("a", HERE, bob)) is None
        session_store.release("a", again.epoch)
        freed = drive(session_store.claim_for("a", HERE, bob))
        drive(session_store.claim("b", HERE))
        unclaimed = drive(session_store.claim_for("b", HERE, bob))
        opened = drive(session_store.claim_for("c", HERE, ann))
        assert opened is not None
        self._apply(session_store, drive, OpenSession(opened.epoch, session("c", username="ann")))
        self._apply(session_store, drive, DiscardSession("c", opened.epoch))
        ended = drive(session_store.claim_for("c", THERE, bob))

        assert None not in (freed, unclaimed, ended)

    @behaviour("SESSION-39", needs="can_lose_nodes")
    def test_session_39_a_lost_node_holds_no_client_id(self, session_store: SessionStore, drive: Driver) -> None:
        """A dead node's client id without a stored session is free; a stored session keeps its user."""
        drive(session_store.claim_for("passing", THERE, Claimant("ann")))
        self._opened(session_store, drive, session("kept", username="ann"), node=THERE)
        assert drive(session_store.claim_for("passing", HERE, Claimant("bob"))) is None

        self.lost(session_store, THERE, drive)

        assert drive(session_store.claim_for("passing", HERE, Claimant("bob"))) is not None
        assert drive(session_store.claim_for("kept", HERE, Claimant("bob"))) is None
        assert drive(session_store.claim_for("kept", HERE, Claimant("ann"))) is not None

    @behaviour("SESSION-40")
    def test_session_40_an_unverified_name_is_kept_so(self, session_store: SessionStore, drive: Driver) -> None:
        """A session with an unverified user name belongs to the client with that name, verified or in CONNECT.

        It is returned unchanged, and a client that resumes it owns it from then on.
        """
        stored = session("a", username="ha", username_unverified=True)
        self._opened(session_store, drive, stored)

        assert self._stored(session_store, drive, "a") == stored
        for other in (Claimant("eve", "ha"), Claimant(None, "eve"), Claimant(None)):
            assert drive(session_store.claim_for("a", HERE, other)) is None
        assert drive(session_store.claim_for("a", HERE, Claimant("ha", "ha"))) is not None
        claim = drive(session_store.claim_for("a", HERE, Claimant(None, "ha")))
        assert claim is not None and claim.session == stored
        self._apply(session_store, drive, ResumeSession("a", claim.epoch, 60))
        assert drive(session_store.claim_for("a", HERE, Claimant("ha", "ha"))) is None
        owned = drive(session_store.claim_for("a", HERE, Claimant(None)))
        assert owned is not None and owned.session is not None
        assert (owned.session.username, owned.session.username_unverified) == (None, False)

    # Within

    def _elsewhere(self, store: SessionStore, drive: Driver) -> set[str]:
        """The client ids that all pages name as owned elsewhere."""
        found: set[str] = set()
        cursor: object = None
        while True:
            page = drive(store.iterate(cursor, 2))
            assert page.elsewhere <= {stored.client_id for _, stored in page.sessions}
            found |= page.elsewhere
            cursor = page.cursor
            if cursor is None:
                return found

    def _apply(self, store: SessionStore, drive: Driver, *writes: SessionWrite) -> None:
        self.persist(store, lambda: store.apply(writes), drive)

    def _opened(
        self, store: SessionStore, drive: Driver, *sessions: StoredSession, node: NodeIdentity = HERE
    ) -> dict[str, int]:
        """Claim and open sessions; return their epochs."""
        epochs = {stored.client_id: drive(store.claim(stored.client_id, node)).epoch for stored in sessions}
        self._apply(store, drive, *(OpenSession(epochs[stored.client_id], stored) for stored in sessions))
        return epochs

    def _release(
        self, store: SessionStore, drive: Driver, epochs: dict[str, int], **expires_at: float | None
    ) -> None:
        self._apply(store, drive, *(ReleaseSession(name, epochs[name], at) for name, at in expires_at.items()))

    def _stored(self, store: SessionStore, drive: Driver, client_id: str) -> StoredSession:
        """Return the stored session, without a claim."""
        cursor: object = None
        while True:
            page = drive(store.iterate(cursor))
            for _, stored in page.sessions:
                if stored.client_id == client_id:
                    return stored
            cursor = page.cursor
            assert cursor is not None, f"no session of {client_id!r} is stored"


def _every_write(client_id: str, epoch: int) -> list[SessionWrite]:
    return [
        OpenSession(epoch, session(client_id, expiry_s=1)),
        ResumeSession(client_id, epoch, 1),
        SaveSubscriptions(client_id, epoch, (subscription("y"),)),
        RemoveSubscriptions(client_id, epoch, ("x",)),
        ClearWill(client_id, epoch),
        ReleaseSession(client_id, epoch, NOW),
        DiscardSession(client_id, epoch),
    ]


def _user_of(stored: StoredSession) -> Claimant:
    return Claimant(stored.username)


def _names(found: Sequence[tuple[int, StoredSession]]) -> set[str]:
    return {stored.client_id for _, stored in found}


class _Model:
    """The expected contents of a store of these clients, in dicts."""

    def __init__(self) -> None:
        self.epochs: dict[str, int] = {}
        self._owners: dict[str, NodeIdentity] = {}
        self._sessions: dict[str, StoredSession] = {}

    def claimed(self, client_id: str, node: NodeIdentity, claim: Claim) -> None:
        """Compare a claim's answer, and apply the claim."""
        assert claim.epoch > self.epochs.get(client_id, 0)
        assert claim.previous_owner == self._owners.get(client_id)
        assert _sorted(claim.session) == _sorted(self._sessions.get(client_id))
        self.epochs[client_id] = claim.epoch
        self._owners[client_id] = node

    def write(self, write: SessionWrite) -> None:
        """Apply a write."""
        name = write.client_id
        stored = self._sessions.get(name)
        if isinstance(write, OpenSession):
            self._sessions[name] = write.session
        elif isinstance(write, DiscardSession):
            self._sessions.pop(name, None)
            self._owners.pop(name, None)
        elif isinstance(write, ReleaseSession):
            self._owners.pop(name, None)
        if stored is not None and not isinstance(write, (OpenSession, DiscardSession)):
            self._sessions[name] = _changed(stored, write)


def _changed(stored: StoredSession, write: SessionWrite) -> StoredSession:
    subscriptions = {each.full_filter: each for each in stored.subscriptions}
    changes: dict[str, Any] = {}
    if isinstance(write, ResumeSession):
        changes = {"expiry_s": write.expiry_s, "will": write.will, "username": write.username}
        changes |= {"protocol_version": write.protocol_version, "expires_at": None, "will_due_at": None}
    elif isinstance(write, SaveSubscriptions):
        subscriptions.update({each.full_filter: each for each in write.subscriptions})
    elif isinstance(write, RemoveSubscriptions):
        for full_filter in write.filters:
            subscriptions.pop(full_filter, None)
    elif isinstance(write, ClearWill):
        changes = {"will": None, "will_due_at": None}
    elif isinstance(write, ReleaseSession):
        changes = {"expires_at": write.expires_at, "will_due_at": write.will_due_at}
    return evolve(stored, subscriptions=tuple(subscriptions.values()), **changes)


def _sorted(stored: StoredSession | None) -> StoredSession | None:
    """With sorted subscriptions: a store may have any order."""
    if stored is None:
        return None
    return evolve(stored, subscriptions=tuple(sorted(stored.subscriptions, key=lambda each: each.full_filter)))


def _steps() -> st.SearchStrategy[Any]:
    """A client's name, and a claiming node or a function that makes a write from a client id and an epoch."""
    filters = st.sampled_from(("x", "y", "z/#"))
    moments = st.none() | st.integers(0, 100).map(lambda seconds: NOW + seconds)
    wills = st.none() | st.builds(will, st.sampled_from(("w", "v")), st.integers(0, 10))
    writes = st.one_of(
        st.builds(
            lambda expiry_s, its: lambda name, epoch: OpenSession(epoch, session(name, expiry_s=expiry_s, will=its)),
            st.integers(0, 10),
            wills,
        ),
        st.builds(
            lambda expiry_s, its: lambda name, epoch: ResumeSession(name, epoch, expiry_s, its),
            st.integers(0, 10),
            wills,
        ),
        st.builds(
            lambda filter, qos: lambda name, epoch: SaveSubscriptions(name, epoch, (subscription(filter, qos=qos),)),
            filters,
            st.integers(0, 2),
        ),
        st.builds(lambda filter: lambda name, epoch: RemoveSubscriptions(name, epoch, (filter,)), filters),
        st.just(ClearWill),
        st.builds(lambda at, due: lambda name, epoch: ReleaseSession(name, epoch, at, due), moments, moments),
        st.just(DiscardSession),
    )
    return st.tuples(st.sampled_from("abc"), st.sampled_from((HERE, THERE)) | writes)
