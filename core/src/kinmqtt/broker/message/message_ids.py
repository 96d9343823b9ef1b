"""Message ids: unique in a cluster, because each node has a uid of its own."""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from kinmqtt_spi.values import MessageId


@mypyc_attr(acyclic=True)
class MessageIds:
    """Mints the ids of one node's messages."""

    __slots__ = ("_next", "uid")

    def __init__(self, uid: int) -> None:
        """``uid`` is the node's: see :class:`~kinmqtt_spi.services.plugin.NodeIdentity`."""
        self.uid = uid
        self._next = 1

    def mint(self) -> MessageId:
        """Returns a new message id."""
        return MessageId(self.uid, self.reserve(1))

    def reserve(self, messages: int) -> int:
        """Returns the first counter of as many consecutive new ids."""
        first = self._next
        self._next = first + messages
        return first
