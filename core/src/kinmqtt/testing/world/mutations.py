"""Mistakes put into the broker, which the simulator must find: each says what a part of the cluster is for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeAlias
from unittest.mock import patch

from kinmqtt import TWIN
from kinmqtt.broker.cluster.moved_sessions import MovedSessions
from kinmqtt.broker.cluster.receiver import Answer, Receiver
from kinmqtt.broker.connection.connection import Connection
from kinmqtt.broker.forwarding.announcer import Announcer
from kinmqtt.broker.forwarding.batch_format import write_answer
from kinmqtt.broker.handlers.publish_answer import PublishAnswer
from kinmqtt.broker.routing.routed import Routed
from kinmqtt.broker.routing.router import Router
from kinmqtt.testing.world.search import Failure, run_seed
from kinmqtt.testing.world.stores import NodeQueues
from kinmqtt_spi.memory.queue import MemoryQueueStore
from kinmqtt_spi.memory.shared_queue import NodeQueueStore
from kinmqtt_spi.memory.shared_session import SharedSessionStore
from kinmqtt_spi.mesh.link import Link
from kinmqtt_spi.services.queue import Append, QueueWrite
from kinmqtt_spi.values import MessageId

Change: TypeAlias = tuple[Any, str, Any]
"""A class, the name of one of its methods, and what stands in its place."""


def _no_tickets() -> Sequence[Change]:
    def hold(self: Any, publication: Any, ticket: Any, routed: Routed) -> None:
        self._routed_later(routed)

    return [(PublishAnswer, "_hold", hold)]


def _no_barrier() -> Sequence[Change]:
    def known(self: Any) -> Sequence[Any]:
        self.flush()
        return ()

    return [(Announcer, "known", known)]


def _no_fencing() -> Sequence[Change]:
    apply = MemoryQueueStore.apply

    def current(self: Any, writes: Sequence[Any]) -> None:
        queues = self._queues
        epochs = {client_id: queue.epoch for client_id, queue in queues.items()}
        apply(self, [each._replace(epoch=max(each[1], epochs.get(each[0], 0))) for each in writes])

    def notify(self: Any, node: Any, call: Any) -> None:
        pass

    return [(MemoryQueueStore, "apply", current), (SharedSessionStore, "notify", notify)]


def _no_moved() -> Sequence[Change]:
    def written(self: Any) -> bytes:
        return write_answer(self.verdicts) if self.verdicts else b""

    def name_moved(self: Any, publication: Any, number: int, answer: Any) -> None:
        pass

    def nothing(self: Any, *arguments: Any) -> None:
        pass

    return [
        (Answer, "written", written),
        (Receiver, "_name_moved", name_moved),
        (MovedSessions, "dropped", nothing),
        (MovedSessions, "follow", nothing),
    ]


def _no_known() -> Sequence[Change]:
    def known(self: Any, client_id: str, ids: Set[MessageId]) -> Set[MessageId]:
        return frozenset()

    return [(NodeQueueStore, "known", known)]


def _mark() -> Sequence[Change]:
    marks: dict[tuple[str, int], int] = {}
    apply = NodeQueues.apply

    def noting(self: Any, writes: Sequence[QueueWrite]) -> None:
        apply(self, writes)
        for write in writes:
            if isinstance(write, Append):
                id = write.entry.message.id
                key = (write.client_id, id.node)
                marks[key] = max(marks.get(key, 0), id.counter)

    def known(self: Any, client_id: str, ids: Set[MessageId]) -> Set[MessageId]:
        return {id for id in ids if id.counter <= marks.get((client_id, id.node), 0)}

    return [(NodeQueues, "apply", noting), (NodeQueueStore, "known", known)]


def _pubrec_early() -> Sequence[Change]:
    def hold_repeated(self: Any, ticket: Any) -> None:
        self._routed_later(Routed.DELIVERED)

    return [(PublishAnswer, "_hold_repeated", hold_repeated)]


def _never_adopt() -> Sequence[Change]:
    def is_home_alive(self: Any, client_id: str) -> bool:
        return True

    return [(SharedSessionStore, "is_home_alive", is_home_alive)]


def _served_by_each_node() -> Sequence[Change]:
    route = Router.route_from_node

    def route_all(self: Any, publication: Any, is_plain: bool) -> Any:
        publication.serve_only(self.groups_here(publication.publish.topic))
        return route(self, publication, is_plain)

    return [(Router, "route_from_node", route_all), (Receiver, "_deliver_simply", lambda *_: False)]


def _forgetful_link() -> Sequence[Change]:
    resume, greeted = Link._resume, Link._greeted

    def resume_all(self: Any, received: int) -> None:
        resume(self, self._trimmed)

    def forget(self: Any, kind: int, body: bytes, decoder: Any) -> None:
        greeted(self, kind, body, decoder)
        self._received = max(0, self._received - 8)

    return [(Link, "_resume", resume_all), (Link, "_greeted", forget)]


def _in_order_of_turns() -> Sequence[Change]:
    send = Connection.send_acknowledgement

    def wait(self: Any, packet: Any, completes: bool) -> None:
        if self.services.forwarder.unanswered:
            self.runtime.clock.later(0.05, partial(wait, self, packet, completes))
        elif not self.is_closed():
            send(self, packet, completes)

    return [(Connection, "send_acknowledgement", wait)]


MUTATIONS: Final[Mapping[str, Callable[[], Sequence[Change]]]] = {
    "no tickets": _no_tickets,
    "no barrier": _no_barrier,
    "no fencing": _no_fencing,
    "no moved": _no_moved,
    "no known": _no_known,
    "a mark in place of known": _mark,
    "PUBREC early": _pubrec_early,
    "never adopt": _never_adopt,
    "shared subscriptions served by each node": _served_by_each_node,
    "the link forgets what it received": _forgetful_link,
    "acknowledgements in the order of turns": _in_order_of_turns,
}
"""By name: what to change. A name says what is missing or wrong."""


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """Put a mistake in.

    Raises RuntimeError where the broker is compiled: compiled code calls its methods directly.
    """
    if TWIN == "compiled":
        raise RuntimeError("a mistake can be put into plain Python only: set KINMQTT_PURE=1 in the environment")
    patches = [patch.object(owner, method, new) for owner, method, new in MUTATIONS[name]()]
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in patches:
            each.stop()


def find(name: str, seeds: Sequence[int]) -> Failure | None:
    """Return the first seed's failure with a mistake; ``None`` if no seed finds it."""
    with mutated(name):
        for seed in seeds:
            failure = run_seed(seed, shorten=False)
            if failure is not None:
                return failure
    return None
