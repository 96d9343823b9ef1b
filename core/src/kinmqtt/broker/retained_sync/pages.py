"""The format of what two nodes send each other about retained messages.

    page      = version of the format (1 byte) · content
    table     = 1,024 sums (8 each), or nothing where the digests are equal
    list      = sections; each is of one bucket, and the last one may be continued by another list
    section   = number of the bucket (2) · whether it is whole (1) · entries (4) · entries
    entry     = version (24) · whether it is a deletion (1) · topic
    request   = buckets (2) · numbers (2 each) · the topic after which the first one is continued
    topics    = topics
    answer    = topics dealt with (4) · writes
    write     = version (24) · age in ms (8) · length (4) · the message, as a batch; or length 0 · topic: a deletion
    text      = length (2) · UTF-8

No clock is compared but by versions: an age is how long ago a message was received, and its expiry counts from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Final

from attrs import frozen

from kinmqtt.broker.forwarding.single_message import read_message, write_message
from kinmqtt.broker.message.publication import Publication
from kinmqtt.broker.retained_sync.index import BUCKETS, TABLE, VERSION, VersionIndex, packed_version
from kinmqtt_spi.errors import MalformedBatch
from kinmqtt_spi.services.retain import RetainVersion, RetainWrite
from kinmqtt_spi.values import Message, MessageId

FORMAT: Final = 1

LIST_BYTES: Final = 32 << 10
"""A list is complete when it has this size. Some 500 topics: no node is busy with one for more than some 10 ms."""

PAGE_BYTES: Final = 256 << 10
"""A page of writes is complete when it has this size. A larger message has one for itself."""

TOPICS_AT_ONCE: Final = 250
"""The most topics that are asked for, or sent, at once: to read 250 messages takes some 5 ms."""

MAX_MESSAGE_BYTES: Final = 15 << 20
"""The largest message that is sent to another node: a backend's frames have at most 16 MiB."""

LAST_TIME_S: Final = 253_402_300_800.0
"""The end of the year 9999: the time of a version is before, in seconds since the epoch."""

MAX_AGE_MS: Final = int(LAST_TIME_S * 1000)

ROOT_BYTES: Final = 16


@frozen(slots=True)
class Entry:
    """A topic, as a node lists it."""

    topic: str
    version: RetainVersion
    is_deletion: bool


@frozen(slots=True)
class Section:
    """The entries of one bucket, in the order of their topics; if it is not whole, more follow."""

    bucket: int
    is_whole: bool
    entries: tuple[Entry, ...]


# Digests


def write_root(root: bytes) -> bytes:
    """Return the question for another node's table: it answers nothing if its digest is the same."""
    return _HEAD + root


def read_root(data: bytes) -> bytes:
    """Return the digest in a question."""
    root = _Reader(data).rest()
    if len(root) != ROOT_BYTES:
        raise MalformedBatch(f"a digest of {len(root)} bytes")
    return root


def write_table(table: bytes) -> bytes:
    """Return a table as an answer."""
    return _HEAD + table


def read_table(data: bytes) -> bytes:
    """Return the table of an answer."""
    table = _Reader(data).rest()
    if len(table) != TABLE.size:
        raise MalformedBatch(f"a table of {len(table)} bytes")
    return table


# Lists


def write_request(buckets: Sequence[int], after: str) -> bytes:
    """Return the question for lists of buckets; the first one is continued after a topic."""
    numbers = b"".join([number.to_bytes(2, "big") for number in buckets])
    return _HEAD + len(buckets).to_bytes(2, "big") + numbers + _text(after)


def read_request(data: bytes) -> tuple[list[int], str]:
    """Return the buckets of a question, and the topic after which the first one is continued."""
    reader = _Reader(data)
    buckets = [reader.number(2) for _ in range(min(reader.number(2), BUCKETS))]
    after = reader.text()
    if not reader.is_at_end or any(number >= BUCKETS for number in buckets):
        raise MalformedBatch("a request for buckets that can't be read")
    return buckets, after


def write_list(index: VersionIndex, buckets: Iterable[int], after: str) -> bytes:
    """Return the list of buckets; as many as go into a page."""
    pieces = [_HEAD]
    size_bytes = 0
    for bucket in buckets:
        entries: list[bytes] = []
        is_whole = True
        versions = index.versions(bucket)
        for topic in index.topics(bucket, after):
            if size_bytes >= LIST_BYTES:
                is_whole = False
                break
            entries.append(packed_version(versions[topic]) + bytes((index.is_deleted(topic),)) + _text(topic))
            size_bytes += len(entries[-1])
        pieces.append(bucket.to_bytes(2, "big") + bytes((is_whole,)) + len(entries).to_bytes(4, "big"))
        pieces += entries
        if not is_whole or size_bytes >= LIST_BYTES:
            break
        after = ""
    return b"".join(pieces)


