"""Publishes messages as a client does that waits for PUBACK: for plugins that bring messages in from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kinmqtt.broker.message.names import check_made_message
from kinmqtt.broker.message.publication import Publication
from kinmqtt.broker.message.settled import settled
from kinmqtt.broker.routing.routed import Routed
from kinmqtt.broker.turn.ports import CommitWatcher
from kinmqtt.broker.turn.recovery import CommitFailed
from kinmqtt.hooks.awaitables import resolve
from kinmqtt_spi.errors import NotCommitted, PublishRefused
from kinmqtt_spi.values import Message

if TYPE_CHECKING:
    from kinmqtt.broker.routing.publisher import MessagePublisher
    from kinmqtt.broker.runtime import Runtime


async def publish_acknowledged(runtime: Runtime, publisher: MessagePublisher, messages: Sequence[Message]) -> None:
    """Publish messages in their order; returns when each could be acknowledged to a client.

    That is when they are committed for all persistent sessions and outboxes here, and on the other nodes. Raises
    ``ValueError`` for an invalid message, before any is published,
    :class:`~kinmqtt_spi.errors.NotCommitted`, and :class:`~kinmqtt_spi.errors.PublishRefused`.
    """
    for message in messages:
        check_made_message(runtime.limits, message)
    turn = runtime.turn
    slices = runtime.slices
    publications: list[Publication] = []
    refused = 0
    watcher = CommitWatcher()
    try:
        for message in messages:
            if slices.is_over():
                await slices.turn()
            turn.touch()
            publication = Publication.of(publisher.completed(message))
            publications.append(publication)
            routed = await resolve(publisher.take(publication, connection=watcher))
            # Each may be part of another turn.
            turn.batch.unfinished_publishers.append(watcher)
            ticket = publication.ticket
            refused += routed in (Routed.REFUSED, Routed.NOT_RETAINED) and not (ticket and ticket.is_refused)
            if ticket is not None and ticket.is_slow:
                # An outbox pauses its publishers: of many messages at once it would refuse those above its bounds.
                await turn.committed()
                await settled(ticket)
                if ticket.is_refused or ticket.failure is not None:
                    break
        await turn.committed()
    except CommitFailed as error:
        raise NotCommitted("a store did not commit the messages", error.reason) from None
    if watcher.failure is not None:
        raise NotCommitted("a store did not commit the messages", watcher.failure)
    for publication in publications:
        ticket = publication.ticket
        if ticket is None:
            continue
        await settled(ticket)
        if ticket.failure is not None:
            raise NotCommitted("a node did not commit the messages", ticket.failure)
        refused += ticket.is_refused
    if refused:
        raise PublishRefused(f"a full queue or outbox refused {refused} of {len(messages)} messages")
