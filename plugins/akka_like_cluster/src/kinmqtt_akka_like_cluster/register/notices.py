"""Notices to the members that keep entries of client ids: each is sent again until it was answered."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Set
from functools import partial
from typing import Final, TypeAlias

from kinmqtt_akka_like_cluster.results import run
from kinmqtt_spi.errors import NodeGone, ServiceUnavailable
from kinmqtt_spi.pace import Pace
from kinmqtt_spi.services.plugin import Clock, Log, Timer
from kinmqtt_spi.values import Maybe, NodeIdentity

NOTICE_LIMIT_S: Final = 3600.0
"""How long an answer is waited for before a notice is sent again, in seconds."""

AGAIN_S: Final = 0.5
"""The pause before notices are sent again, in seconds."""

MAX_WAITING: Final = 100_000
"""The notices that may wait to be sent before no more claims are begun."""

LOG_S: Final = 60.0

Ask: TypeAlias = Callable[[NodeIdentity, bytes, float], Maybe[bytes]]
"""See :meth:`kinmqtt_spi.mesh.backend.MeshBackend.ask_backend`."""


class Notices:
    """Sends notices in their order, and keeps those that a link has no room for.

    What a notice says must hold too if it arrives twice. Notices for members that are gone are forgotten: what they
    knew is read again from all others.
    """

    def __init__(self, ask: Ask, clock: Clock, log: Log) -> None:
        self._ask = ask
        self._clock = clock
        self._log = log
        self._pace = Pace(clock, LOG_S)
        self._nodes: Set[NodeIdentity] = frozenset()
        self._waiting: dict[NodeIdentity, deque[bytes]] = {}
        """By member: the notices that are still to be sent, or to be sent again; none is empty."""
        self._timer: Timer | None = None
        self._has_stopped = False

    def __len__(self) -> int:
        """Return how many notices wait to be sent."""
        return sum(map(len, self._waiting.values()))

    @property
    def is_full(self) -> bool:
        """Whether so many wait that nothing should begin that needs more of them."""
        return len(self) >= MAX_WAITING

    def members_changed(self, nodes: Set[NodeIdentity]) -> None:
        """Take the members that are told something; notices for others are forgotten."""
        self._nodes = nodes
        for node in self._waiting.keys() - nodes:
            del self._waiting[node]

    def tell(self, node: NodeIdentity, notice: bytes) -> None:
        """Send a notice, after those for the same member that wait."""
        if node in self._waiting or not self._send(node, notice):
            self._keep(node, notice)

    def stop(self) -> None:
        """Send nothing any more."""
        self._has_stopped = True
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _send(self, node: NodeIdentity, notice: bytes) -> bool:
        """Send a notice; ``False`` if the link has no room for it."""
        try:
            answer = self._ask(node, notice, NOTICE_LIMIT_S)
        except NodeGone:
            return True
        except ServiceUnavailable as error:
            self._warn(node, error)
            return False
        if isinstance(answer, Awaitable):
            run(answer, lambda _: None, partial(self._failed, node, notice))
        return True

    def _failed(self, node: NodeIdentity, notice: bytes, error: Exception) -> None:
        if not isinstance(error, NodeGone) and not self._has_stopped:
            self._warn(node, error)
            self._keep(node, notice)

    def _warn(self, node: NodeIdentity, error: Exception) -> None:
        held_back = self._pace.due()
        if held_back is not None:
            text = "node {node} is told again who owns a client id: {error}; {more} more such notices before"
            self._log.warn(text, node=node.name, error=error, more=held_back)

    def _keep(self, node: NodeIdentity, notice: bytes) -> None:
        if self._has_stopped or node not in self._nodes:
            return
        self._waiting.setdefault(node, deque()).append(notice)
        self._send_later()

    def _send_later(self) -> None:
        if self._timer is None and self._waiting:
            self._timer = self._clock.later(AGAIN_S, self._again)

    def _again(self) -> None:
        self._timer = None
        for node, line in list(self._waiting.items()):
            # One that fails at once is kept behind the others, for the next time.
            for _ in range(len(line)):
                if not self._send(node, line[0]):
                    break
                line.popleft()
            if not line:
                self._waiting.pop(node, None)
        self._send_later()
