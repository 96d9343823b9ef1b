"""Limiter: limits on the use of resources."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinmqtt_spi.markers import Kind, hookspec

if TYPE_CHECKING:
    from kinmqtt_spi.services.limiter import LimitDecision, LimiterNeeds, Resource


@hookspec(Kind.COLLECT, synchronous=True)
def limiter_needs() -> LimiterNeeds:  # type: ignore[empty-body]
    """Return the resources for which ``acquire`` is called; without this hook, all of them, without topics.

    Called: once at assembly.
    Combines: the union over the plugins that implement ``acquire``.
    If it raises: the broker does not start and names the plugin.
    Threading: reactor thread, synchronous.
    """


@hookspec(Kind.DECIDE, synchronous=True, fails_open=True)
def acquire(resource: Resource, amount: int) -> LimitDecision | None:
    """Decide whether ``amount`` more of a resource may be used now; ``None`` abstains.

    Called: for each connection, CONNECT and SUBSCRIBE. For PUBLISH: once for each read, with its number of packets
    (several times for more than 1,024 packets), or for each packet if a limiter needs topics.
    Combines: all are asked, in the order of the settings; the first refusal counts, else the longest DELAY.
    If it raises: fails open: counts as ALLOW, because a broken limiter must not stop the broker; logged and counted.
    With ``fails_closed`` it counts as REJECT, with 0x88 for a CONNECTION or CONNECT, and 0x83 for PUBLISH and
    SUBSCRIBE.
    Threading: reactor thread, synchronous: answer from memory.
    """


@hookspec(Kind.COLLECT, synchronous=True)
def release(resource: Resource, amount: int) -> None:
    """Release what ``acquire`` granted: for rules that limit concurrency.

    Called: once for each ``acquire`` of a kind among the plugin's ``LimiterNeeds.releases`` that the plugin did not
    itself refuse, with the same resource and amount: for CONNECTION and CONNECT when that connection is closed, for
    PUBLISH and SUBSCRIBE when the packets are handled, whatever the result; at once if another limiter refused.
    Combines: each plugin is notified of its own calls.
    If it raises: logged and counted.
    Threading: reactor thread, synchronous.
    """


@hookspec(Kind.NOTIFY)
def limited(resource: Resource, decision: LimitDecision) -> None:
    """A limiter answered something other than ALLOW.

    Called: for each such answer, in a later reactor turn.
    Combines: every implementation is notified, in order per client.
    If it raises: logged and counted.
    Threading: reactor thread; may be awaited, the next notice to this plugin then waits.
    """
