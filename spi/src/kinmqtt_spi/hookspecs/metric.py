"""Metrics: ``$SYS`` topics and sinks. Counters themselves are made through ``context.metrics``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinmqtt_spi.markers import Kind, hookspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kinmqtt_spi.services.metric import Snapshot, SysTopic, TrafficSnapshot


@hookspec(Kind.COLLECT, synchronous=True)
def sys_topics() -> Sequence[SysTopic]:  # type: ignore[empty-body]
    """Topics below ``$SYS/`` that the broker publishes, retained, at each interval or on change.

    Called: once, when the broker has started.
    Combines: the union; if two plugins name the same topic, the first in the order of the settings publishes it.
    If it raises: that plugin's topics are skipped and the failure is counted.
    Threading: reactor thread, synchronous; so is each topic's ``read``.
    """


@hookspec(Kind.NOTIFY)
def sampled(snapshot: Snapshot) -> None:
    """All metrics at one moment, for sinks.

    Called: at each metrics interval and once more at the broker's stop, where a plugin implements it, off the message
    path.
    Combines: every implementation is notified.
    If it raises: logged and counted.
    Threading: reactor thread; may be awaited, the next notice to this plugin then waits.
    """


@hookspec(Kind.NOTIFY)
def traffic_sampled(traffic: TrafficSnapshot) -> None:
    """Traffic by client and topic since the last sample, for sinks.

    Packets that were denied, or dropped for lack of memory, are counted; those that a limiter stopped are not.

    The moment is that of the interval's ``sampled``. The broker aggregates one slice in each reactor turn: 100,000
    clients with their topics, the most that are reported one by one, take about 100 turns of 0.5 ms and one of 11 ms.

    Called: at each metrics interval and once more at the broker's stop, where a plugin implements it, off the message
    path.
    Combines: every implementation is notified.
    If it raises: logged and counted.
    Threading: reactor thread; may be awaited, the next notice to this plugin then waits.
    """
