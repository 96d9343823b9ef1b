"""Drives the coordinator: the clock, the control connections and the seeds on one side, the backend on the other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final, Protocol

from kinmqtt_akka_like_cluster.control_links import ControlLinks
from kinmqtt_akka_like_cluster.net.addresses import UNIX_PREFIX, Endpoint
from kinmqtt_akka_like_cluster.net.established import Established
from kinmqtt_akka_like_cluster.net.seeds import Seeds
from kinmqtt_akka_like_cluster.net.transport import Network
from kinmqtt_akka_like_cluster.pure.coordinator import Coordinator
from kinmqtt_akka_like_cluster.pure.effects import (
    AskArbiter,
    Downed,
    Downing,
    Effect,
    Joined,
    JoinRefused,
    LeaveCompleted,
    MemberChanged,
    Send,
    SendTo,
    WaitingForSeeds,
)
from kinmqtt_akka_like_cluster.pure.gossip import NodeAddress
from kinmqtt_akka_like_cluster.pure.messages import Message
from kinmqtt_spi.services.cluster import Member
from kinmqtt_spi.services.plugin import Clock, Log, Timer

SEEDS_EVERY_S: Final = 5.0
"""How often seeds are looked up again while this process is no member."""


class MembershipOwner(Protocol):
    """Takes what the coordinator decides; all but messages."""

    def joined(self) -> None:
        """This process is a member."""

    def member_changed(self, member: Member, address: str) -> None:
        """A member has changed, maybe this process; ``address`` is where it is dialled, empty if it is gone."""

    def expelled(self, reason: str) -> None:
        """This process is DOWN, and a member no more."""

    def left(self) -> None:
        """All members know that this process has left."""

    def ask_arbiter(self, question: AskArbiter) -> None:
        """Ask for a term in the name of a side, and report the answer by :meth:`MembershipDriver.arbiter_decided`."""


def endpoint_of(address: NodeAddress) -> str:
    """Return an address as it is dialled."""
    return address.host if address.host.startswith(UNIX_PREFIX) else str(Endpoint(address.host, address.port))


def node_address(text: str) -> NodeAddress:
    """Return a member's address; a Unix socket's is its text. Raises ``ValueError``."""
    endpoint = Endpoint.parse(text)
    return NodeAddress(str(endpoint), 1) if endpoint.is_unix else NodeAddress(endpoint.host, endpoint.port)


class MembershipDriver:
    """Feeds a coordinator with time and messages, and carries its effects out."""

    def __init__(
        self,
        coordinator: Coordinator,
        network: Network,
        seeds: Seeds,
        owner: MembershipOwner,
        clock: Clock,
        log: Log,
        tick_s: float,
    ) -> None:
        self.coordinator = coordinator
        self.links = ControlLinks(network, log, self._received, self._lost)
        self._seeds = seeds
        self._owner = owner
        self._clock = clock
        self._log = log
        self._tick_s = tick_s
        self._timer: Timer | None = None
        self._looking_up: asyncio.Task[None] | None = None
        self._is_member = False
        self._found_seeds: list[NodeAddress] = []
        self._more_seeds: list[NodeAddress] = []
        self._names: dict[int, str] = {}

    def start(self) -> None:
        """Begin to join. It needs a running event loop."""
        self._looking_up = asyncio.get_running_loop().create_task(self._look_up())
        self._tick()

    def stop(self) -> None:
        """End: the others are told, unless they know."""
        self.apply(self.coordinator.stop())
        for each in (self._timer, self._looking_up):
            if each is not None:
                each.cancel()
        self.links.close()

    def apply(self, effects: Iterable[Effect]) -> None:
        """Carry effects out, in their order. One that fails by a defect does not take the others with it."""
        for effect in effects:
            try:
                self._apply(effect)
            except Exception as error:
                self._log.error("{effect!r} could not be carried out: {error!r}", effect=effect, error=error)

    def arbiter_decided(self, granted: bool, question: AskArbiter) -> None:
        """Report the arbiter's answer to a question."""
        self.apply(self.coordinator.arbiter_decided(granted, self._clock.monotonic(), question))

    def join_by(self, seed: NodeAddress) -> None:
        """Ask one more seed, also when the others are looked up again."""
        self._more_seeds.append(seed)
        self.apply(self.coordinator.replace_seeds([*self._found_seeds, *self._more_seeds]))

    def _apply(self, effect: Effect) -> None:
        match effect:
            case Send(uid, message, reply):
                self.links.send(uid, message, reply)
            case SendTo(address, message):
                self.links.send_to(endpoint_of(address), message)
            case MemberChanged(member):
                self._changed(member)
            case AskArbiter():
                self._owner.ask_arbiter(effect)
            case Joined():
                self._is_member = True
                self.links.forget_seeds()
                self._owner.joined()
            case Downed(reason):
                self.links.forget_seeds()
                self._owner.expelled(reason)
            case LeaveCompleted():
                self._owner.left()
            case Downing() | JoinRefused() | WaitingForSeeds():
                self._report(effect)

    def _changed(self, member: Member) -> None:
        uid = member.node.uid
        info = self.coordinator.info(uid)
        if info is None:
            self.links.drop(uid)
            self._names.pop(uid, None)
            self._owner.member_changed(member, "")
            return
        address = endpoint_of(info.address)
        self._names[uid] = info.node.name
        if uid != self.coordinator.own.uid:
            # Also to one that is DOWN: it is to learn so.
            self.links.keep(uid, info.node.name, address)
        self._owner.member_changed(member, address)

    def _report(self, effect: Downing | JoinRefused | WaitingForSeeds) -> None:
        match effect:
            case Downing(_, uids, reason):
                names = ", ".join(f"{self._names.get(uid, 'unknown')} ({uid:016x})" for uid in uids)
                self._log.warn("marked DOWN: {names}: {reason}", names=names, reason=reason)
            case JoinRefused(reason):
                self._log.error("the cluster refuses this broker: {reason}; it asks again", reason=reason)
            case WaitingForSeeds(seeds, waited_s, not_yet):
                self._log.warn(
                    "no seed has let this broker join for {waited:.0f} s, so its listeners are closed: asked "
                    "{seeds}; {not_yet} of them wait themselves. Only the first seed starts a cluster alone: does it "
                    "run?",
                    waited=waited_s,
                    seeds=", ".join(str(each) for each in seeds) or "nobody, as no seed is known",
                    not_yet=not_yet,
                )

    # Events

    def _tick(self) -> None:
        self._timer = self._clock.later(self._tick_s, self._tick)
        self.apply(self.coordinator.tick(self._clock.monotonic()))

    def _received(self, connection: Established, message: Message) -> None:
        self.apply(self.coordinator.received(connection.peer.uid, message, self._clock.monotonic()))

    def _lost(self, uid: int) -> None:
        self.apply(self.coordinator.connection_lost(uid))

    async def _look_up(self) -> None:
        """Look up the seeds again and again, until this process is a member."""
        while not self._is_member:
            self._found_seeds = [node_address(each) for each in await self._seeds.addresses()]
            self.apply(self.coordinator.replace_seeds([*self._found_seeds, *self._more_seeds]))
            await asyncio.sleep(SEEDS_EVERY_S)
