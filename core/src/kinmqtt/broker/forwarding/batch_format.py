"""The format of a batch of messages from one node to another, and of its answer.

    batch   = version (1 byte) · version of the receiver's routes (8) · runs
    run     = flags (1) · length of the packets (4) · age in ms (4) · node uid (8) · counter (8) ·
              client id · user name, if there is one · targets, if they are named · PUBLISH packets
    text    = length (2) · UTF-8
    answer  = nothing if all messages were committed, else version (1) · exceptions
    exception = number of the message (4) · code (1) · as many texts as the code has

A run has consecutive messages of one publisher, with consecutive message ids. The packets are those that came from
the publisher, untouched; their packet identifiers and their DUP flag mean nothing here. An age is how long ago the
first of the messages was received: the clocks of two nodes are not compared. The version of the routes is the one by
which the sender chose the receiver: a session that came later may have got the messages where it was. It is 0 if any
session may have got them.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from kinmqtt_spi.errors import MalformedBatch
from kinmqtt_spi.values import Publisher

VERSION: Final = 1

_HEAD: Final = Struct(">BQ")
_HEAD_BYTES: Final = 9
_RUN: Final = Struct(">BIIQQ")
_RUN_BYTES: Final = 25

MOST_PUBLISHERS: Final = 4096
"""How many publishers are remembered for later batches; when there are more, all are forgotten."""

V5_PACKETS: Final = 1
"""The packets are those of MQTT 5."""
AGAIN: Final = 2
"""They were sent before, to a node that has not answered: a persistent session may have them already."""
PLAIN: Final = 4
"""They are for all subscribers whose subscription is not shared."""
GROUPS: Final = 8
"""They are for a member of each shared subscription that is named."""
CLIENTS: Final = 16
"""They are for the sessions that are named, whatever these have subscribed to."""
NAMED_USER: Final = 32
"""The publisher has a user name."""
ONE_TOPIC: Final = 128
"""They have the same topic, QoS 0, and neither RETAIN nor properties."""

_KNOWN: Final = V5_PACKETS | AGAIN | PLAIN | GROUPS | CLIENTS | NAMED_USER | ONE_TOPIC

REFUSED: Final = 1
"""A queue was full and refused the message."""
NO_MEMBER: Final = 2
"""The node has no member of the shared subscription; its name and filter follow."""
MOVED: Final = 3
"""The client's session has another owner: its client id follows, and the uid of that node in hex, if it is known."""

_TEXTS: Final = {REFUSED: 0, NO_MEMBER: 2, MOVED: 2}
"""How many texts follow each code."""

GroupKey = tuple[str, str]


class RunHead:
    """What a node must know of a run's messages besides their packets."""

    __slots__ = ("age_ms", "clients", "counter", "end", "flags", "groups", "publisher", "start", "uid")

    def __init__(
        self,
        flags: int,
        publisher: Publisher,
        uid: int,
        counter: int,
        age_ms: int,
        groups: tuple[GroupKey, ...] = (),
        clients: tuple[str, ...] = (),
    ) -> None:
        self.flags = flags
        self.publisher = publisher
        self.uid = uid
        """The node of the message ids."""
        self.counter = counter
        """The counter of the first message id."""
        self.age_ms = age_ms
        self.groups = groups
        self.clients = clients
        self.start = 0
        """In a batch that was read: the offset of the packets."""
        self.end = 0

    @property
    def is_v5(self) -> bool:
        """Whether the packets are those of MQTT 5."""
        return self.flags & V5_PACKETS != 0


def batch_head(routes_version: int) -> bytes:
    """Return the beginning of a batch."""
    head: bytes = _HEAD.pack(VERSION, routes_version)
    return head


def routes_version(batch: bytes) -> int:
    """Return the version of the receiver's routes that the sender of a batch knew; of a batch that was read."""
    return int.from_bytes(batch[1:_HEAD_BYTES], "big")


def write_run(head: RunHead, packets: list[bytes], into: list[bytes]) -> int:
    """Append a run to the pieces of a batch; returns its size in bytes."""
    length = 0
    for packet in packets:
        length += len(packet)
    flags = head.flags
    username = head.publisher.username
    if username is not None:
        flags |= NAMED_USER
    if head.groups:
        flags |= GROUPS
    if head.clients:
        flags |= CLIENTS
    written: bytes = _RUN.pack(flags, length, min(head.age_ms, 0xFFFFFFFF), head.uid, head.counter)
    written += _text(head.publisher.client_id)
    if username is not None:
        written += _text(username)
    if head.groups:
        written += len(head.groups).to_bytes(2, "big")
        for name, filter in head.groups:
            written += _text(name) + _text(filter)
    if head.clients:
        written += len(head.clients).to_bytes(2, "big")
        for client_id in head.clients:
            written += _text(client_id)
    into.append(written)
    into += packets
    return len(written) + length


