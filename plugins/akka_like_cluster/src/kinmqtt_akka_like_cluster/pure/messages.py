"""Messages on the control connection between two brokers, and their encoding.

A frame is ``u32 length · u8 type · body``, big-endian; the length is that of the body, at most 1 MiB. There is one
encoding of each message. Integers are big-endian; ``gossip`` and ``info`` are described in
:mod:`kinmqtt_akka_like_cluster.pure.gossip_codec`::

    1  HEARTBEAT      u64 number                       2  HEARTBEAT_ACK  u64 number
    3  STATUS         16 bytes digest · n × u64 uid    4  GOSSIP         gossip
    5  JOIN           u16 lowest · u16 highest · info · u8 n · settings digest
    6  WELCOME        gossip                           7  REFUSED        UTF-8 text
    8  NOT_YET        nothing                          9  WITNESS        u64 uid
    10 WITNESSED      u64 uid · u8 alive               11 LEFT           nothing

Only JOIN comes before the two sides know each other's version. So the body of a JOIN whose highest version is above
:data:`~kinmqtt_akka_like_cluster.pure.versions.HIGHEST_VERSION` may have more behind what is described here, which is
ignored. Nothing else is: every other surplus byte is malformed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from struct import Struct
from typing import Final, TypeAlias

from attrs import Attribute, field, frozen

from kinmqtt_akka_like_cluster.pure.gossip import MOST_MEMBERS, Gossip, NodeInfo
from kinmqtt_akka_like_cluster.pure.gossip_codec import DIGEST_BYTES, pack_gossip, pack_info, read_gossip, read_info
from kinmqtt_akka_like_cluster.pure.versions import HIGHEST_VERSION, LOWEST_VERSION
from kinmqtt_akka_like_cluster.pure.wire import U8, U16, U64, MalformedControl, Reader

__all__ = [
    "FrameCutter",
    "FullGossip",
    "Heartbeat",
    "HeartbeatAck",
    "Join",
    "Left",
    "MalformedControl",
    "Message",
    "NotYet",
    "Refused",
    "Status",
    "Welcome",
    "Witness",
    "Witnessed",
    "decode",
    "encode",
]

MOST_BODY_BYTES: Final = 1 << 20
MOST_REASON_BYTES: Final = 2_048
MOST_SETTINGS_BYTES: Final = 64
_MOST_JOIN_BYTES: Final = 4_096

_HEADER: Final = Struct(">IB")
HEADER_BYTES: Final = _HEADER.size


@frozen(slots=True)
class Heartbeat:
    """Asks for a sign of life. The number counts all heartbeats of the sender."""

    number: int


@frozen(slots=True)
class HeartbeatAck:
    """Answers the heartbeat with this number."""

    number: int


@frozen(slots=True)
class Status:
    """The digest of the sender's state, and the uids of those that have seen this state."""

    digest: bytes
    seen: frozenset[int]


@frozen(slots=True)
class FullGossip:
    """The sender's whole state."""

    gossip: Gossip


def _check_settings(instance: object, attribute: Attribute[bytes], value: bytes) -> None:
    if len(value) > MOST_SETTINGS_BYTES:
        raise ValueError(f"a digest of settings has at most {MOST_SETTINGS_BYTES} bytes, not {len(value)}")


@frozen(slots=True)
class Join:
    """A process asks to become a member. Raises ``ValueError`` for a digest of more than 64 bytes."""

    info: NodeInfo
    settings: bytes = field(validator=_check_settings)
    """The digest of the settings that all members must share."""
    lowest: int = LOWEST_VERSION
    """The lowest version of the protocol that the process speaks."""
    highest: int = HIGHEST_VERSION


@frozen(slots=True)
class Welcome:
    """The answer to JOIN: the process is a member of this state."""

    gossip: Gossip


@frozen(slots=True)
class Refused:
    """The answer to JOIN: the process can't become a member; the text says why, and what to do."""

    reason: str


@frozen(slots=True)
class NotYet:
    """The answer to JOIN from a process that is no member itself."""


@frozen(slots=True)
class Witness:
    """Asks whether a member is alive, from the receiver's place."""

    about: int


@frozen(slots=True)
class Witnessed:
    """The answer to WITNESS."""

    about: int
    alive: bool


@frozen(slots=True)
class Left:
    """The sender's process ends, or is no member of the receiver's cluster: its uid will not come back."""


Message: TypeAlias = (
    Heartbeat | HeartbeatAck | Status | FullGossip | Join | Welcome | Refused | NotYet | Witness | Witnessed | Left
)


def _read_status(reader: Reader) -> Status:
    digest = reader.take(DIGEST_BYTES)
    rest = reader.rest()
    count, surplus = divmod(len(rest), U64.size)
    uids = [uid for (uid,) in U64.iter_unpack(rest)] if not surplus else []
    if surplus or count > MOST_MEMBERS or uids != sorted(set(uids)):
        raise MalformedControl(f"STATUS has no list of ascending uids, but {len(rest)} bytes")
    return Status(digest, frozenset(uids))


