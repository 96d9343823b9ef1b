"""What an operator may ask a running broker about its cluster, and have it do: the answers of the control socket."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from kinmqtt_akka_like_cluster.control import Answer
from kinmqtt_akka_like_cluster.membership_driver import endpoint_of, node_address
from kinmqtt_akka_like_cluster.results import settled
from kinmqtt_spi.errors import NodeGone, ServiceUnavailable
from kinmqtt_spi.services.cluster import MemberState, RouteChange
from kinmqtt_spi.topics import covers, matches

if TYPE_CHECKING:
    from kinmqtt_akka_like_cluster.backend import AkkaBackend
    from kinmqtt_akka_like_cluster.membership_driver import MembershipDriver
    from kinmqtt_akka_like_cluster.pure.membership import MemberView

MAX_ROUTES: Final = 1_000
"""The most routes that one answer lists."""
WHERE_LIMIT_S: Final = 5.0
"""How long another broker may take to say whether it has a session."""
WHERE: Final = "where"
"""The question whether a node has a client's session; the core answers it."""

_VOTING: Final = (MemberState.UP, MemberState.LEAVING)


class Operations:
    """Answers the requests of ``kinmqtt cluster``."""

    def __init__(self, backend: AkkaBackend) -> None:
        self._backend = backend
        self.answers: Mapping[str, Answer] = {
            "status": self.status,
            "members": self.members,
            "routes": self.routes,
            "where": self.where,
            "join": self.join,
            "leave": self.leave,
            "down": self.down,
        }

    @property
    def _driver(self) -> MembershipDriver:
        driver = self._backend.driver
        if driver is None:
            raise ValueError("the broker has not begun to join, or stops")
        return driver

    async def status(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return this node's view of the cluster as a whole."""
        coordinator = self._driver.coordinator
        members = coordinator.members
        voting = [each for each in members if each.info.votes and each.state in _VOTING]
        leader = next((each.info.node.name for each in members if each.info.uid == coordinator.leader), None)
        own = coordinator.own
        return {
            "node": own.node.name,
            "uid": f"{own.uid:016x}",
            "address": endpoint_of(own.address),
            "state": next((each.state.value for each in members if each.info.uid == own.uid), "no member"),
            "leader": leader,
            "converged": coordinator.is_converged,
            "members": len(members),
            "unreachable": sum(not each.reachable for each in members),
            "voting": len(voting),
            "majority": 2 * sum(each.reachable for each in voting) > len(voting),
            "downing": self._backend.strategy.value,
        }

    async def members(self, request: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return all members, by address."""
        coordinator = self._driver.coordinator
        phi = coordinator.phi(self._backend.now())
        names = {each.info.uid: each.info.node.name for each in coordinator.members}
        return [self._member(each, phi, names) for each in coordinator.members]

    def _member(self, view: MemberView, phi: Mapping[int, float], names: Mapping[int, str]) -> dict[str, Any]:
        uid = view.info.uid
        found: dict[str, Any] = {
            "node": view.info.node.name,
            "uid": f"{uid:016x}",
            "address": endpoint_of(view.info.address),
            "state": view.state.value,
            "reachable": view.reachable,
            "unreachable_by": [names.get(each, f"{each:016x}") for each in view.unreachable_by],
            "votes": view.info.votes,
            "up_number": view.up_number,
        }
        if uid in phi:
            found["phi"] = round(min(max(phi[uid], 0.0), 1000.0), 2)
        try:
            link = self._backend.link(view.info.node)
        except NodeGone:
            return found  # It is this node, or one that is DOWN.
        return {**found, "queued_bytes": link.queued_bytes, "round_trip_ms": round(link.round_trip_s * 1000, 2)}

    async def routes(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the routes of all nodes that a filter covers, or that match it as a topic name."""
        filter = _text(request, "filter")
        is_topic = "+" not in filter and "#" not in filter
        found = (
            {"node": node.name, "filter": route.filter, "group": route.share_group, "qos": route.qos}
            for node, routes in self._backend.known_routes()
            for route in routes
            if _concerns(route, filter, is_topic)
        )
        listed = list(islice(found, MAX_ROUTES + 1))
        return {"routes": listed[:MAX_ROUTES], "more": len(listed) > MAX_ROUTES}

    async def where(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the node that has a client's session now, and those that could not be asked."""
        client_id = _text(request, "client").encode()
        silent = []
        for member in self._backend.members():
            try:
                answer = await settled(self._backend.question(member.node, WHERE, client_id, WHERE_LIMIT_S))
            except ServiceUnavailable:
                silent.append(member.node.name)
                continue
            if answer:
                return {
                    "node": member.node.name,
                    "epoch": int.from_bytes(answer[:8], "big"),
                    "connected": answer[8:] == b"\1",
                    "silent": silent,
                }
        return {"node": None, "silent": silent}

    async def join(self, request: Mapping[str, Any]) -> str:
        """Ask another seed to let this broker join, while it waits for seeds."""
        coordinator = self._driver.coordinator
        if coordinator.members:
            raise ValueError(
                "this broker is a member already; to move it to another cluster, stop it and change seeds"
            )
        seed = node_address(_text(request, "seed"))
        if seed == coordinator.own.address:
            raise ValueError(f"{seed} is this broker itself: name another one, which is a member")
        self._driver.join_by(seed)
        return f"asks {seed}"

    async def leave(self, request: Mapping[str, Any]) -> str:
        """Stop this broker in good order, as SIGTERM does: its clients go to other brokers in waves."""
        os.kill(os.getpid(), signal.SIGTERM)
        return "leaves, and then stops"

    async def down(self, request: Mapping[str, Any]) -> str:
        """Mark another member DOWN, by its name or its uid."""
        wanted = _text(request, "node")
        coordinator = self._driver.coordinator
        found = [each for each in coordinator.members if wanted in (each.info.node.name, f"{each.info.uid:016x}")]
        if len(found) != 1:
            why = "is no member" if not found else "are several members: name the uid"
            raise ValueError(f"{wanted!r} {why}; `kinmqtt cluster members` lists names and uids")
        if found[0].info.uid == coordinator.own.uid:
            raise ValueError(f"{wanted!r} is this broker; `kinmqtt cluster leave` stops it in good order")
        if found[0].reachable and request.get("force") is not True:
            raise ValueError(f"{wanted!r} can be reached, and would lose its clients; --force downs it all the same")
        self._driver.apply(coordinator.down(found[0].info.uid))
        info = found[0].info
        if any(each.info.uid == info.uid and each.state is not MemberState.DOWN for each in coordinator.members):
            return f"{info} is DOWN as soon as the arbiter agrees; `kinmqtt cluster members` shows it"
        return f"{info} is DOWN"


def _concerns(route: RouteChange, filter: str, is_topic: bool) -> bool:
    return matches(route.filter, filter) if is_topic else covers(filter, route.filter)


def _text(request: Mapping[str, Any], key: str) -> str:
    value = request.get(key)
    if not isinstance(value, str) or not value:
        raise ValueError(f"the request needs {key}, a text")
    return value
