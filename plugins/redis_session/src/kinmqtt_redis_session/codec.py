"""Encodes values for Redis and decodes them: the SPI's plain forms as JSON, and versions that Lua can compare.

What a script needs to know about a value (size, expiry, version) precedes its JSON.
"""

from __future__ import annotations

import json
import struct
from binascii import b2a_base64
from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring_ascii as _quoted
from math import isfinite
from typing import Any, Final

from kinmqtt_spi.plain import from_plain, to_plain
from kinmqtt_spi.services.queue import Entry, entry_bytes
from kinmqtt_spi.services.retain import RetainVersion, RetainWrite
from kinmqtt_spi.services.session import Claimant, OpenSession, ResumeSession, StoredSession
from kinmqtt_spi.values import Message, MessageId, NodeIdentity, Subscription, Will

NEVER: Final = "-"
"""Replaces the expiry time of a message that never expires."""

_LARGEST: Final = 2**64 - 1


dumps: Final = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
"""Encodes a value as ASCII JSON without spaces."""


def timestamp(at: float | None) -> str:
    """A time without loss of precision; the empty string for ``None``."""
    return "" if at is None else repr(float(at))


def expiry(message: Message) -> str:
    """The expiry time of a message, or ``NEVER``."""
    return NEVER if message.expires_at is None else repr(message.expires_at)


class Messages:
    """The messages of one pipeline, each encoded once however many queues share it."""

    def __init__(self) -> None:
        self._written: dict[int, tuple[Message, int, str]] = {}

    def written(self, message: Message) -> tuple[Message, int, str]:
        """A message, its size in bytes, and its JSON."""
        known = self._written.get(id(message))
        if known is None:
            # The reference keeps the message alive, so that its id() is not reused.
            known = self._written[id(message)] = (message, message.size_bytes, message_json(message))
        return known


def message_json(message: Message) -> str:
    """The JSON of a message's plain form. A message without properties takes a fast path, four times as fast."""
    received_at, expires_at = message.received_at, message.expires_at
    if message.properties or not isfinite(received_at) or not (expires_at is None or isfinite(expires_at)):
        return dumps(to_plain(message))
    username = message.publisher.username
    return (
        f'{{"topic":{_quoted(message.topic)},'
        f'"payload":"{b2a_base64(message.payload, newline=False).decode("ascii")}",'
        f'"qos":{message.qos:d},"retain":{"true" if message.retain else "false"},"properties":{{}},'
        f'"publisher":{{"client_id":{_quoted(message.publisher.client_id)},'
        f'"username":{"null" if username is None else _quoted(username)}}},'
        f'"id":{{"node":{message.id.node:d},"counter":{message.id.counter:d}}},'
        f'"received_at":{float(received_at)!r},'
        f'"expires_at":{"null" if expires_at is None else repr(float(expires_at))}}}'
    )


def entry_json(entry: Entry, messages: Messages) -> str:
    """The JSON of a queue entry."""
    return _entry(entry, messages.written(entry.message)[2])


def entry_blob(entry: Entry, messages: Messages) -> str:
    """The JSON of a queue entry, preceded by its size and expiry, as stored in a client's hash."""
    message, message_bytes, json = messages.written(entry.message)
    size_bytes = entry_bytes(message_bytes, entry.identifiers, entry.shared_filter)
    return f"{size_bytes} {expiry(message)} {_entry(entry, json)}"


def _entry(entry: Entry, message: str) -> str:
    if entry.identifiers or entry.shared_filter is not None:
        more = dumps([entry.qos, entry.retain, list(entry.identifiers), entry.shared_filter])
    else:
        more = f"[{entry.qos},{'true' if entry.retain else 'false'},[],null]"
    return f'{{"sequence":{entry.sequence},"more":{more},"message":{message}}}'


def message_id(id: MessageId | None) -> str:
    """A message id as ``node,counter``; empty for none."""
    return "" if id is None else f"{id.node},{id.counter}"


def message_id_of(text: bytes) -> MessageId:
    """Decode what :func:`message_id` encoded."""
    node, counter = text.split(b",")
    return MessageId(int(node), int(counter))


def entry_of(blob: bytes) -> Entry:
    """Decode what :func:`entry_blob` encoded."""
    plain = json.loads(blob.split(b" ", 2)[2])
    qos, retain, identifiers, shared_filter = plain["more"]
    return from_plain(
        Entry,
        {
            "sequence": plain["sequence"],
            "message": plain["message"],
            "qos": qos,
            "retain": retain,
            "identifiers": identifiers,
            "shared_filter": shared_filter,
        },
    )


