"""Queue store: queued messages and messages in flight, by client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinmqtt_spi.markers import Kind, hookspec

if TYPE_CHECKING:
    from kinmqtt_spi.services.plugin import Context
    from kinmqtt_spi.services.queue import OverflowPolicy, QueueFull, QueueStore
    from kinmqtt_spi.values import Message


@hookspec(Kind.PROVIDE, synchronous=True)
def queue_store(context: Context) -> QueueStore:  # type: ignore[empty-body]
    """The broker's queue store.

    Called: once at assembly, after ``configure``.
    Combines: exclusive: the plugin the settings name, else the only one installed, else `embedded`, or
        `memory` with `--data memory`.
    If it raises: the broker does not start and names the plugin.
    Threading: reactor thread, synchronous.
    """


@hookspec(Kind.DECIDE, synchronous=True)
def queue_full(question: QueueFull) -> OverflowPolicy | None:
    """Choose the overflow policy when a client's queue is full; ``None`` abstains.

    Called: for each message whose queue is full.
    Combines: the first answer that is not ``None``, in the order of the settings; else the settings' policy.
    If it raises: counts as abstaining; the settings' policy applies.
    Threading: reactor thread, synchronous: answer from memory.
    """


@hookspec(Kind.NOTIFY)
def message_queued(client_id: str, message: Message) -> None:
    """A message waits in a client's queue, because the client is offline or its window is full.

    Called: after the entry is committed, in a later reactor turn; not for the outboxes of plugins.
    Combines: every implementation is notified, in order per client.
    If it raises: logged and counted.
    Threading: reactor thread; may be awaited, the next notice to this plugin then waits.
    """


@hookspec(Kind.NOTIFY)
def message_expired(client_id: str, message: Message) -> None:
    """A message's expiry interval has passed while it waited for a client.

    Called: when the entry is removed, in a later reactor turn; not for the outboxes of plugins.
    Combines: every implementation is notified, in order per client.
    If it raises: logged and counted.
    Threading: reactor thread; may be awaited, the next notice to this plugin then waits.
    """
