"""Limiter: how much of what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinmqtt_spi.markers import Kind, hookspec

if TYPE_CHECKING:
    from kinmqtt_spi.services.limiter import LimitDecision, LimiterNeeds, Resource


@hookspec(Kind.COLLECT, synchronous=True)
def limiter_needs() -> LimiterNeeds:  # type: ignore[empty-body]
    """Which resources the plugin's ``acquire`` wants to be asked for; without this hook, all but topics.

    Called: once at assembly.
    Combines: the union over the plugins that implement ``acquire``.
    If it raises: the broker does not start and names the plugin.
    Threading: reactor thread, synchronous.
    """


@hookspec(Kind.DECIDE, synchronous=True, fails_open=True)
def acquire(resource: Resource, amount: int) -> LimitDecision | None:
    """Whether ``amount`` more of a resource may be used now; ``None`` abstains.

    Called: for each connection, CONNECT and SUBSCRIBE, and for PUBLISH once a read (with the number of packets it
    holds; for a read of more than 1,024 packets several times) or, where a limiter needs topics, for each packet.
    Combines: all are asked, in the order of the settings; the first that refuses counts, else the longest DELAY.
    If it raises: fails open: counts as ALLOW, for a broken limiter must not stop the broker; logged and counted. With
    ``fails_closed`` it counts as REJECT, with 0x88 for a CONNECTION or CONNECT, and 0x83 for PUBLISH and SUBSCRIBE.
    Threading: reactor thread, synchronous: answer from memory.
    """


@hookspec(Kind.COLLECT, synchronous=True)
def release(resource: Resource, amount: int) -> None:
    """What was granted by ``acquire`` is over: for rules by how much there is at once.

    Called: once for each ``acquire`` of a kind among the plugin's ``LimiterNeeds.releases`` that the plugin did not
    itself refuse, with the same resource and amount: for CONNECTION and CONNECT when that connection is gone, for
    PUBLISH and SUBSCRIBE when the packets are carried out, whatever became of them; at once where another limiter
    refused.
    Combines: each plugin is told of its own.
    If it raises: logged and counted.
    Threading: reactor thread, synchronous.
    """


@hookspec(Kind.NOTIFY)
def limited(resource: Resource, decision: LimitDecision) -> None:
    """A limiter said something other than ALLOW.

    Called: for each such answer, in a later reactor turn.
    Combines: every implementation is told, in order per client.
    If it raises: logged and counted.
    Threading: reactor thread; may be awaited, the next notice to this plugin then waits.
    """
