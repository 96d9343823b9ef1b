"""The common interface of the queue, session and retain stores and the event log."""

from __future__ import annotations

from kinmqtt_spi.values import Commit


class Store:
    """A store that takes the writes of a reactor turn.

    A turn passes each store its batch, and then calls :meth:`commit` of each store that got one. So a plugin that
    serves several families can collect their batches and commit them as one transaction: an acknowledgement is never
    committed in one store without its entry in another.
    """

    is_shared: bool = False
    """Whether other nodes use the same data: then each node must know which of it is its own."""

    @property
    def transaction(self) -> object:
        """Identifies the transaction of a turn: the same object for stores that commit in one transaction."""
        return self

    def commit(self) -> Commit:
        """Commit the batches of this turn; the turn has no more of them.

        A batch is committed when the store's answer to it *and* the answer of this call have fired. If this call
        raises, nothing was committed. If its answer fails later, some or all of the writes may have been committed,
        of this batch and of later ones. The answers to those later batches must fail too; this preserves the order of
        what is sent again. A failed commit discards the batches collected since the last call. A store that commits
        each batch by itself has nothing to do here.
        """
        return None
