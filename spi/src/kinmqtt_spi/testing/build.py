"""Values for tests, with defaults for all fields."""

from __future__ import annotations

from typing import Any

from kinmqtt_spi.services.authentication import ConnectRequest
from kinmqtt_spi.services.authorization import Action, AuthorizationRequest
from kinmqtt_spi.services.event import Event, EventKind, EventVersion
from kinmqtt_spi.services.queue import Entry
from kinmqtt_spi.services.session import StoredSession
from kinmqtt_spi.values import Address, Client, Message, MessageId, NodeIdentity, Publisher, Subscription, Will

HERE = NodeIdentity("here", 1)
THERE = NodeIdentity("there", 2)
ADDRESS = Address("192.0.2.1", 50_000)
"""Of a block that is reserved for documentation (RFC 5737)."""
NOW = 1_700_000_000.0
"""Seconds since the epoch: where a turnable clock begins."""


def client(client_id: str = "client", username: str | None = None, **fields: Any) -> Client:
    """Make a connected client; ``fields`` are those of :class:`~kinmqtt_spi.values.Client`."""
    return Client(client_id, username, **{"address": ADDRESS, "listener": "tcp:1883", **fields})


def connect_request(client_id: str = "client", **fields: Any) -> ConnectRequest:
    """Make a CONNECT; ``fields`` are those of :class:`~kinmqtt_spi.services.authentication.ConnectRequest`."""
    return ConnectRequest(client_id, **{"address": ADDRESS, "listener": "tcp:1883", **fields})


def message(topic: str = "a/b", payload: bytes = b"payload", *, number: int = 1, **fields: Any) -> Message:
    """Make a message that the broker has received, the ``number``-th of its node."""
    return Message(
        topic,
        payload,
        **{
            "publisher": Publisher("publisher"),
            "id": MessageId(HERE.uid, number),
            "received_at": NOW + number / 1000,
            **fields,
        },
    )


def entry(sequence: int = 1, topic: str = "a/b", *, qos: int = 1, **fields: Any) -> Entry:
    """Make a queue entry, whose payload is its sequence number; ``fields`` are those of the message."""
    its = message(topic, **{"payload": b"%d" % sequence, "number": sequence, "qos": qos, **fields})
    return Entry(sequence, its, qos)


def event(client_id: str = "client", counter: int = 1, **fields: Any) -> Event:
    """Make a client's ``counter``-th event; ``fields`` are those of :class:`~kinmqtt_spi.services.event.Event`."""
    its = {"kind": EventKind.CONNECT, "at": NOW + counter / 1000, "data": {"counter": counter}, **fields}
    return Event(client_id=client_id, **{"version": EventVersion(1, counter), **its})


def session(client_id: str = "client", **fields: Any) -> StoredSession:
    """Make a stored session; ``fields`` are those of :class:`~kinmqtt_spi.services.session.StoredSession`."""
    return StoredSession(client_id, **{"expiry_s": 3600, "created_at": NOW, **fields})


def will(topic: str = "will", delay_s: int = 0, **fields: Any) -> Will:
    """Make a will; ``fields`` are those of its message."""
    return Will(Message(topic, **{"payload": b"gone", **fields}), delay_s)


def authorization(
    action: Action = Action.PUBLISH, topic: str = "a/b", by: Client | None = None, **fields: Any
) -> AuthorizationRequest:
    """Make a request to an authorizer; ``by`` is its client."""
    return AuthorizationRequest(client() if by is None else by, action, topic, **fields)


def subscription(filter: str = "a/+", **fields: Any) -> Subscription:
    """Make a subscription; ``fields`` are those of :class:`~kinmqtt_spi.values.Subscription`."""
    return Subscription(filter, **fields)
