"""Cluster: the other nodes, if there are any."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinmqtt_spi.markers import Kind, hookspec

if TYPE_CHECKING:
    from kinmqtt_spi.services.cluster import ClusterBackend, Member
    from kinmqtt_spi.services.plugin import Context


@hookspec(Kind.PROVIDE, synchronous=True)
def cluster_backend(context: Context) -> ClusterBackend:  # type: ignore[empty-body]
    """The broker's cluster backend.

    Called: once at assembly, after ``configure``.
    Combines: exclusive: the plugin the settings name, else the only one installed, else the built-in single node.
    If it raises: the broker does not start and names the plugin.
    Threading: reactor thread, synchronous.
    """


@hookspec(Kind.NOTIFY)
def cluster_member(member: Member) -> None:
    """A member's state or reachability changed, this node's own included.

    Called: when the backend reports it, in a later reactor turn.
    Combines: every implementation is notified, in order.
    If it raises: logged and counted.
    Threading: reactor thread; may be awaited, the next notice to this plugin then waits.
    """
