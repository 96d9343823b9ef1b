"""Subscription index: the subscribers of a topic, and the member of a shared group that gets a message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinmqtt_spi.markers import Kind, hookspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kinmqtt_spi.services.plugin import Context
    from kinmqtt_spi.services.subscription import Subscriber, SubscriptionIndex
    from kinmqtt_spi.values import Client, Maybe, Message, Outcome, Subscription


@hookspec(Kind.PROVIDE, synchronous=True)
def subscription_index(context: Context) -> SubscriptionIndex:  # type: ignore[empty-body]
    """The broker's subscription index.

    Called: once at assembly, after ``configure``.
    Combines: exclusive: the plugin the settings name, else the only one installed, else the built-in trie.
    If it raises: the broker does not start and names the plugin.
    Threading: reactor thread, synchronous.
    """


@hookspec(Kind.INTERCEPT, time_limit_s=10.0, folds="subscription")
def subscribing(client: Client, subscription: Subscription) -> Maybe[Outcome[Subscription]]:
    """A client asks for a subscription: change it, or refuse it in the SUBACK.

    Called: for each filter of a SUBSCRIBE, after authorization.
    Combines: a fold in the order of the settings.
    If it raises: the filter is refused with 0x83.
    Threading: reactor thread; may be awaited. The client's other packets wait.
    """


@hookspec(Kind.INTERCEPT, time_limit_s=10.0, folds="filter")
def unsubscribing(client: Client, filter: str) -> Maybe[Outcome[str]]:
    """A client unsubscribes from a filter (with ``$share/group/`` if shared): change the filter, or refuse.

    Called: for each filter of an UNSUBSCRIBE.
    Combines: a fold in the order of the settings.
    If it raises: the filter is refused with 0x83.
    Threading: reactor thread; may be awaited. The client's other packets wait.
    """


@hookspec(Kind.COLLECT, time_limit_s=10.0, fails_open=True)
def initial_subscriptions(client: Client) -> Maybe[Sequence[Subscription]]:  # type: ignore[empty-body]
    """Return subscriptions that a client gets without asking.

    Called: at each connect, before CONNACK.
    Combines: the union; retained messages are sent as for a SUBSCRIBE.
    If it raises: fails open: that plugin's subscriptions are skipped and the failure is counted. With
    ``fails_closed`` the client is refused with 0x88.
    Threading: reactor thread; may be awaited.
    """


@hookspec(Kind.DECIDE, synchronous=True)
def choose_member(group: str, filter: str, candidates: Sequence[Subscriber], message: Message) -> Subscriber | None:
    """Choose the member of a shared group that gets a message; ``None`` abstains.

    Called: for each message and shared group it matches; ``candidates`` are the connected members, or all members
    if none is connected, without those to which ``authorize_receive`` denies the message.
    Combines: the first candidate answered, in the order of the settings; else the members take turns.
    If it raises: counts as abstaining; the message goes to another member.
    Threading: reactor thread, synchronous: answer from memory.
    """


@hookspec(Kind.NOTIFY)
def subscribed(client: Client, subscription: Subscription) -> None:
    """A subscription was made or replaced.

    Called: after the subscription is committed, in a later reactor turn.
    Combines: every implementation is notified, in order per client.
    If it raises: logged and counted.
    Threading: reactor thread; may be awaited, the next notice to this plugin then waits.
    """


@hookspec(Kind.NOTIFY)
def unsubscribed(client: Client, filter: str) -> None:
    """A client unsubscribed from a filter.

    Called: after the removal is committed, in a later reactor turn.
    Combines: every implementation is notified, in order per client.
    If it raises: logged and counted.
    Threading: reactor thread; may be awaited, the next notice to this plugin then waits.
    """


@hookspec(Kind.NOTIFY)
def message_unrouted(message: Message) -> None:
    """A message had no subscriber.

    Called: for each message that no subscription matches, in a later reactor turn.
    Combines: every implementation is notified, in order per client.
    If it raises: logged and counted.
    Threading: reactor thread; may be awaited, the next notice to this plugin then waits.
    """
