"""Waits for the answers to one message."""

from __future__ import annotations

from functools import partial

from twisted.internet.defer import Deferred

from kinmqtt.broker.message.ticket import Ticket


def settled(ticket: Ticket) -> Deferred[None]:
    """Return what fires when a ticket has all its answers: at once if none is missing."""
    done: Deferred[None] = Deferred()
    if ticket.pending:
        ticket.when_settled(partial(done.callback, None))
    else:
        done.callback(None)
    return done
