"""Settings that promise more than the cluster backend and the stores give: ``[broker] require``."""

from __future__ import annotations

import pytest

from core_harness.nodes import Nodes
from kinmqtt.settings import BrokerSettings
from kinmqtt.testing import BrokerHarness
from kinmqtt_spi import hookimpl
from kinmqtt_spi.errors import AssemblyError
from kinmqtt_spi.memory.cluster import SingleNode
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
