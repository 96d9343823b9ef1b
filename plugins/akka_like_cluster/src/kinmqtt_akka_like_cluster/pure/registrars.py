"""Which member keeps the entry of a client id: the one with the highest random weight."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, TypeAlias

_MASK: Final = (1 << 64) - 1

View: TypeAlias = tuple[int, ...]
"""The uids of the members that are UP, in ascending order."""


def registrar_of(client_id: str, view: View) -> int | None:
    """Return the uid of the member that keeps the entry of a client id; ``None`` without members."""
    if len(view) < 2:
        return view[0] if view else None
    seed = int.from_bytes(blake2b(client_id.encode(), digest_size=8).digest(), "big")
    best, best_weight = view[0], -1
    for uid in view:
        # The finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
        weight = (seed ^ uid) * 0xBF58476D1CE4E5B9 & _MASK
        weight = (weight ^ weight >> 27) * 0x94D049BB133111EB & _MASK
        weight ^= weight >> 31
        if weight > best_weight:
            best, best_weight = uid, weight
    return best


def digest_of(view: View) -> int:
    """Return a number of 64 bits that tells views apart."""
    data = b"".join([uid.to_bytes(8, "big") for uid in view])
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")


def owned_by_registrar(owned: Sequence[tuple[str, int]], view: View, uid: int) -> list[tuple[str, int]]:
    """Return those of some client ids whose entries a member keeps."""
    return [each for each in owned if registrar_of(each[0], view) == uid]
