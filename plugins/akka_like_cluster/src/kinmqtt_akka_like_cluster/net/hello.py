"""HELLO, the first message of each side of a connection between brokers."""

from __future__ import annotations

from enum import IntEnum
from struct import Struct, error
from typing import Final

from attrs import frozen

from kinmqtt_akka_like_cluster.net.addresses import Endpoint
from kinmqtt_spi.mesh.frames import MalformedFrame

NONCE_BYTES: Final = 32
DIGEST_BYTES: Final = 32
MAX_CLUSTER_BYTES: Final = 64
MAX_NAME_BYTES: Final = 255

_MAGIC: Final = b"kmqc"
_VERSIONS: Final = Struct(">4sHH")
_FIXED: Final = Struct(">BBQQ32s32s")
_VOTES: Final = 1


class ConnectionKind(IntEnum):
    """What a connection carries. The numbers are sent."""

    CONTROL = 1
    """Heartbeats and gossip of the dialler, and the answers to these."""
    BULK = 2
    """The link of :mod:`kinmqtt_spi.mesh`, in both directions."""


@frozen(slots=True)
class PeerInfo:
    """Who a broker is."""

    name: str
    uid: int
    """The uid of the process, 64 bits."""
    address: str
    """The address under which other brokers reach it."""
    votes: bool = True
    """Whether it counts in a majority."""


@frozen(slots=True)
class Hello:
    """The body of HELLO. Later versions may append to it.

    ``4s magic · u16 lowest version · u16 highest · u8 kind · u8 flags · u64 uid · u64 features · 32s digest · 32s
    nonce``, then the cluster's name, the node's name and its address, each behind its length as u8.
    """

    versions: tuple[int, int]
    kind: ConnectionKind
    cluster: str
    sender: PeerInfo
    features: int
    """A bit mask of what the sender can do beyond its version; unknown bits are ignored."""
    digest: bytes
    nonce: bytes

    def pack(self) -> bytes:
        """Return the body of the frame. Raises ``ValueError`` for a value that it can't carry."""
        sender = self.sender
        if len(self.digest) != DIGEST_BYTES:
            raise ValueError(f"a digest has {DIGEST_BYTES} bytes, not {len(self.digest)}")
        try:
            head = _VERSIONS.pack(_MAGIC, *self.versions) + _FIXED.pack(
                self.kind, _VOTES if sender.votes else 0, sender.uid, self.features, self.digest, self.nonce
            )
        except error as problem:
            raise ValueError(f"a HELLO of {self.versions}, {sender.uid}, {self.features}: {problem}") from None
        Endpoint.parse(sender.address)
        return head + b"".join(
            (
                _packed(self.cluster, "the cluster's name", MAX_CLUSTER_BYTES),
                _packed(sender.name, "the node's name", MAX_NAME_BYTES),
                _packed(sender.address, "the node's address", MAX_NAME_BYTES),
            )
        )

    @classmethod
    def unpack(cls, body: bytes) -> Hello:
        """Read the body of the frame. Raises :class:`~kinmqtt_spi.mesh.frames.MalformedFrame`."""
        versions = unpack_versions(body)
        try:
            kind, flags, uid, features, digest, nonce = _FIXED.unpack_from(body, _VERSIONS.size)
        except error:
            raise MalformedFrame(f"a HELLO of {len(body)} bytes") from None
        if kind not in ConnectionKind.__members__.values():
            raise MalformedFrame(f"a connection of the unknown kind {kind}")
        offset = _VERSIONS.size + _FIXED.size
        cluster, offset = _unpacked(body, offset, "the cluster's name", MAX_CLUSTER_BYTES)
        name, offset = _unpacked(body, offset, "the node's name", MAX_NAME_BYTES)
        address, _ = _unpacked(body, offset, "the node's address", MAX_NAME_BYTES)
        try:
            Endpoint.parse(address)
        except ValueError as problem:
            raise MalformedFrame(f"the node's address: {problem}") from None
        sender = PeerInfo(name, uid, address, bool(flags & _VOTES))
        return cls(versions, ConnectionKind(kind), cluster, sender, features, digest, nonce)


def unpack_versions(body: bytes) -> tuple[int, int]:
    """Return the lowest and highest version in a HELLO; all versions have them in the same place.

    Raises :class:`~kinmqtt_spi.mesh.frames.MalformedFrame` for a HELLO of another protocol.
    """
    try:
        magic, lowest, highest = _VERSIONS.unpack_from(body)
    except error:
        raise MalformedFrame(f"a HELLO of {len(body)} bytes") from None
    if magic != _MAGIC:
        raise MalformedFrame("a HELLO of another protocol")
    if not 0 < lowest <= highest:
        raise MalformedFrame(f"a HELLO with the versions {lowest} to {highest}")
    return lowest, highest


def check_name(text: str, what: str, max_bytes: int) -> None:
    """Raise ``ValueError`` for a name that is empty, too long, or not printable."""
    size = len(text.encode(errors="replace"))
    if not 0 < size <= max_bytes:
        raise ValueError(f"{what} has {size} bytes, not 1 to {max_bytes}")
    if not text.isprintable():
        raise ValueError(f"{what} has characters that can't be printed")


def _packed(text: str, what: str, max_bytes: int) -> bytes:
    check_name(text, what, max_bytes)
    encoded = text.encode()
    return bytes([len(encoded)]) + encoded


def _unpacked(body: bytes, offset: int, what: str, max_bytes: int) -> tuple[str, int]:
    end = offset + 1 + body[offset] if offset < len(body) else len(body) + 1
    if end > len(body):
        raise MalformedFrame(f"a HELLO that ends within {what}")
    try:
        text = body[offset + 1 : end].decode()
        check_name(text, what, max_bytes)
    except UnicodeDecodeError:
        raise MalformedFrame(f"{what} is not UTF-8") from None
    except ValueError as problem:
        raise MalformedFrame(str(problem)) from None
    return text, end
