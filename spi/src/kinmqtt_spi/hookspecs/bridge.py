"""Bridge: sinks take messages out of the broker, sources bring messages in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinmqtt_spi.markers import Kind, hookspec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kinmqtt_spi.services.bridge import SinkPlan, SinkState, Source
    from kinmqtt_spi.services.plugin import Context
    from kinmqtt_spi.values import Message


@hookspec(Kind.COLLECT, synchronous=True)
def sinks(context: Context) -> Mapping[str, SinkPlan]:  # type: ignore[empty-body]
    """Return the plugin's sinks, by names that must stay the same: each name has an outbox in the stores.

    Called: at assembly, after ``configure``, and after each ``reload`` of the plugin.
    Combines: each plugin has its own sinks; rules name them as `plugin:name`.
    If it raises: the broker does not start and names the plugin; after a reload the old sinks go on.
    Threading: reactor thread, synchronous: connect in ``Sink.open``.
    """


@hookspec(Kind.COLLECT, synchronous=True)
def sources(context: Context) -> Mapping[str, Source]:  # type: ignore[empty-body]
    """Return the plugin's sources, by name.

    Called: at assembly, after ``configure``, and after each ``reload`` of the plugin.
    Combines: each plugin has its own sources.
    If it raises: the broker does not start and names the plugin; after a reload the old sources go on.
    Threading: reactor thread, synchronous: connect in ``Source.run``.
    """


@hookspec(Kind.NOTIFY)
def sink_state(name: str, state: SinkState, why: str) -> None:
    """A sink has another state; ``name`` is `plugin:name`.

    Called: at each change, in a later reactor turn.
    Combines: every implementation is notified, in order.
    If it raises: logged and counted.
    Threading: reactor thread; may be awaited, the next notice to this plugin then waits.
    """


@hookspec(Kind.NOTIFY)
def poisoned(name: str, message: Message, why: str) -> None:
    """A sink will never take a message; ``name`` is `plugin:name`.

    Called: for each such message, after it was parked or dropped, in a later reactor turn.
    Combines: every implementation is notified, in order.
    If it raises: logged and counted.
    Threading: reactor thread; may be awaited, the next notice to this plugin then waits.
    """
