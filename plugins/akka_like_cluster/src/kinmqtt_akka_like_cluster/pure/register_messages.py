"""The questions and notices about the register of client ids, as bytes. The first byte is the kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from kinmqtt_akka_like_cluster.pure.wire import U8, U16, U32, U64, MalformedControl, Reader
from kinmqtt_spi.mesh.calls import HIGHEST_EPOCH

LOCATE: Final = 1
"""Begin a claim: ``u64 number · client id``. The answer: :func:`pack_granted`, or empty: ask another member."""
END: Final = 2
"""End a claim: ``u64 number · client id``. The answer is empty, as those of all that follow but READ."""
REGISTER: Final = 3
"""The sender owns a client id: ``u64 epoch · u8 unasked · client id``."""
RELEASE: Final = 4
"""The sender owns it no more: ``u64 epoch · client id``."""
READ: Final = 5
"""Which client ids does the receiver own: ``u64 digest of the view · u32 from``; the answer: :class:`Page`."""
OUTDATED: Final = 6
"""The receiver has a session that another node owns: ``client id``."""
MOVED: Final = 7
"""The sender has handed a session off: ``u64 epoch · u64 uid of the owner · client id``; its epoch is higher."""

PAGE: Final = 2000
"""The client ids that are looked at for one answer to READ."""

NO_OWNER: Final = 0


def pack_locate(kind: int, number: int, client_id: str) -> bytes:
    """Return LOCATE or END."""
    return U8.pack(kind) + U64.pack(number) + client_id.encode()


def pack_register(epoch: int, client_id: str, unasked: bool) -> bytes:
    """Return REGISTER."""
    return U8.pack(REGISTER) + U64.pack(epoch) + U8.pack(unasked) + client_id.encode()


def pack_release(epoch: int, client_id: str) -> bytes:
    """Return RELEASE."""
    return U8.pack(RELEASE) + U64.pack(epoch) + client_id.encode()


def pack_read(digest: int, start: int) -> bytes:
    """Return READ."""
    return U8.pack(READ) + U64.pack(digest) + U32.pack(start)


def pack_outdated(client_id: str) -> bytes:
    """Return OUTDATED."""
    return U8.pack(OUTDATED) + client_id.encode()


def pack_moved(epoch: int, uid: int, client_id: str) -> bytes:
    """Return MOVED."""
    return U8.pack(MOVED) + U64.pack(epoch) + U64.pack(uid) + client_id.encode()


def pack_granted(owner: int | None, epoch: int) -> bytes:
    """Return the answer to LOCATE."""
    return U64.pack(owner or NO_OWNER) + U64.pack(epoch)


def unpack_granted(answer: bytes) -> tuple[int | None, int] | None:
    """Return the owner's uid and the epoch; ``None`` for an answer that says to ask another member.

    Raises :class:`MalformedControl`, as all of these do.
    """
    if not answer:
        return None
    reader = Reader(answer, "the answer to LOCATE")
    owner, epoch = reader.number(U64), _epoch(reader)
    reader.end()
    return owner or None, epoch


class Question:
    """A question or notice that was read."""

    __slots__ = ("client_id", "epoch", "kind", "number", "start", "unasked")

    def __init__(self, data: bytes) -> None:
        reader = Reader(data, "a message about the register")
        self.kind = reader.number(U8)
        self.number = self.epoch = self.start = 0
        self.unasked = False
        if self.kind in (LOCATE, END):
            self.number = reader.number(U64)
        elif self.kind in (REGISTER, RELEASE):
            self.epoch = _epoch(reader)
            self.unasked = self.kind == REGISTER and reader.number(U8) != 0
        elif self.kind == MOVED:
            self.epoch, self.number = _epoch(reader), reader.number(U64)
        elif self.kind == READ:
            self.number, self.start = reader.number(U64), reader.number(U32)
            reader.end()
        elif self.kind != OUTDATED:
            raise MalformedControl(f"a message about the register of the unknown kind {self.kind}")
        self.client_id = _text(reader.rest())


Pairs = Sequence[tuple[str, int]]


def pack_page(following: int, owned: Pairs, claims: Pairs) -> bytes:
    """Return the answer to READ: from where to read on, or 0; client ids with epochs; claims with numbers."""
    return b"".join([U32.pack(following), *_pack_pairs(owned), *_pack_pairs(claims)])


def unpack_page(answer: bytes) -> tuple[int, Pairs, Pairs] | None:
    """Return what :func:`pack_page` was given; ``None`` for an empty answer: the node knows other members."""
    if not answer:
        return None
    reader = Reader(answer, "the answer to READ")
    following = reader.number(U32)
    owned, claims = _pairs(reader, _epoch), _pairs(reader, _number)
    reader.end()
    return following, owned, claims


def _pack_pairs(pairs: Pairs) -> Iterable[bytes]:
    yield U32.pack(len(pairs))
    for client_id, number in pairs:
        data = client_id.encode()
        yield U64.pack(number) + U16.pack(len(data)) + data


def _number(reader: Reader) -> int:
    return reader.number(U64)


def _epoch(reader: Reader) -> int:
    epoch = reader.number(U64)
    if epoch > HIGHEST_EPOCH:
        # The next claim could not be above it, and a member remembers the highest one for all client ids.
        raise MalformedControl(f"{reader.what} has the epoch {epoch}, above {HIGHEST_EPOCH}")
    return epoch


def _pairs(reader: Reader, read: Callable[[Reader], int]) -> Pairs:
    found = []
    for _ in range(reader.number(U32)):
        number = read(reader)
        found.append((_text(reader.take(reader.number(U16))), number))
    return found


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise MalformedControl(f"a client id that is not UTF-8: {data[:40]!r}") from error
