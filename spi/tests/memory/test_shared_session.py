"""The sessions that several brokers of one process share keep the contract, as one node sees them."""

from __future__ import annotations

from typing import Any

import pytest

from kinmqtt_spi.memory.shared_session import SharedSessionStore
from kinmqtt_spi.services.session import OpenSession, StoredSession
from kinmqtt_spi.testing.build import HERE, THERE
from kinmqtt_spi.testing.session import SessionStoreContract
from kinmqtt_spi.values import NodeIdentity


class TestSharedSessionStore(SessionStoreContract):
    """Without what concerns other nodes: pages name all sessions with a home, those of the asking node included."""

    @pytest.fixture
    def session_store(self) -> SharedSessionStore:
        return SharedSessionStore()


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