def read_list(data: bytes) -> list[Section]:
    """Return the sections of a list."""
    reader = _Reader(data)
    sections = []
    while not reader.is_at_end:
        bucket, is_whole, count = reader.number(2), reader.number(1) != 0, reader.number(4)
        entries: list[Entry] = []
        for _ in range(count):
            version, is_deletion = reader.version(), reader.number(1) != 0
            entries.append(Entry(reader.text(), version, is_deletion))
        if bucket >= BUCKETS or not (is_whole or entries):
            raise MalformedBatch("a list that can't be read")
        sections.append(Section(bucket, is_whole, tuple(entries)))
    return sections


# Messages


def write_topics(topics: Iterable[str]) -> bytes:
    """Return the question for the messages of some topics."""
    return _HEAD + b"".join([_text(topic) for topic in topics])


def read_topics(data: bytes) -> list[str]:
    """Return the topics of a question."""
    reader = _Reader(data)
    topics = []
    while not reader.is_at_end:
        topics.append(reader.text())
    return topics


def write_answer(handled: int, writes: Iterable[bytes]) -> bytes:
    """Return the answer to a question for messages: of so many topics, all writes that there are."""
    return _HEAD + handled.to_bytes(4, "big") + b"".join(writes)


def read_answer(data: bytes, now: float) -> tuple[int, list[RetainWrite]]:
    """Return the number of topics that an answer deals with, and its writes."""
    reader = _Reader(data)
    handled = reader.number(4)
    return handled, _read_writes(reader, now)


def write_writes(writes: Iterable[bytes]) -> bytes:
    """Return a page of writes."""
    return _HEAD + b"".join(writes)


def read_writes(data: bytes, now: float) -> list[RetainWrite]:
    """Return the writes of a page; their messages were received their age before ``now``."""
    return _read_writes(_Reader(data), now)


def write_write(message: Message | None, topic: str, version: RetainVersion, now: float) -> bytes:
    """Return the write of a message, or of a deletion, as a part of a page."""
    if message is None:
        return packed_version(version) + bytes(12) + _text(topic)
    packed = write_message(Publication.of(message), now)
    age_ms = min(int(max(0.0, now - message.received_at) * 1000), MAX_AGE_MS)
    return packed_version(version) + age_ms.to_bytes(8, "big") + len(packed).to_bytes(4, "big") + packed


def deletion(topic: str, version: RetainVersion, now: float) -> RetainWrite:
    """Return the write that deletes a topic's message."""
    message = Message(topic, b"", 0, True).received(MessageId(version.node, version.counter), now, None)
    return RetainWrite(message, version)


def _read_writes(reader: _Reader, now: float) -> list[RetainWrite]:
    writes = []
    while not reader.is_at_end:
        version, age_ms, length = reader.version(), reader.number(8), reader.number(4)
        if not length:
            writes.append(deletion(reader.text(), version, now))
            continue
        _, publication = read_message(reader.take(length), now, min(age_ms, MAX_AGE_MS) / 1000)
        message = publication.stored
        if not message.payload or tuple(message.id) != (version.node, version.counter):
            raise MalformedBatch("a retained message without a payload, or with another one's id")
        writes.append(RetainWrite(message, version))
    return writes


_HEAD: Final = FORMAT.to_bytes(1, "big")


def _text(value: str) -> bytes:
    encoded = value.encode()
    return len(encoded).to_bytes(2, "big") + encoded


class _Reader:
    """Reads a page; raises :class:`MalformedBatch` for what can't be read."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        if self.number(1) != FORMAT:
            raise MalformedBatch(f"a page of version {data[0]}; this node reads version {FORMAT}")

    @property
    def is_at_end(self) -> bool:
        return self._at >= len(self._data)

    def take(self, length: int) -> bytes:
        start, self._at = self._at, self._at + length
        if self._at > len(self._data):
            raise MalformedBatch("a page that ends too early")
        return self._data[start : self._at]

    def rest(self) -> bytes:
        return self.take(len(self._data) - self._at)

    def number(self, length: int) -> int:
        return int.from_bytes(self.take(length), "big")

    def text(self) -> str:
        try:
            return self.take(self.number(2)).decode()
        except UnicodeDecodeError:
            raise MalformedBatch("a topic that is not UTF-8") from None

    def version(self) -> RetainVersion:
        received_at, node, counter = VERSION.unpack(self.take(VERSION.size))
        if not isfinite(received_at) or not 0 <= received_at < LAST_TIME_S:
            raise MalformedBatch(f"a version of the time {received_at}")
        return RetainVersion(received_at, node, counter)
