"""No cluster: this broker is the only node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinmqtt_spi import hookimpl
from kinmqtt_spi.memory.cluster import SingleNode

if TYPE_CHECKING:
    from kinmqtt_spi.services.cluster import ClusterBackend


@hookimpl
def cluster_backend() -> ClusterBackend:
    """Return a cluster backend with only this node."""
    return SingleNode()
