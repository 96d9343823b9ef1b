"""A cluster of one node: all guarantees hold, because there is no other node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from attrs import evolve

from kinmqtt_spi.errors import NodeGone
from kinmqtt_spi.services.cluster import (
    ClusterBackend,
    ClusterListener,
    Guarantee,
    HandOff,
    LinkState,
    Member,
    MemberState,
    RouteChange,
)
from kinmqtt_spi.values import NodeIdentity


class SingleNode(ClusterBackend):
    """The cluster of this node alone. Calls for another node raise ``NodeGone`` with its name."""

    guarantees = Guarantee.SINGLE_OWNER | Guarantee.ACKNOWLEDGED_DELIVERY | Guarantee.ORDER_PER_PUBLISHER

    def __init__(self) -> None:
        self._listener: ClusterListener | None = None
        self._member: Member | None = None

    def start(self, node: NodeIdentity, listener: ClusterListener) -> None:
        self._listener = listener
        self._member = Member(node, MemberState.JOINING)
        listener.member_changed(self._member)

    def up(self) -> None:
        self._become(MemberState.UP)

    def leave(self, deadline_s: float) -> None:
        self._become(MemberState.LEAVING)

    def stop(self) -> None:
        self._member = self._listener = None

    def members(self) -> Sequence[Member]:
        return () if self._member is None else (self._member,)

    def routes_update(self, version: int, added: Sequence[RouteChange], removed: Sequence[RouteChange]) -> None:
        """Do nothing: there is no other node."""

    def route_barrier(self, version: int, limit_s: float) -> Sequence[NodeIdentity]:
        return ()

    def push(self, node: NodeIdentity, batch: bytes) -> bool:
        _nobody(node)

    def deliver(self, node: NodeIdentity, batch: bytes, messages: int) -> bytes:
        _nobody(node)

    def link(self, node: NodeIdentity) -> LinkState:
        _nobody(node)

    def claim(self, client_id: str, epoch: int, previous_owner: NodeIdentity | None) -> None:
        """Do nothing: there is no other node, and an earlier process of this node has ended."""

    def release(self, client_id: str, epoch: int) -> None:
        """Do nothing: there is no other node."""

    def hand_off(self, client_id: str, epoch: int, to: NodeIdentity) -> HandOff:
        _nobody(to)

    def ask(self, node: NodeIdentity, method: str, data: bytes, limit_s: float) -> bytes:
        _nobody(node)

    def _become(self, state: MemberState) -> None:
        if self._member is not None and self._listener is not None:
            self._member = evolve(self._member, state=state)
            self._listener.member_changed(self._member)


def _nobody(node: NodeIdentity) -> NoReturn:
    raise NodeGone(f"this broker runs alone: node {node.name} ({node.uid:016x}) can't be reached")