def _pack_join(message: Join) -> bytes:
    head = U16.pack(message.lowest) + U16.pack(message.highest) + pack_info(message.info)
    return head + U8.pack(len(message.settings)) + message.settings


def _read_join(reader: Reader) -> Join:
    lowest, highest = reader.number(U16), reader.number(U16)
    info = read_info(reader)
    size = reader.number(U8)
    if size > MOST_SETTINGS_BYTES or lowest > highest:
        raise MalformedControl(f"JOIN has versions {lowest} to {highest} and a digest of {size} bytes")
    settings = reader.take(size)
    if highest > HIGHEST_VERSION:
        reader.rest()
    return Join(info, settings, lowest, highest)


def _pack_reason(message: Refused) -> bytes:
    # A cut may fall into a character, which is dropped then.
    return message.reason.encode()[:MOST_REASON_BYTES].decode(errors="ignore").encode()


def _read_reason(reader: Reader) -> Refused:
    body = reader.rest()
    try:
        return Refused(body.decode())
    except UnicodeDecodeError as error:
        raise MalformedControl(f"REFUSED has a text that is not UTF-8: {body[:40]!r}") from error


def _read_witnessed(reader: Reader) -> Witnessed:
    about, alive = reader.number(U64), reader.number(U8)
    if alive > 1:
        raise MalformedControl(f"WITNESSED says {alive}, which is neither 0 nor 1")
    return Witnessed(about, alive == 1)


@frozen(slots=True)
class _Kind:
    """How a type of message is encoded: its name, the limit of its body, and both directions."""

    name: str
    most_bytes: int
    message: type
    pack: Callable[..., bytes]
    read: Callable[[Reader], Message]


_KINDS: Final[Mapping[int, _Kind]] = {
    1: _Kind("HEARTBEAT", 8, Heartbeat, lambda it: U64.pack(it.number), lambda body: Heartbeat(body.number(U64))),
    2: _Kind(
        "HEARTBEAT_ACK", 8, HeartbeatAck, lambda it: U64.pack(it.number), lambda body: HeartbeatAck(body.number(U64))
    ),
    3: _Kind(
        "STATUS",
        DIGEST_BYTES + U64.size * MOST_MEMBERS,
        Status,
        lambda it: it.digest + b"".join(map(U64.pack, sorted(it.seen))),
        _read_status,
    ),
    4: _Kind(
        "GOSSIP",
        MOST_BODY_BYTES,
        FullGossip,
        lambda it: pack_gossip(it.gossip),
        lambda body: FullGossip(read_gossip(body)),
    ),
    5: _Kind("JOIN", _MOST_JOIN_BYTES, Join, _pack_join, _read_join),
    6: _Kind(
        "WELCOME",
        MOST_BODY_BYTES,
        Welcome,
        lambda it: pack_gossip(it.gossip),
        lambda body: Welcome(read_gossip(body)),
    ),
    7: _Kind("REFUSED", MOST_REASON_BYTES, Refused, _pack_reason, _read_reason),
    8: _Kind("NOT_YET", 0, NotYet, lambda it: b"", lambda body: NotYet()),
    9: _Kind("WITNESS", 8, Witness, lambda it: U64.pack(it.about), lambda body: Witness(body.number(U64))),
    10: _Kind("WITNESSED", 9, Witnessed, lambda it: U64.pack(it.about) + U8.pack(it.alive), _read_witnessed),
    11: _Kind("LEFT", 0, Left, lambda it: b"", lambda body: Left()),
}
_NUMBERS: Final = {kind.message: number for number, kind in _KINDS.items()}


def encode(message: Message) -> bytes:
    """Return a message as a frame. A reason above 2,048 bytes is cut."""
    number = _NUMBERS[type(message)]
    body = _KINDS[number].pack(message)
    return _HEADER.pack(len(body), number) + body


def decode(number: int, body: bytes) -> Message:
    """Return the message of a frame. Raises :class:`MalformedControl` and nothing else."""
    kind = _kind(number, len(body))
    reader = Reader(body, kind.name)
    message = kind.read(reader)
    reader.end()
    return message


def _kind(number: int, size: int) -> _Kind:
    kind = _KINDS.get(number)
    if kind is None:
        raise MalformedControl(f"a message of the unknown type {number}")
    if size > kind.most_bytes:
        raise MalformedControl(f"{kind.name} of {size} bytes, above {kind.most_bytes}")
    return kind


class FrameCutter:
    """Cuts a stream of bytes into messages, whatever pieces it arrives in."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """Yield each message that is complete now. Exhaust it before the next call.

        Raises :class:`MalformedControl` after the last valid message, as soon as a header is invalid, and again at
        each later call. At most one frame, and the piece that was fed last, are buffered.
        """
        buffer = self._buffer
        buffer += data
        while len(buffer) >= HEADER_BYTES:
            size, number = _HEADER.unpack_from(buffer)
            _kind(number, size)
            end = HEADER_BYTES + size
            if len(buffer) < end:
                return
            message = decode(number, bytes(buffer[HEADER_BYTES:end]))
            del buffer[:end]
            yield message
