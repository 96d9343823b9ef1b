"""The sessions that several brokers of one process share keep the contract, as one node sees them."""

from __future__ import annotations

from typing import Any

import pytest

from kinmqtt_spi.memory.queue import MemoryQueueStore
from kinmqtt_spi.memory.retain import MemoryRetainStore
from kinmqtt_spi.memory.shared_queue import NodeQueueStore
from kinmqtt_spi.memory.shared_session import NodeSessionStore, SharedSessionStore
from kinmqtt_spi.services.queue import Append
from kinmqtt_spi.services.session import DiscardSession, OpenSession, ReleaseSession, StoredSession
from kinmqtt_spi.testing.build import HERE, NOW, THERE, entry, session, will
from kinmqtt_spi.testing.queue import QueueStoreContract
from kinmqtt_spi.testing.session import SessionStoreContract
from kinmqtt_spi.values import NodeIdentity


class TestSharedSessionStore(SessionStoreContract):
    """Without what concerns other nodes: pages name all sessions with a home, those of the asking node included."""

    @pytest.fixture
    def session_store(self) -> SharedSessionStore:
        return SharedSessionStore()


class TestNodeSessionStore(SessionStoreContract):
    """As a node sees it, with what concerns other nodes."""

    can_lose_nodes = True

    @pytest.fixture
    def session_store(self) -> NodeSessionStore:
        return SharedSessionStore().view(HERE)

    def lost(self, store: Any, node: NodeIdentity, drive: Any) -> None:
        store.bury(node)


class TestNodeQueueStore(QueueStoreContract):
    """Queues of which this node is the home."""

    @pytest.fixture
    def queue_store(self) -> NodeQueueStore:
        return NodeQueueStore(MemoryQueueStore(shared=True), SharedSessionStore().view(HERE).is_home)


def test_a_node_leaves_to_others_what_is_theirs() -> None:
    """Each node ends the sessions and entries that it is the home of; what it adopts is its own from then on."""
    sessions, queues = SharedSessionStore(), MemoryQueueStore(shared=True)
    here, there = sessions.view(HERE), sessions.view(THERE)
    of_here, of_there = (NodeQueueStore(queues, each.is_home) for each in (here, there))
    for view in (here, there):
        name = view.node.name
        epoch = view.claim(name, view.node).epoch
        sessions.apply([OpenSession(epoch, session(name, will=will())), ReleaseSession(name, epoch, NOW, NOW)])
        queues.apply([Append(name, epoch, entry(1, expires_at=NOW))])

    found = [
        [[stored.client_id for _, stored in ask(NOW, 1)] for ask in (view.expired, view.due_wills)]
        for view in (here, there)
    ]
    removed = [[name for name, _ in of_here.expire(NOW, 1)]]
    here.bury(THERE)
    here.orphaned(HERE, 10)
    removed += [[name for name, _ in store.expire(NOW, 10)] for store in (of_there, of_here)]

    assert found == [[["here"], ["here"]], [["there"], ["there"]]]
    assert removed == [["here"], [], ["there"]]
    assert {stored.client_id for _, stored in here.expired(NOW, 10)} == {"here", "there"}
    assert here.is_shared and of_here.is_shared and MemoryRetainStore(shared=True).is_shared


def test_the_store_forgets_homes_of_nothing() -> None:
    """A client id without owner and session takes no memory of its home."""
    store = SharedSessionStore()
    passing, ended = store.claim("passing", HERE).epoch, store.claim("ended", HERE).epoch
    store.apply([OpenSession(ended, session("ended")), DiscardSession("ended", ended)])
    store.release("passing", passing)

    assert not (store._homes or store._holders or store._offers)


def test_a_buried_nodes_sessions_go_to_one_node_each() -> None:
    """They are assigned once, claimed by whom they were assigned to, and assigned again if that one is buried."""
    store, far = SharedSessionStore(), NodeIdentity("far", 3)
    its: Any = store.claim("a", THERE)
    store.apply([OpenSession(its.epoch, StoredSession("a", 60))])
    store.bury(THERE)
    told = store.orphaned(far, 10), store.orphaned(HERE, 10), store.adopt("a", HERE)
    store.bury(far)

    assert told == (("a",), (), None)
    assert store.orphaned(HERE, 10) == ("a",)
    claim = store.adopt("a", HERE)
    assert claim is not None
    assert (claim.home_uid, claim.epoch) == (THERE.uid, its.epoch + 1)
    assert store.owned_by(HERE, 10) == ("a",)
    assert store.living({HERE.uid, THERE.uid, far.uid}) == {HERE.uid}


def test_a_node_whose_lease_has_expired_is_gone_until_it_is_back() -> None:
    """Its sessions may be taken meanwhile; one that was buried does not come back."""
    store = SharedSessionStore()
    for node in (HERE, THERE):
        store.claim(node.name, node)
        store.expire_lease(node)
    gone = store.living({HERE.uid, THERE.uid}), store.is_home_alive(HERE.name)
    store.bury(THERE)
    for node in (HERE, THERE):
        store.renew_lease(node)

    assert gone == (set(), False)
    assert store.living({HERE.uid, THERE.uid}) == {HERE.uid}
    assert (store.epoch_of(HERE.name), store.epoch_of("unknown")) == (1, 0)
