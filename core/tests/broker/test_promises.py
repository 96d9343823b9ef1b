"""Settings that promise more than the cluster backend and the stores give: ``[broker] require``."""

from __future__ import annotations

import pytest

from core_harness.nodes import Nodes
from kinmqtt.settings import BrokerSettings
from kinmqtt.testing import BrokerHarness
from kinmqtt_spi import hookimpl
from kinmqtt_spi.errors import AssemblyError
from kinmqtt_spi.memory.cluster import SingleNode
from kinmqtt_spi.memory.retain import MemoryRetainStore
from kinmqtt_spi.services.cluster import Guarantee


class Weak(SingleNode):
    """A cluster backend without acknowledgements."""

    guarantees = Guarantee.SINGLE_OWNER

    @hookimpl
    def cluster_backend(self) -> SingleNode:
        return self


@pytest.mark.parametrize(
    ("promise", "error"),
    [
        (
            "acknowledged_delivery",
            "require: acknowledged_delivery, but the cluster backend of plugin 'weak' does not promise it",
        ),
        ("no_loss", "require: no_loss needs acknowledged_delivery, but the cluster backend of plugin 'weak'"),
        ("shared_stores", "require: shared_stores, but the session store of plugin 'memory' is this node's own"),
    ],
)
def test_a_promise_that_nobody_keeps_is_refused_at_the_start(promise: str, error: str) -> None:
    """In one sentence that names the setting and who lacks what."""
    settings = BrokerSettings(require=(promise,))  # type: ignore[arg-type]
    with pytest.raises(AssemblyError) as raised:
        BrokerHarness(plugins={"weak": Weak()}, settings=settings)

    assert error in str(raised.value)


def test_all_promises_that_nobody_keeps_are_named() -> None:
    """One line for each, so that nobody mends one to be told of the next; those that are kept are not named."""
    settings = BrokerSettings(require=("no_loss", "single_owner", "order_per_publisher"))
    with pytest.raises(AssemblyError) as raised:
        BrokerHarness(plugins={"weak": Weak()}, settings=settings)

    assert str(raised.value).splitlines() == [
        "[broker] require: no_loss needs acknowledged_delivery, but the cluster backend of plugin 'weak' does not "
        "promise it",
        "[broker] require: no_loss needs shared_stores, but the session store of plugin 'memory' is this node's own",
        "[broker] require: order_per_publisher, but the cluster backend of plugin 'weak' does not promise it",
    ]


def test_promises_that_are_kept_start() -> None:
    """Nodes that share their stores, over a backend that promises everything."""
    nodes = Nodes(2, settings=BrokerSettings(require=("no_loss", "order_per_publisher")))

    assert nodes.brokers[0].connect("c", 5).connack.reason == 0


class Sharing(Weak):
    """A cluster backend that works only where all nodes use the same stores."""

    needs_shared_stores = True


def test_a_backend_that_needs_shared_stores_is_refused_without_them() -> None:
    """In one sentence that names the backend, the store, and the way out."""
    with pytest.raises(AssemblyError) as raised:
        BrokerHarness(plugins={"sharing": Sharing()})

    assert str(raised.value) == (
        "the cluster backend of plugin 'sharing' needs stores that all brokers share, but the session store of "
        "plugin 'memory' is this node's own: set session, queue and retain in [services] to a plugin that shares "
        "them, as redis_session"
    )


class Both(Weak):
    """A cluster backend that promises one owner only where all nodes use the same stores."""

    with_shared_stores = Guarantee.SINGLE_OWNER


class SharedRetained:
    """A retain store that all nodes use."""

    @hookimpl
    def retain_store(self) -> MemoryRetainStore:
        return MemoryRetainStore(shared=True)


def test_a_promise_that_needs_shared_stores_is_refused_without_them() -> None:
    """The broker starts without it, and the refusal says what is lacking."""
    BrokerHarness(plugins={"both": Both()})
    with pytest.raises(AssemblyError, match=r"promises it only with shared stores, and the session store of plugin"):
        BrokerHarness(plugins={"both": Both()}, settings=BrokerSettings(require=("single_owner",)))


def test_stores_of_which_some_are_shared_are_refused() -> None:
    """What one node has would not fit what another one has; a single broker may have such stores."""
    shared = {"retained": SharedRetained()}
    BrokerHarness(plugins=shared, services={"retain": "retained"})
    with pytest.raises(AssemblyError, match=r"the session store of plugin 'memory' .* own, and others are shared"):
        BrokerHarness(plugins={**shared, "both": Both()}, services={"retain": "retained"})
