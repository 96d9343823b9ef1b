"""The bodies of calls between nodes. The first byte is the kind."""

from __future__ import annotations

from struct import Struct, error
from typing import Final

from kinmqtt_spi.mesh.frames import MalformedFrame
from kinmqtt_spi.services.cluster import MemberState

STATE: Final = 1
"""The sender's state, and the version of its routes: ``u8 state · u64 version``. The answer is empty."""
ROUTES: Final = 2
"""A chunk of routes; see :mod:`~kinmqtt_spi.mesh.routes`. The answer is the receiver's version plus one."""
CLAIM: Final = 3
"""The sender owns a client id: ``u64 epoch · client id``. The empty answer says that it was released."""
ASK: Final = 4
"""A question of the sender's core: ``u16 length · method · data``. The answer is the core's."""
HAND: Final = 5
"""The sender hands off a session: ``u64 number · u64 epoch · client id``. Answers to hand-offs are empty."""
CHUNK: Final = 6
"""A part of its state: ``u64 number · data``."""
COMMIT: Final = 7
"""The new owner takes over: ``u64 number``."""
ABORT: Final = 8
"""The session stays: ``u64 number``."""
BACKEND: Final = 9
"""A question of the sender's backend: ``data``. The answer is the other backend's."""

STATES: Final = tuple(MemberState)
"""The states by their numbers; a later one follows an earlier one."""

HIGHEST_EPOCH: Final = (1 << 63) - (1 << 32)
"""The highest epoch that is taken of another node: stores count in 63 bits, and later claims need higher ones."""

_STATE: Final = Struct(">BBQ")
_CLAIM: Final = Struct(">BQ")
_ASK: Final = Struct(">BH")
_HAND: Final = Struct(">BQQ")
_STEP: Final = Struct(">BQ")


def pack_state(state: MemberState, version: int) -> bytes:
    """Return the body of STATE."""
    return _STATE.pack(STATE, STATES.index(state), version)


def unpack_state(body: bytes) -> tuple[MemberState, int]:
    """Return state and version. Raises :class:`~kinmqtt_spi.mesh.frames.MalformedFrame`, as all of these do."""
    _, number, version = _fixed(_STATE, body)
    if number >= len(STATES):
        raise MalformedFrame(f"a member in the unknown state {number}")
    return STATES[number], version


def pack_claim(client_id: str, epoch: int) -> bytes:
    """Return the body of CLAIM."""
    return _CLAIM.pack(CLAIM, epoch) + client_id.encode()


def unpack_claim(body: bytes) -> tuple[str, int]:
    """Return client id and epoch."""
    _, epoch = _fixed(_CLAIM, body)
    return _text(body[_CLAIM.size :]), _checked(epoch)


def pack_ask(method: str, data: bytes) -> bytes:
    """Return the body of ASK."""
    name = method.encode()
    return _ASK.pack(ASK, len(name)) + name + data


def unpack_ask(body: bytes) -> tuple[str, bytes]:
    """Return method and data."""
    _, length = _fixed(_ASK, body)
    end = _ASK.size + length
    if end > len(body):
        raise MalformedFrame("a question whose method is cut off")
    return _text(body[_ASK.size : end]), body[end:]


def pack_hand(number: int, client_id: str, epoch: int) -> bytes:
    """Return the body of HAND."""
    return _HAND.pack(HAND, number, epoch) + client_id.encode()


def unpack_hand(body: bytes) -> tuple[int, str, int]:
    """Return number, client id and epoch."""
    _, number, epoch = _fixed(_HAND, body)
    return number, _text(body[_HAND.size :]), _checked(epoch)


def pack_step(kind: int, number: int, data: bytes = b"") -> bytes:
    """Return the body of CHUNK, COMMIT or ABORT."""
    return _STEP.pack(kind, number) + data


def unpack_step(body: bytes) -> tuple[int, bytes]:
    """Return number and data."""
    return _fixed(_STEP, body)[1], body[_STEP.size :]


def _fixed(shape: Struct, body: bytes) -> tuple[int, ...]:
    try:
        return shape.unpack_from(body)
    except error as problem:
        raise MalformedFrame(f"a call of kind {body[0]} with {len(body)} bytes") from problem


def _checked(epoch: int) -> int:
    if epoch > HIGHEST_EPOCH:
        raise MalformedFrame(f"an epoch of {epoch}, above {HIGHEST_EPOCH}")
    return epoch


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as problem:
        raise MalformedFrame("a name that is no UTF-8") from problem
