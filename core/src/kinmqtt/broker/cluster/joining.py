"""The start of the cluster backend, which may wait for other nodes without limit."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred

from kinmqtt.hooks.awaitables import as_deferred, cancel

if TYPE_CHECKING:
    from kinmqtt_spi.services.cluster import ClusterBackend, ClusterListener
    from kinmqtt_spi.values import NodeIdentity


class JoinAbandoned(Exception):
    """The broker is stopped before it is a member of its cluster."""


class Joining:
    """Starts the cluster backend, unless the broker is stopped first."""

    def __init__(self, backend: ClusterBackend) -> None:
        self._backend = backend
        self._waiting: Deferred[None] | None = None
        self._is_given_up = False

    async def join(self, node: NodeIdentity, listener: ClusterListener) -> None:
        """Start the backend. Raises what that raises, or :class:`JoinAbandoned` when it is given up."""
        if not self._is_given_up:
            answer = self._backend.start(node, listener)
            if not isinstance(answer, Awaitable):
                return
            self._waiting = as_deferred(answer)
            try:
                await self._waiting
                return
            except BaseException:
                if not self._is_given_up:
                    raise
            finally:
                self._waiting = None
        raise JoinAbandoned("the broker was no member of its cluster yet")

    def give_up(self) -> None:
        """End the wait now, or as soon as it would begin. What has been joined stays."""
        self._is_given_up = True
        if self._waiting is not None:
            cancel(self._waiting)
