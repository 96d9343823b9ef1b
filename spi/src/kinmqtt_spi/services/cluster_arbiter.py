"""The arbiter of a cluster: who goes on after a split, and where members are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

from kinmqtt_spi.values import Maybe

MAX_TERM: Final = 2**53 - 1
"""The highest term of an arbiter: stores that calculate with doubles tell it from its neighbours."""

MAX_ADDRESS_CHARACTERS: Final = 512
"""The longest address of a member that an arbiter notes."""


class ClusterArbiter(ABC):
    """Decides splits of a cluster, in a store that all its nodes share: each term goes to one side, the first to ask.

    A cluster's members all know its term. Where they can't reach each other, a side that wants to declare the others
    DOWN asks for the next term. Terms only rise: a side that has lost one, or comes late with an old one, is refused
    for ever. No clock is involved, and nothing is given back (terms as in Ongaro and Ousterhout, "In Search of an
    Understandable Consensus Algorithm", USENIX ATC 2014). The store must not lose what it has decided.

    It also knows where members are, so that nobody forms a second cluster beside them: each member notes its address
    again and again. Such a note may be lost: the next one replaces it.
    """

    @abstractmethod
    def term(self) -> Maybe[int]:
        """Return the last term that was decided; 0 before the first.

        Raises :class:`~kinmqtt_spi.errors.ServiceUnavailable` if the store can't say.
        """

    @abstractmethod
    def decide(self, term: int, side: int) -> Maybe[bool]:
        """Ask for a term in the name of a side: a number of 64 bits, the same for all members of the side.

        Returns ``True`` if this side has the term: nobody had this term or a later one, or this side has had it
        before. All members of a side may ask, and again. Returns ``False`` if another side has it, or a later term
        was decided.

        Raises :class:`~kinmqtt_spi.errors.ServiceUnavailable` if the store can't say: then nobody may act, and the
        side may have the term or not; ask again. Raises ``ValueError`` as :func:`check_term` does.
        """

    @abstractmethod
    def members(self) -> Maybe[Sequence[str]]:
        """Return the addresses of the members that are noted now, in no particular order.

        Raises :class:`~kinmqtt_spi.errors.ServiceUnavailable` if the store can't say.
        """

    @abstractmethod
    def note_member(self, address: str, limit_s: float, *, only_first: bool = False) -> Maybe[bool]:
        """Note for ``limit_s`` seconds from now, by the store's clock, that a member of the cluster is at an address.

        With ``only_first`` it is noted only if no other address is. Of several that ask so at once one is noted.
        Returns whether it is noted.

        Raises :class:`~kinmqtt_spi.errors.ServiceUnavailable` if the store can't say: it may be noted or not. Raises
        ``ValueError`` as :func:`check_note` does.
        """

    @abstractmethod
    def forget_member(self, address: str) -> Maybe[None]:
        """Remove the note about an address, if there is one: its member has ended.

        Raises :class:`~kinmqtt_spi.errors.ServiceUnavailable` if the store can't say.
        """


def check_term(term: int, side: int) -> None:
    """Raise ``ValueError`` unless ``term`` is from 1 to :data:`MAX_TERM`, and ``side`` from 0 to 2**64-1."""
    if not 1 <= term <= MAX_TERM:
        raise ValueError(f"a term must be from 1 to {MAX_TERM}, not {term!r}")
    if not 0 <= side < 1 << 64:
        raise ValueError(f"a side must be a number of 64 bits, not {side!r}")


def check_note(address: str, limit_s: float) -> None:
    """Raise ``ValueError`` unless ``address`` has 1 to 512 characters, and ``limit_s`` is from 0.001 to 3600."""
    if not 1 <= len(address) <= MAX_ADDRESS_CHARACTERS:
        raise ValueError(f"an address must have 1 to {MAX_ADDRESS_CHARACTERS} characters, not {len(address)}")
    if not 0.001 <= limit_s <= 3600:
        raise ValueError(f"a note must last from 0.001 to 3600 s, not {limit_s!r}")
