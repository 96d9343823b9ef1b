"""Drives the coordinator: the clock, the control connections and the seeds on one side, the backend on the other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from kinmqtt_akka_like_cluster.control_links import ControlLinks
from kinmqtt_akka_like_cluster.member_log import MemberLog
from kinmqtt_akka_like_cluster.net.addresses import UNIX_PREFIX, Endpoint
from kinmqtt_akka_like_cluster.net.established import Established
from kinmqtt_akka_like_cluster.net.seeds import Seeds
from kinmqtt_akka_like_cluster.net.transport import Network
from kinmqtt_akka_like_cluster.noted_members import NotedMembers
from kinmqtt_akka_like_cluster.pure.coordinator import Coordinator
from kinmqtt_akka_like_cluster.pure.effects import (
    AskArbiter,
    AskToForm,
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

_FIRST: Final = (
    "This is the first seed. It starts no cluster while others refuse it, or are members as the arbiter knows: the "
    "lines before say which"
)
_OTHER: Final = "Only the first seed starts a cluster alone: does it run?"


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
        noted: NotedMembers,
        owner: MembershipOwner,
        clock: Clock,
        log: Log,
        tick_s: float,
    ) -> None:
        self.coordinator = coordinator
        self.links = ControlLinks(network, log, self._received, self._lost, self.malformed)
        self._seeds = seeds
        self._noted = noted
        self._owner = owner
        self._clock = clock
        self._log = log
        self._tick_s = tick_s
        self._timer: Timer | None = None
        self._looking_up: asyncio.Task[None] | None = None
        self._is_member = False
        self._found_seeds: list[NodeAddress] = []
        self._more_seeds: list[NodeAddress] = []
        self._member_log = MemberLog(coordinator.own.node, log, coordinator.settings.strategy.value)
        self._down_reasons: dict[int, str] = {}
        """Why this broker has marked members DOWN, by uid; of the effects that are carried out now."""

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
        effects = tuple(effects)
        # A member's change comes before the reason for it.
        self._down_reasons = {
            uid: effect.reason for effect in effects if isinstance(effect, Downing) for uid in effect.uids
        }
        for effect in effects:
            try:
                self._apply(effect)
            except Exception as error:
                self._log.error("{effect!r} could not be carried out: {error!r}", effect=effect, error=error)

    def arbiter_decided(self, granted: bool, question: AskArbiter) -> None:
        """Report the arbiter's answer to a question."""
        self.apply(self.coordinator.arbiter_decided(granted, self._clock.monotonic(), question))

    def malformed(self, uid: int) -> None:
        """Report a malformed message of a process."""
        self.apply(self.coordinator.malformed(uid, self._clock.monotonic()))

    def may_form(self, term: int | None) -> None:
        """Report with which term this process may form a cluster; ``None``: it may not."""
        self.apply(self.coordinator.may_form(term))

    def noted(self, addresses: Sequence[str], term: int) -> None:
        """Report the members that are noted, and the arbiter's last term."""
        known = [node_address(each) for each in addresses]
        self.apply(self.coordinator.noted(known, term, self._clock.monotonic()))

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
            case AskToForm():
                self._noted.ask_to_form(self.may_form)
            case Joined():
                self._is_member = True
                self._noted.begin(self.noted)
                self.links.forget_seeds()
                self._owner.joined()
            case Downed(reason):
                self.links.forget_seeds()
                self._owner.expelled(reason)
            case LeaveCompleted():
                self._owner.left()
            case JoinRefused() | WaitingForSeeds():
                self._report(effect)

    def _changed(self, member: Member) -> None:
        uid = member.node.uid
        self._member_log.changed(member, self._down_reasons.get(uid), self._unreachable_by(member))
        info = self.coordinator.info(uid)
        if info is None:
            self.links.drop(uid)
            self._owner.member_changed(member, "")
            return
        address = endpoint_of(info.address)
        if uid != self.coordinator.own.uid:
            # Also to one that is DOWN: it is to learn so.
            self.links.keep(uid, info.node.name, address)
        self._owner.member_changed(member, address)

    def _unreachable_by(self, member: Member) -> list[str]:
        """Return the names of the members that can't reach one."""
        if member.reachable:
            return []
        views = {view.info.uid: view for view in self.coordinator.members}
        view = views.get(member.node.uid)
        return [] if view is None else [views[uid].info.node.name for uid in view.unreachable_by if uid in views]

    def _report(self, effect: JoinRefused | WaitingForSeeds) -> None:
        match effect:
            case JoinRefused(reason):
                self._log.error("the cluster refuses this broker: {reason}; it asks again", reason=reason)
            case WaitingForSeeds(seeds, waited_s, not_yet):
                own = self.coordinator.own.address
                is_first = bool(self._found_seeds) and self._found_seeds[0] == own
                self._log.warn(
                    "no seed has let this broker join for {waited:.0f} s, so its listeners are closed: asked "
                    "{seeds}; {not_yet} of them wait themselves. {why}",
                    waited=waited_s,
                    seeds=", ".join(str(each) for each in seeds) or "nobody, as no seed is known",
                    not_yet=not_yet,
                    why=_FIRST if is_first else _OTHER,
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
            addresses = (*await self._seeds.addresses(), *await self._noted.others())
            self._found_seeds = [node_address(each) for each in addresses]
            self.apply(self.coordinator.replace_seeds([*self._found_seeds, *self._more_seeds]))
            await asyncio.sleep(SEEDS_EVERY_S)
