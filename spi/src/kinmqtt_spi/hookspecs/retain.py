"""Retain store: the retained message of each topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinmqtt_spi.markers import Kind, hookspec

if TYPE_CHECKING:
    from kinmqtt_spi.services.plugin import Context
    from kinmqtt_spi.services.retain import RetainStore
    from kinmqtt_spi.values import Maybe, Message, Outcome


@hookspec(Kind.PROVIDE, synchronous=True)
def retain_store(context: Context) -> RetainStore:  # type: ignore[empty-body]
    """The broker's retain store.

    Called: once at assembly, after ``configure``.
    Combines: exclusive: the plugin the settings name, else the only one installed, else `embedded`, or
        `memory` with `--data memory`.
    If it raises: the broker does not start and names the plugin.
    Threading: reactor thread, synchronous.
    """


@hookspec(Kind.INTERCEPT, time_limit_s=10.0, folds="message")
def retaining(message: Message) -> Maybe[Outcome[Message]]:
    """A message is about to be retained, or with an empty payload to clear its topic: change it or drop it.

    Called: for each message with the RETAIN flag, a client's, a will's or the broker's own, before it is stored.
    Combines: a fold in the order of the settings; ``Drop`` and ``Reject`` leave the store unchanged, and the message
    is delivered anyway.
    If it raises: the store is unchanged.
    Threading: reactor thread; may be awaited.
    """


@hookspec(Kind.NOTIFY)
def retained(message: Message) -> None:
    """A message is retained.

    Called: after the store has committed it, in a later reactor turn.
    Combines: every implementation is notified, in order per client.
    If it raises: logged and counted.
    Threading: reactor thread; may be awaited, the next notice to this plugin then waits.
    """


@hookspec(Kind.NOTIFY)
def retain_cleared(topic: str) -> None:
    """A topic's retained message was deleted or has expired.

    Called: after the store has committed the deletion, in a later reactor turn.
    Combines: every implementation is notified, in order per client.
    If it raises: logged and counted.
    Threading: reactor thread; may be awaited, the next notice to this plugin then waits.
    """
