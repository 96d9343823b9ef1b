"""The cluster's state as bytes, and its digest.

There is exactly one encoding of a state: uids ascend, nothing is repeated, unused bits are zero. So equal states have
equal digests, and whatever is decoded encodes to the same bytes. Integers are big-endian::

    state        u64 founder · u64 term · u16 n · n × record · u16 n · n × (u64 uid, u32 number of removal)
                 · u16 n · n × (u16 index of the observer, u32 version, bits)
    record       info · u8 state · u8 flags (1 ready, 2 drained) · u32 up number
    info         u64 uid · u8 n · name · u8 n · host · u16 port · u8 flags (1 votes)
    gossip       state · bits of those that have seen it
    bits         one for each record in the order of the state, the first one is the highest of its byte

A state of 1,000 members with names and hosts of 255 bytes, each of which can't reach all others, has 0.7 MB.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from struct import Struct
from typing import Final

from kinmqtt_akka_like_cluster.pure.gossip import (
    MOST_MEMBERS,
    MOST_REMOVED,
    RANK,
    STATES,
    ClusterState,
    Gossip,
    NodeAddress,
    NodeInfo,
    Observation,
    Record,
)
from kinmqtt_akka_like_cluster.pure.wire import U8, U16, U64, MalformedControl, Reader, pack_text
from kinmqtt_spi.services.cluster import MemberState
from kinmqtt_spi.services.cluster_arbiter import MAX_TERM
from kinmqtt_spi.values import NodeIdentity

DIGEST_BYTES: Final = 16

_READY, _DRAINED, _VOTES = 1, 2, 1
_STATUS: Final = Struct(">BBI")
_REMOVAL: Final = Struct(">QI")
_OBSERVER: Final = Struct(">HI")


def digest(state: ClusterState) -> bytes:
    """Return what identifies a state: 16 bytes."""
    return blake2b(pack_state(state), digest_size=DIGEST_BYTES).digest()


def pack_info(info: NodeInfo) -> bytes:
    """Return a node's info as bytes."""
    address = info.address
    name, host = pack_text(info.node.name), pack_text(address.host)
    return b"".join((U64.pack(info.uid), name, host, U16.pack(address.port), U8.pack(_VOTES * info.votes)))


def read_info(reader: Reader) -> NodeInfo:
    """Read a node's info. Raises :class:`MalformedControl`."""
    uid, name, host = reader.number(U64), reader.text(), reader.text()
    port, flags = reader.number(U16), reader.number(U8)
    if flags & ~_VOTES:
        raise MalformedControl(f"{reader.what} has unknown flags of node {uid:016x}: {flags:#x}")
    try:
        return NodeInfo(NodeIdentity(name, uid), NodeAddress(host, port), bool(flags))
    except ValueError as error:
        raise MalformedControl(f"{reader.what} has an invalid node {uid:016x}: {error}") from error


def pack_state(state: ClusterState) -> bytes:
    """Return a state as bytes. It must be within its bounds: see :meth:`ClusterState.pruned`."""
    order = sorted(state.records)
    index = {uid: place for place, uid in enumerate(order)}
    parts = [U64.pack(state.founder), U64.pack(state.term), U16.pack(len(order))]
    for uid in order:
        record = state.records[uid]
        flags = _READY * record.ready | _DRAINED * record.drained
        parts += pack_info(record.info), _STATUS.pack(RANK[record.state], flags, record.up_number)
    parts.append(U16.pack(len(state.removed)))
    parts += (_REMOVAL.pack(uid, state.removed[uid]) for uid in sorted(state.removed))
    parts.append(U16.pack(len(state.observations)))
    for observer in sorted(state.observations):
        observation = state.observations[observer]
        parts += _OBSERVER.pack(index[observer], observation.version), _pack_bits(order, observation.unreachable)
    return b"".join(parts)


def read_state(reader: Reader) -> ClusterState:
    """Read a state. Raises :class:`MalformedControl`, also if it is not in its only encoding."""
    founder, term = reader.number(U64), reader.number(U64)
    if term > MAX_TERM:
        raise MalformedControl(f"{reader.what} has the term {term}, above {MAX_TERM}")
    records: dict[int, Record] = {}
    last = -1
    for _ in range(_count(reader, "members", MOST_MEMBERS)):
        info = read_info(reader)
        rank, flags, up_number = _STATUS.unpack(reader.take(_STATUS.size))
        if rank >= RANK[MemberState.REMOVED] or flags & ~(_READY | _DRAINED):
            raise MalformedControl(f"{reader.what} has the unknown state {rank} with flags {flags:#x}")
        records[info.uid] = Record(info, STATES[rank], up_number, bool(flags & _READY), bool(flags & _DRAINED))
        last = _above(reader, last, info.uid)
    removed: dict[int, int] = {}
    last = -1
    for _ in range(_count(reader, "removed members", MOST_REMOVED)):
        uid, number = _REMOVAL.unpack(reader.take(_REMOVAL.size))
        removed[uid] = number
        last = _above(reader, last, uid)
        if uid in records:
            raise MalformedControl(f"{reader.what} has {uid:016x} both as a member and as removed")
    return ClusterState(founder, records, removed, _read_observations(reader, list(records)), term)


def pack_gossip(gossip: Gossip) -> bytes:
    """Return a state, and who has seen it, as bytes."""
    return pack_state(gossip.state) + _pack_bits(sorted(gossip.state.records), gossip.seen)


def read_gossip(reader: Reader) -> Gossip:
    """Read a state, and who has seen it, and nothing behind. Raises :class:`MalformedControl`."""
    state = read_state(reader)
    seen = _read_bits(reader, list(state.records))
    reader.end()
    return Gossip(state, seen)


def _read_observations(reader: Reader, order: Sequence[int]) -> dict[int, Observation]:
    observations: dict[int, Observation] = {}
    last = -1
    for _ in range(_count(reader, "observers", len(order))):
        place, version = _OBSERVER.unpack(reader.take(_OBSERVER.size))
        if place >= len(order):
            raise MalformedControl(f"{reader.what} has an observer {place} of {len(order)} members")
        observations[order[place]] = Observation(version, _read_bits(reader, order))
        last = _above(reader, last, place)
    return observations


def _count(reader: Reader, what: str, most: int) -> int:
    count = reader.number(U16)
    if count > most:
        raise MalformedControl(f"{reader.what} has {count} {what}, above {most}")
    return count


def _above(reader: Reader, last: int, number: int) -> int:
    """Return ``number``, which must be above the last one."""
    if number <= last:
        raise MalformedControl(f"{reader.what} has uids that do not ascend")
    return number


def _pack_bits(order: Sequence[int], chosen: frozenset[int]) -> bytes:
    size = (len(order) + 7) // 8
    if not chosen:
        return bytes(size)
    bits = "".join("1" if uid in chosen else "0" for uid in order)
    return int(bits.ljust(size * 8, "0"), 2).to_bytes(size, "big")


def _read_bits(reader: Reader, order: Sequence[int]) -> frozenset[int]:
    size = (len(order) + 7) // 8
    number = int.from_bytes(reader.take(size), "big")
    if not number:
        return frozenset()
    bits = f"{number:0{size * 8}b}"
    if "1" in bits[len(order) :]:
        raise MalformedControl(f"{reader.what} has bits for more than {len(order)} members")
    return frozenset(uid for uid, bit in zip(order, bits, strict=False) if bit == "1")
