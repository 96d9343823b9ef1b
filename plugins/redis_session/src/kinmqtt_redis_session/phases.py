"""Splits a batch of turns into phases for a Redis Cluster, where it can't be one transaction.

Appended entries and retained messages go first, because they must not be lost. Writes that acknowledge or remove
something follow. A broker that dies between phases may leave an entry twice, but never loses one.
"""

from __future__ import annotations

from kinmqtt_redis_session.writes import ClientWrite
from kinmqtt_spi.services.queue import Append, InboundOpen, Purge, Requeue, Send

Numbered = list[tuple[int, ClientWrite]]
"""The writes for one client, each with the number of its turn in the batch."""


def phases(clients: dict[str, Numbered]) -> list[dict[str, Numbered]]:
    """Split the writes into at most three phases; empty phases are left out."""
    first: dict[str, Numbered] = {}
    second: dict[str, Numbered] = {}
    third: dict[str, Numbered] = {}
    for client_id, writes in clients.items():
        ahead, rest = _split_ahead(writes)
        if ahead:
            first[client_id] = ahead
        if any(isinstance(write, Append) for _, write in rest):
            second[client_id] = rest
        elif rest:
            third[client_id] = rest
    return [each for each in (first, second, third) if each]


def _split_ahead(writes: Numbered) -> tuple[Numbered, Numbered]:
    """Split one client's writes into appends that may go ahead of its other writes, and the rest.

    Sends go with the appends: an entry that is appended and sent at once must come after earlier sends, because
    inflight messages are sent again in the order in which they were written.
    """
    if not any(isinstance(write, Append) for _, write in writes):
        return [], writes
    ahead: Numbered = []
    rest: Numbered = []
    # Appends after a purge, a requeue or a change of epoch must stay behind it.
    blocked = len({write.epoch for _, write in writes}) > 1
    for number, write in writes:
        blocked = blocked or isinstance(write, Purge | Requeue)
        (ahead if isinstance(write, Append | Send) and not blocked else rest).append((number, write))
    return ahead, rest


Targets = dict[tuple[int, str], dict[str, int]]
"""By turn and publisher of a QoS 2 message: its target clients, and the epochs of the writes to them."""


def targets_of(clients: dict[str, Numbered]) -> Targets:
    """The target clients of each QoS 2 message whose packet identifier a turn stores."""
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
    """Drop packet identifiers of QoS 2 messages that a newer owner has refused in an earlier phase.

    ``refused`` has the refusing clients by turn.
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
