"""Hand-off of sessions over a link: the former owner's end, and those that this node receives."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final

from attrs import frozen

from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.mesh.calls import ABORT, CHUNK, COMMIT, HAND, pack_hand, pack_step, unpack_hand, unpack_step
from kinmqtt_spi.mesh.frames import MalformedFrame
from kinmqtt_spi.mesh.link import Link, Token
from kinmqtt_spi.mesh.local import Local
from kinmqtt_spi.mesh.results import Result
from kinmqtt_spi.services.cluster import HandOff
from kinmqtt_spi.values import Maybe, NodeIdentity

MAX_OPEN: Final = 256
"""How many sessions one node may hand off to another at once; further ones are refused."""


@frozen(slots=True)
class Completion:
    """A token whose result is a value that was known before."""

    result: Result
    value: Any = None

    def set(self, value: bytes) -> None:
        """Complete the result."""
        self.result.set(self.value)

    def fail(self, error: Exception) -> None:
        """Let the result raise."""
        self.result.fail(error)


class SentHandOff(HandOff):
    """The former owner's end of a hand-off. Each step completes when the new owner's core has done it."""

    __slots__ = ("_link", "_local", "_number")

    def __init__(self, local: Local, link: Link, number: int) -> None:
        self._local = local
        self._link = link
        self._number = number

    def begin(self, client_id: str, epoch: int) -> Awaitable[HandOff]:
        """Announce the hand-off."""
        return self._call(pack_hand(self._number, client_id, epoch), self)

    def chunk(self, data: bytes) -> Maybe[None]:
        """See :class:`~kinmqtt_spi.services.cluster.HandOff`."""
        return self._call(pack_step(CHUNK, self._number, data))

    def commit(self) -> Maybe[None]:
        """See :class:`~kinmqtt_spi.services.cluster.HandOff`."""
        return self._call(pack_step(COMMIT, self._number))

    def abort(self) -> Maybe[None]:
        """See :class:`~kinmqtt_spi.services.cluster.HandOff`."""
        return self._call(pack_step(ABORT, self._number))

    def _call(self, body: bytes, value: Any = None) -> Awaitable[Any]:
        result = self._local.new_result()
        token: Token = Completion(result, value)
        self._link.call(body, token)
        return result.awaitable


class ReceivedHandOffs:
    """The sessions that one other node is handing off to this one."""

    __slots__ = ("_link", "_local", "_open", "_origin")

    def __init__(self, local: Local, link: Link, origin: NodeIdentity) -> None:
        self._local = local
        self._link = link
        self._origin = origin
        self._open: dict[int, HandOff] = {}

    def called(self, kind: int, sequence: int, body: bytes) -> None:
        """Take a step of a hand-off."""
        if kind == HAND:
            number, client_id, epoch = unpack_hand(body)
            self._answer(sequence, lambda: self._begin(number, client_id, epoch))
            return
        number, data = unpack_step(body)
        open = self._open.get(number) if kind == CHUNK else self._open.pop(number, None)
        if open is None:
            self._link.fail(sequence, ServiceUnavailable("there is no such hand-off"))
        elif kind == CHUNK:
            self._answer(sequence, lambda: open.chunk(data))
        elif kind == COMMIT:
            self._answer(sequence, open.commit)
        elif kind == ABORT:
            self._answer(sequence, open.abort)
        else:
            raise MalformedFrame(f"a call of the unknown kind {kind}")

    def abort(self) -> None:
        """Abort all that are open: their former owner is gone, or this node stops."""
        while self._open:
            _, open = self._open.popitem()
            self._local.finish(open.abort, lambda _: None, lambda _: None)

    def _begin(self, number: int, client_id: str, epoch: int) -> None:
        if len(self._open) >= MAX_OPEN:
            raise ServiceUnavailable(f"node {self._origin.name} hands off {MAX_OPEN} sessions at once already")
        self._open[number] = self._local.listener.handing(client_id, epoch, self._origin)

    def _answer(self, sequence: int, call: Any) -> None:
        link = self._link
        self._local.finish(call, lambda _: link.answer(sequence, b""), lambda error: link.fail(sequence, error))