def read_batch(batch: bytes, publishers: dict[bytes, Publisher] | None = None) -> list[RunHead]:
    """Return the runs of a batch, with the offsets of their packets; raises :class:`MalformedBatch`.

    ``publishers`` has those of earlier batches, by their bytes, and takes those of this one.
    """
    if publishers is None:
        publishers = {}
    reader = _Reader(batch)
    reader.skip(1)
    version = batch[0]
    if version != VERSION:
        raise MalformedBatch(f"a batch of version {version}; this node reads version {VERSION}")
    reader.skip(_HEAD_BYTES - 1)
    flags: int
    length: int
    age_ms: int
    uid: int
    counter: int
    runs = []
    while not reader.is_at_end:
        flags, length, age_ms, uid, counter = _RUN.unpack_from(batch, reader.skip(_RUN_BYTES))
        if flags & ~_KNOWN:
            raise MalformedBatch(f"a run with unknown flags 0x{flags:02X}")
        start = reader.offset
        reader.skip(reader.length())
        if flags & NAMED_USER:
            reader.skip(reader.length())
        named = batch[start : reader.offset]
        publisher = publishers.get(named)
        if publisher is None:
            publisher = _publisher(named, flags & NAMED_USER != 0)
            if len(publishers) >= MOST_PUBLISHERS:
                publishers.clear()
            publishers[named] = publisher
        groups: list[GroupKey] = []
        if flags & GROUPS:
            for _ in range(reader.number(2)):
                name = reader.text()
                groups.append((name, reader.text()))
        clients: list[str] = []
        if flags & CLIENTS:
            for _ in range(reader.number(2)):
                clients.append(reader.text())
        flags &= ~NAMED_USER
        head = RunHead(flags, publisher, uid, counter, age_ms, tuple(groups), tuple(clients))
        head.start = reader.offset
        reader.skip(length)
        head.end = reader.offset
        runs.append(head)
    return runs


def _publisher(named: bytes, has_username: bool) -> Publisher:
    reader = _Reader(named)
    client_id = reader.text()
    return Publisher(client_id, reader.text() if has_username else None)


def cut_packets(batch: bytes, start: int, end: int) -> list[tuple[bytes, int]]:
    """Cut a run into PUBLISH packets, each with the offset of its body; raises :class:`MalformedBatch`."""
    packets: list[tuple[bytes, int]] = []
    at = start
    while at < end:
        body, after = packet_bounds(batch, at, end)
        packets.append((batch[at:after], body - at))
        at = after
    return packets


def packet_bounds(batch: bytes, at: int, end: int) -> tuple[int, int]:
    """Return where the body of a PUBLISH packet begins and ends; raises :class:`MalformedBatch`.

    The packet is in a run that ends at ``end``.
    """
    if end - at < 2 or batch[at] >> 4 != 3:
        raise MalformedBatch("a run with something else than PUBLISH packets")
    body = at + 1
    length = 0
    shift = 0
    while True:
        if body >= end or shift > 21:
            raise MalformedBatch("a packet whose length can't be read")
        byte = batch[body]
        body += 1
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    after = body + length
    if after > end:
        raise MalformedBatch("a packet that runs past the end of its run")
    return body, after


CLIENTS_AT_ONCE: Final = 1000
"""The most clients that one run names."""

Verdict = tuple[int, int, tuple[str, ...]]
"""The number of a message in its batch, a code, and the texts that belong to the code."""


def write_answer(verdicts: list[Verdict]) -> bytes:
    """Return the answer to a batch: by number of the message, what did not go as it should."""
    if not verdicts:
        return b""
    written = VERSION.to_bytes(1, "big")
    for number, code, texts in verdicts:
        written += number.to_bytes(4, "big") + code.to_bytes(1, "big") + b"".join([_text(text) for text in texts])
    return written


def read_answer(answer: bytes, messages: int) -> list[Verdict]:
    """Return the exceptions of an answer to a batch of ``messages``; raises :class:`MalformedBatch`."""
    if not answer:
        return []
    reader = _Reader(answer)
    version = reader.number(1)
    if version != VERSION:
        raise MalformedBatch(f"an answer of version {version}; this node reads version {VERSION}")
    found = []
    while not reader.is_at_end:
        number = reader.number(4)
        code = reader.number(1)
        if number >= messages or code not in _TEXTS:
            raise MalformedBatch(f"an answer with code {code} for message {number} of {messages}")
        found.append((number, code, tuple([reader.text() for _ in range(_TEXTS[code])])))
    return found


def _text(value: str) -> bytes:
    raw = value.encode()
    return len(raw).to_bytes(2, "big") + raw


class _Reader:
    """Reads numbers and texts; raises :class:`MalformedBatch` at the end of the data."""

    __slots__ = ("_data", "_end", "offset")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._end = len(data)
        self.offset = 0

    @property
    def is_at_end(self) -> bool:
        """Whether everything was read."""
        return self.offset >= self._end

    def skip(self, size_bytes: int) -> int:
        """Go on by some bytes; returns where they began."""
        start = self.offset
        if size_bytes > self._end - start:
            raise MalformedBatch("a batch or an answer that ends too early")
        self.offset = start + size_bytes
        return start

    def number(self, size_bytes: int) -> int:
        """Read a number of that size."""
        start = self.skip(size_bytes)
        return int.from_bytes(self._data[start : self.offset], "big")

    def length(self) -> int:
        """Read the length of a text."""
        start = self.skip(2)
        return self._data[start] << 8 | self._data[start + 1]

    def text(self) -> str:
        """Read a text."""
        size_bytes = self.length()
        start = self.skip(size_bytes)
        try:
            return self._data[start : self.offset].decode()
        except UnicodeDecodeError:
            raise MalformedBatch("a text that is not UTF-8") from None
