"""The message path: hooks on packets and messages that belong to no store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinmqtt_spi.markers import Kind, OnFailure, hookspec

if TYPE_CHECKING:
    from kinmqtt_spi.properties import Properties
    from kinmqtt_spi.reasons import ReasonCode
    from kinmqtt_spi.services.authentication import ConnectRequest
    from kinmqtt_spi.values import Client, Maybe, Message, Outcome, Subscription


@hookspec(Kind.INTERCEPT, time_limit_s=10.0, folds="request")
def connect_received(request: ConnectRequest) -> Maybe[Outcome[ConnectRequest]]:
    """A CONNECT packet arrived: change what it asks for, or refuse it.

    Called: for each CONNECT, before authentication.
    Combines: a fold in the order of the settings.
    If it raises: the client is refused with 0x88.
    Threading: reactor thread; may be awaited. The client's other packets wait.
    """


@hookspec(Kind.INTERCEPT, synchronous=True, on_failure=OnFailure.PASS, folds="properties", fails_open=True)
def connack_sending(client: Client, properties: Properties) -> Outcome[Properties]:
    """A successful CONNACK is about to go to an MQTT 5 client: change its properties.

    Called: for each accepted connection of MQTT 5. Limits that the broker enforces can't be widened here.
    Combines: a fold in the order of the settings; ``Drop``, ``Reject`` and ``Disconnect`` refuse the client.
    If it raises: fails open: the properties go out unchanged. With ``fails_closed`` the client is refused with 0x83.
    Threading: reactor thread, synchronous.
    """


@hookspec(Kind.INTERCEPT, time_limit_s=10.0, by_topic=True, folds="message")
def publish_received(client: Client, message: Message) -> Maybe[Outcome[Message]]:
    """A client publishes: change the message, drop it, refuse it, or close the connection.

    Called: for each PUBLISH of a client, after authorization, before routing; may be limited with ``on_topics``.
    Combines: a fold in the order of the settings.
    If it raises: the message is refused with 0x83.
    Threading: reactor thread; may be awaited. The client's other packets wait.
    """


@hookspec(
    Kind.INTERCEPT, synchronous=True, on_failure=OnFailure.PASS, by_topic=True, folds="message", fails_open=True
)
def delivering(client: Client, message: Message, subscription: Subscription) -> Outcome[Message]:
    """A message is about to be queued for or sent to one client: change it for this client, or drop it.

    Called: for each client a message goes to, after routing; may be limited with ``on_topics``.
    Combines: a fold in the order of the settings; ``Reject`` and ``Drop`` both drop it for this client.
    If it raises: fails open: the message goes out unchanged. With ``fails_closed`` it is dropped for this client, and
    counted as ``intercepted``.
    Threading: reactor thread, synchronous.
    """


@hookspec(Kind.INTERCEPT, time_limit_s=10.0, folds="message")
def will_publishing(client: Client, message: Message) -> Maybe[Outcome[Message]]:
    """A will is due: change it, or drop it.

    Called: when the will's delay has passed or its session ends, before routing; not if the authorizers deny the will
    by then.
    Combines: a fold in the order of the settings; ``Reject`` and ``Drop`` both drop it.
    If it raises: the will is dropped.
    Threading: reactor thread; may be awaited.
    """


@hookspec(Kind.NOTIFY, by_topic=True)
def published(message: Message) -> None:
    """A message was accepted and routed.

    Called: after routing, in a later reactor turn; may be limited with ``on_topics``.
    Combines: every implementation is notified, in order per client.
    If it raises: logged and counted.
    Threading: reactor thread; may be awaited, the next notice to this plugin then waits.
    """


@hookspec(Kind.NOTIFY, by_topic=True)
def delivered(client: Client, message: Message) -> None:
    """A message was sent to a client. It may not have arrived.

    Called: when the PUBLISH packet is handed to the transport, in a later reactor turn; may be limited with
    ``on_topics``.
    Combines: every implementation is notified, in order per client.
    If it raises: logged and counted.
    Threading: reactor thread; may be awaited, the next notice to this plugin then waits.
    """


@hookspec(Kind.NOTIFY, by_topic=True)
def acknowledged(client: Client, message: Message, reason: ReasonCode) -> None:
    """A client acknowledged a message of QoS 1 (PUBACK) or QoS 2 (PUBREC); a reason of 0x80 and above refuses it.

    Called: when the acknowledgement arrives, in a later reactor turn; may be limited with ``on_topics``.
    Combines: every implementation is notified, in order per client.
    If it raises: logged and counted.
    Threading: reactor thread; may be awaited, the next notice to this plugin then waits.
    """


@hookspec(Kind.NOTIFY)
def dropped(client_id: str, message: Message, why: str) -> None:
    """A message was not delivered, or only in part, to a client it was meant for.

    Called: for each drop, in a later reactor turn; ``why`` is one of the words of docs/message.md. The client id of a
        plugin's outbox is ``$outbox/<node>/<plugin>/<name>``.
    Combines: every implementation is notified, in order per client.
    If it raises: logged and counted.
    Threading: reactor thread; may be awaited, the next notice to this plugin then waits.
    """


@hookspec(Kind.NOTIFY)
def connected(client: Client, session_present: bool) -> None:
    """A client is connected: its CONNACK was sent.

    Called: after the CONNACK is handed to the transport, in a later reactor turn.
    Combines: every implementation is notified, in order per client.
    If it raises: logged and counted.
    Threading: reactor thread; may be awaited, the next notice to this plugin then waits.
    """


@hookspec(Kind.NOTIFY)
def disconnected(client: Client, by_client: bool, reason: ReasonCode) -> None:
    """A connection has ended with a DISCONNECT, from the client or from the broker.

    Called: when the connection is gone, in a later reactor turn.
    Combines: every implementation is notified, in order per client.
    If it raises: logged and counted.
    Threading: reactor thread; may be awaited, the next notice to this plugin then waits.
    """


@hookspec(Kind.NOTIFY)
def connection_lost(client: Client, text: str) -> None:
    """A connection has ended without a DISCONNECT.

    Called: when the connection is gone, in a later reactor turn; ``text`` says how.
    Combines: every implementation is notified, in order per client.
    If it raises: logged and counted.
    Threading: reactor thread; may be awaited, the next notice to this plugin then waits.
    """
