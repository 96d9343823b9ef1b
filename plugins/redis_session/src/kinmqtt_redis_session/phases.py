"""In which order a group of turns goes to a Redis Cluster, where it can't be one transaction.

What must not be lost goes first: entries that are appended, and retained messages. Then what says that something was
taken over or may be forgotten. A broker that dies in between leaves an entry twice at worst, and never loses one.
"""

from __future__ import annotations

from kinmqtt_redis_session.writes import ClientWrite
from kinmqtt_spi.services.queue import Append, InboundOpen, Purge, Requeue, Send

Numbered = list[tuple[int, ClientWrite]]
"""Writes of one client, each with the number of its turn."""


def phases(clients: dict[str, Numbered]) -> list[dict[str, Numbered]]:
    """The writes of clients in the phases in which they are carried out, none of them empty."""
    first: dict[str, Numbered] = {}
    second: dict[str, Numbered] = {}
    third: dict[str, Numbered] = {}
    for client_id, writes in clients.items():
        ahead, rest = _hoisted(writes)
        if ahead:
            first[client_id] = ahead
        if any(isinstance(write, Append) for _, write in rest):
            second[client_id] = rest
        elif rest:
            third[client_id] = rest
    return [each for each in (first, second, third) if each]


def _hoisted(writes: Numbered) -> tuple[Numbered, Numbered]:
    """The appended entries that may go ahead of everything else of their client, and the rest.

    What is sent from the queue goes with them: an entry that is sent as it is appended must stand behind it, for what
    is in flight is sent again in the order in which it was written.
    """
    if not any(isinstance(write, Append) for _, write in writes):
        return [], writes
    ahead: Numbered = []
    rest: Numbered = []
    # Whatever empties or turns a queue stays before what is appended behind it, and so does another epoch.
    turned = len({write.epoch for _, write in writes}) > 1
    for number, write in writes:
        turned = turned or isinstance(write, Purge | Requeue)
        (ahead if isinstance(write, Append | Send) and not turned else rest).append((number, write))
    return ahead, rest


Targets = dict[tuple[int, str], dict[str, int]]
"""For a turn and a publisher whose QoS 2 messages were taken over in it: the clients that they are meant for, and the
epochs under which these are written of."""


def targets_of(clients: dict[str, Numbered]) -> Targets:
    """For whom the messages are of which a turn says that they were taken over."""
    found: Targets = {}
    for client_id, writes in clients.items():
        for number, write in writes:
            if isinstance(write, InboundOpen):
                found[number, client_id] = {}
    if not found:
        return found
    for client_id, writes in clients.items():
        for number, write in writes:
            if isinstance(write, Append):
                its = found.get((number, write.entry.message.publisher.client_id))
                if its is not None:
                    its[client_id] = write.epoch
    return found


def without_refused(
    clients: dict[str, Numbered], targets: Targets, refused: dict[int, set[str]]
) -> dict[str, Numbered]:
    """A later phase's writes but for those that say that a message was taken over which a newer owner refused.

    ``refused`` has the clients by turn.
    """
    left: dict[str, Numbered] = {}
    for client_id, writes in clients.items():
        its = [
            (number, write)
            for number, write in writes
            if not isinstance(write, InboundOpen)
            or not (refused.get(number, set()) & targets.get((number, client_id), {}).keys())
        ]
        if its:
            left[client_id] = its
    return left
