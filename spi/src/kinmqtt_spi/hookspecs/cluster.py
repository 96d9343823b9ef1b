"""Cluster: the other nodes, if there are any."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinmqtt_spi.markers import Kind, hookspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kinmqtt_spi.services.cluster import ClusterBackend, Member, NodeCandidate
    from kinmqtt_spi.services.cluster_arbiter import ClusterArbiter
    from kinmqtt_spi.services.plugin import Context
    from kinmqtt_spi.values import NodeIdentity


@hookspec(Kind.PROVIDE, synchronous=True)
def cluster_backend(context: Context) -> ClusterBackend:  # type: ignore[empty-body]
    """The broker's cluster backend.

    Called: once at assembly, after ``configure``.
    Combines: exclusive: the plugin the settings name, else the only one installed, else the built-in single node.
    If it raises: the broker does not start and names the plugin.
    Threading: reactor thread, synchronous.
    """


@hookspec(Kind.PROVIDE, synchronous=True)
def cluster_arbiter(context: Context) -> ClusterArbiter:  # type: ignore[empty-body]
    """The arbiter that decides splits of the cluster, in a store that all nodes share.

    Called: once at assembly, after ``configure``.
    Combines: exclusive: the plugin that ``services.arbiter`` names, else the only one installed, else there is none.
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


@hookspec(Kind.DECIDE, synchronous=True)
def choose_node(group: str, filter: str, candidates: Sequence[NodeCandidate]) -> NodeIdentity | None:
    """Choose the node that serves a shared group's next message; ``None`` abstains.

    The node then chooses among its members (``choose_member``).

    Called: for each message and shared group it matches that has members on other nodes, on the publisher's node;
    ``candidates`` are the nodes with members, this one first if it has some.
    Combines: the first candidate answered, in the order of the settings; else nodes take turns by their connected
    members.
    If it raises: counts as abstaining.
    Threading: reactor thread, synchronous: answer from memory.
    """


@hookspec(Kind.NOTIFY)
def session_moved(client_id: str, previous: NodeIdentity) -> None:
    """A session that another node had is now this node's.

    Called: on this node, when its client has connected here, in a later reactor turn. ``previous`` is the node that
    had the session.
    Combines: every implementation is notified, in order.
    If it raises: logged and counted.
    Threading: reactor thread; may be awaited, the next notice to this plugin then waits.
    """


@hookspec(Kind.NOTIFY)
def told(origin: NodeIdentity, data: bytes) -> None:
    """This plugin's instance on another node has told something, by ``context.tell_others``.

    Called: for each message, in a later reactor turn; those of one node in the order of its calls.
    Combines: only the plugin that told it is notified.
    If it raises: logged and counted.
    Threading: reactor thread; may be awaited, the next notice to this plugin then waits.
    """
