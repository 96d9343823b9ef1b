"""What the queue, session and retain stores and the event log have in common."""

from __future__ import annotations

from kinmqtt_spi.values import Commit


class Store:
    """Something that takes a reactor turn's writes.

    A turn hands each store its batch, and then calls :meth:`commit` of each store that got one. So a plugin that
    serves several families can gather what they are handed and keep it as one transaction: an acknowledgement in
    the session store without its entry in the queue store can't come about.
    """

    @property
    def transaction(self) -> object:
        """What keeps this store's writes of a turn: the same object for stores whose writes are one transaction."""
        return self

    def commit(self) -> Commit:
        """The turn has handed over all it has: keep it.

        Where it raises, nothing was kept. Where its answer fails later the core takes it that some or all may have
        been, of this and of what was handed over since: those answers must fail too, so that nothing overtakes what
        is sent again. What was handed over is kept when the store's answer to it *and* the
        answer of this have fired; a store that keeps each batch by itself has nothing to do here. It fails as the
        batches do; then what was gathered since the last call is forgotten.
        """
        return None