def fixed(session: StoredSession) -> str:
    """The fields of a session that never change while it is stored."""
    return dumps([session.client_id, session.created_at])


def changing(session: StoredSession | ResumeSession) -> str:
    """The fields of a session that each new connection sets."""
    return dumps([session.expiry_s, session.username, session.protocol_version])


def verified(session: StoredSession | ResumeSession) -> str:
    """The user name again if an authenticator verified it; else the empty string."""
    return "" if session.username_unverified else dumps([session.username])


def claimant_json(claimant: Claimant | None) -> str:
    """The user for whom a client id is claimed; the empty string for ``None``."""
    return "" if claimant is None else dumps([claimant.username, claimant.said])


def will_json(will: Will | None) -> str:
    """The JSON of a will; the empty string for ``None``."""
    return "" if will is None else dumps(to_plain(will))


def opened(write: OpenSession) -> list[str | bytes | int]:
    """The arguments of the write that opens a session."""
    session = write.session
    parts: list[str | bytes | int] = [fixed(session), changing(session), verified(session), will_json(session.will)]
    parts += [timestamp(session.expires_at), timestamp(session.will_due_at)]
    return parts + subscriptions(session.subscriptions)


def subscriptions(several: Sequence[Subscription]) -> list[str | bytes | int]:
    """The arguments of the write that saves subscriptions: their number, then filter and value of each."""
    parts: list[str | bytes | int] = [len(several)]
    for each in several:
        parts += [text(each.full_filter), dumps(to_plain(each))]
    return parts


def text(words: str) -> bytes:
    """A string as UTF-8, surrogates included."""
    return words.encode("utf-8", "surrogatepass")


def owner_json(node: NodeIdentity) -> str:
    """The JSON of a node."""
    return dumps([node.name, node.uid])


def owner_of(blob: bytes | None) -> NodeIdentity | None:
    """The owner in a client's hash; ``None`` if it has none."""
    return NodeIdentity(*json.loads(blob)) if blob else None


def session_of(head: Sequence[bytes | None], filters: Sequence[bytes]) -> StoredSession | None:
    """The session in a client's hash, without epoch and owner; ``None`` if none is stored."""
    base, variable, will, expires_at, will_due_at, named = head
    if base is None or variable is None:
        return None
    client_id, created_at = json.loads(base)
    expiry_s, username, protocol_version = json.loads(variable)
    # The first twelve digits of each value are the subscription's position.
    return StoredSession(
        client_id=client_id,
        expiry_s=expiry_s,
        subscriptions=tuple(from_plain(Subscription, json.loads(blob[12:])) for blob in sorted(filters[1::2])),
        will=from_plain(Will, json.loads(will)) if will else None,
        created_at=created_at,
        username=username,
        protocol_version=protocol_version,
        expires_at=float(expires_at) if expires_at else None,
        will_due_at=float(will_due_at) if will_due_at else None,
        # An older version writes the user name without this field, which then names another user or is missing.
        username_unverified=named is None or json.loads(named) != [username],
    )


def version_hex(version: RetainVersion) -> str:
    """A version as 48 hexadecimal digits that sort in version order.

    Lua's numbers are doubles and can't hold the 64 bits of a node, so scripts compare eight digits at a time.
    """
    (bits,) = struct.unpack(">Q", struct.pack(">d", version.received_at + 0.0))
    ordered = bits ^ (_LARGEST if bits >> 63 else 1 << 63)
    return f"{ordered:016x}{min(version.node, _LARGEST):016x}{min(version.counter, _LARGEST):016x}"


def version_of(digits: bytes) -> RetainVersion:
    """Decode what :func:`version_hex` encoded."""
    ordered = int(digits[:16], 16)
    bits = ordered ^ (1 << 63) if ordered >> 63 else ordered ^ _LARGEST
    (received_at,) = struct.unpack(">d", struct.pack(">Q", bits))
    return RetainVersion(received_at, int(digits[16:32], 16), int(digits[32:48], 16))


def retained_of(blob: bytes) -> RetainWrite:
    """The retained message in a shard's hash, where version and size precede it."""
    version, _, plain = blob.split(b" ", 2)
    message: Mapping[str, Any] = json.loads(plain)
    return RetainWrite(from_plain(Message, message), version_of(version))
