"""Downing: which side of a split goes on, after Akka's split brain resolver.

Each node decides for itself and from its own view. :func:`decide` is a pure table of the view; :class:`DowningPolicy`
adds the time: how long a view must be stable, and when a side asks the arbiter.

The last transitions before a split may be known to one side only: the others may have moved a JOINING member of
theirs to UP, or a LEAVING one of ours to EXITING. If that could let both sides go on, this one does not.

Source: the documentation of Akka's split brain resolver; ``DowningStrategy.scala`` and ``SplitBrainResolver.scala``
of its repository.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final

from attrs import frozen

from kinmqtt_spi.services.cluster import GONE, MemberState

LONGEST_GAP_S: Final = 2.0
"""Calls of :meth:`DowningPolicy.observe` that are further apart restart the wait: the view was not seen meanwhile."""
ASK_AGAIN_S: Final = 5.0
"""How long a question to the arbiter may stay without answer before it is asked again."""

_STABLE_AFTER_S: Final = ((5, 7.0), (10, 10.0), (20, 13.0), (50, 17.0))
_STABLE_AFTER_BEYOND_S: Final = 20.0
_UNSTABLE_PART: Final = 0.75
_VOTING: Final = frozenset({MemberState.UP, MemberState.LEAVING})
_PRESENT: Final = _VOTING | {MemberState.JOINING}
"""The states of members that can be downed. An EXITING one has said goodbye: nobody waits for it."""


class Strategy(Enum):
    """How a side of a split decides whether it goes on."""

    ARBITER = "arbiter"
    """The side that gets a term of the arbiter, which a store outside of the cluster grants once."""
    KEEP_MAJORITY = "keep_majority"
    """The side with more voting members; of two halves the one with the lowest address."""
    STATIC_QUORUM = "static_quorum"
    """The side with at least ``quorum`` voting members; no side if there are twice as many or more."""
    KEEP_OLDEST = "keep_oldest"
    """The side of the oldest voting member; the others if it is alone and they are two or more."""
    DOWN_ALL = "down_all"
    """None."""


class Decision(Enum):
    """What a node has to do about its view."""

    WAIT = "wait"
    """Nothing yet."""
    KEEP = "keep"
    """Nothing: nobody is unreachable."""
    DOWN_UNREACHABLE = "down_unreachable"
    """Set the unreachable members DOWN: this side goes on."""
    DOWN_SELF = "down_self"
    """Set this node DOWN; the others of its side decide the same."""
    DOWN_ALL = "down_all"
    """Set all members DOWN, this node too."""
    ASK_ARBITER = "ask_arbiter"
    """Ask the arbiter for a term, and report its answer by :meth:`DowningPolicy.arbiter_decided`."""


@frozen
class ViewMember:
    """A member, as one node sees it."""

    uid: int
    address: str
    """Orders the members, with the uid: all nodes must see the same text."""
    up_number: int
    """Its rank in the order in which members became UP; the oldest has the lowest."""
    votes: bool
    """Whether it counts; one that does not goes with its side."""
    reachable: bool
    state: MemberState


def usual_wait_s(members: int) -> float:
    """Return how long, in seconds, a view must be stable in a cluster of this size before anybody is downed."""
    return next((time_s for size, time_s in _STABLE_AFTER_S if members <= size), _STABLE_AFTER_BEYOND_S)


def is_majority(own: int, members: Sequence[ViewMember]) -> bool:
    """Whether the node's side has more voting members, or of two halves the lowest address."""
    here, there = _sides(own, members)
    return _outnumbers([m for m in here if _is_voting(m)], [m for m in there if _is_voting(m)])


def decide(strategy: Strategy, quorum: int | None, own: int, members: Sequence[ViewMember]) -> Decision:
    """Decide about a view that is stable. Never returns :attr:`Decision.WAIT`; ``own`` counts as reachable.

    Members that are EXITING, DOWN or REMOVED do not count. Raises :class:`ValueError` if a static quorum is missing.
    """
    here, there = _sides(own, members)
    if not there:
        return Decision.KEEP
    if strategy is Strategy.ARBITER:
        return Decision.ASK_ARBITER
    if strategy is Strategy.DOWN_ALL:
        return Decision.DOWN_ALL
    if strategy is Strategy.STATIC_QUORUM:
        return _static_quorum(_checked(quorum), here, there)
    survives = _keep_majority(here, there) if strategy is Strategy.KEEP_MAJORITY else _keep_oldest(here, there)
    return Decision.DOWN_UNREACHABLE if survives else Decision.DOWN_SELF


class DowningPolicy:
    """Decides when a node's view calls for downing, and whom.

    A view is stable if neither the set of members nor their reachability changed for a while. One that never settles,
    as members come back while others get lost, ends with :attr:`Decision.DOWN_ALL`: else the sides would decide at
    different times, about different views. Members that get lost one after the other only start the wait anew.
    """

    def __init__(self, strategy: Strategy, quorum: int | None, stable_after_s: float | None) -> None:
        """``quorum`` is for :attr:`Strategy.STATIC_QUORUM`; ``stable_after_s`` in seconds, ``None`` by the members.

        Raises :class:`ValueError` for a quorum that is missing or below 1, and for a negative time.
        """
        if strategy is Strategy.STATIC_QUORUM:
            _checked(quorum)
        if stable_after_s is not None and not stable_after_s >= 0:
            raise ValueError(f"stable_after_s is {stable_after_s}; it must be 0 or more, or None")
        self._strategy = strategy
        self._quorum = quorum
        self._stable_after_s = stable_after_s
        self._view: dict[int, tuple[bool, bool]] = {}
        """By uid: whether a member is reachable, and whether it counts."""
        self._observed_s: float | None = None
        self._stable_since_s = 0.0
        self._split_since_s: float | None = None
        """When the first member got lost, since when never all were reachable."""
        self._has_flapped = False
        """Whether a member has come back meanwhile."""
        self._asked_s: float | None = None
        self._is_granted: bool | None = None

    def observe(self, own: int, members: Sequence[ViewMember], now: float) -> Decision:
        """Decide about the view at ``now``, in monotonic seconds. Call it each second or more often.

        A decision is repeated until the view changes; :attr:`Decision.ASK_ARBITER` is returned once, and again each
        :data:`ASK_AGAIN_S` seconds without an answer. Raises :class:`ValueError` if ``own`` is no member.
        """
        own_state = next((member.state for member in members if member.uid == own), None)
        if own_state is None:
            raise ValueError(
                f"own uid {own} is not among the {len(members)} members; call observe after it has joined"
            )
        if own_state in GONE:
            return Decision.DOWN_SELF
        self._note(own, members, now)
        if self._split_since_s is None:
            return Decision.KEEP
        wait_s = usual_wait_s(len(self._view)) if self._stable_after_s is None else self._stable_after_s
        stable_s = now - self._stable_since_s
        if stable_s < wait_s:
            is_unstable = self._has_flapped and now - self._split_since_s >= wait_s * (1 + _UNSTABLE_PART)
            return Decision.DOWN_ALL if is_unstable else Decision.WAIT
        if self._strategy is Strategy.ARBITER:
            # A minority waits half as long again, so that the majority gets the term if there is one.
            handicap_s = 0.0 if is_majority(own, members) else wait_s / 2
            return self._by_arbiter(now) if stable_s >= wait_s + handicap_s else Decision.WAIT
        return decide(self._strategy, self._quorum, own, members)

    def arbiter_decided(self, granted: bool) -> None:
        """Report whether the term was granted. It is ignored if the view has changed since: then it is asked again.

        Don't report that nobody could be asked: without an answer nobody is downed.
        """
        if self._asked_s is not None:
            self._is_granted = granted

    def _note(self, own: int, members: Sequence[ViewMember], now: float) -> None:
        """Compare the view with the last one, and set the clocks."""
        view = {m.uid: (m.reachable or m.uid == own, _is_voting(m)) for m in _present(members)}
        has_paused = self._observed_s is not None and now - self._observed_s > LONGEST_GAP_S
        if has_paused or self._observed_s is None or view != self._view:
            self._stable_since_s = now
            self._asked_s = self._is_granted = None
        lost = {uid for uid, (reachable, _) in view.items() if not reachable}
        if not lost:
            self._split_since_s = None
        elif has_paused or self._split_since_s is None:
            self._split_since_s = now
            self._has_flapped = False
        elif any(not reachable and view.get(uid, (False,))[0] for uid, (reachable, _) in self._view.items()):
            self._has_flapped = True
        self._view = view
        self._observed_s = now

    def _by_arbiter(self, now: float) -> Decision:
        if self._is_granted is not None:
            return Decision.DOWN_UNREACHABLE if self._is_granted else Decision.DOWN_SELF
        if self._asked_s is not None and now - self._asked_s < ASK_AGAIN_S:
            return Decision.WAIT
        self._asked_s = now
        return Decision.ASK_ARBITER


def _is_voting(member: ViewMember) -> bool:
    return member.votes and member.state in _VOTING


def _rank(member: ViewMember) -> tuple[str, int]:
    return member.address, member.uid


def _present(members: Sequence[ViewMember]) -> list[ViewMember]:
    return [member for member in members if member.state in _PRESENT]


def _sides(own: int, members: Sequence[ViewMember]) -> tuple[list[ViewMember], list[ViewMember]]:
    """Return the members that this node reaches, itself among them, and the others."""
    here: list[ViewMember] = []
    there: list[ViewMember] = []
    for member in _present(members):
        (here if member.reachable or member.uid == own else there).append(member)
    return here, there


def _outnumbers(here: Sequence[ViewMember], there: Sequence[ViewMember]) -> bool:
    if len(here) != len(there):
        return len(here) > len(there)
    return bool(here) and min(map(_rank, here)) < min(map(_rank, there))


def _voting(members: Sequence[ViewMember]) -> list[ViewMember]:
    return [member for member in members if _is_voting(member)]


def _certain(members: Sequence[ViewMember]) -> list[ViewMember]:
    """Return the members of this side that vote for the other side too, whatever that has seen."""
    return [member for member in members if member.votes and member.state is MemberState.UP]


def _keep_majority(here: Sequence[ViewMember], there: Sequence[ViewMember]) -> bool:
    """Whether this side has the majority, even with the fewest votes here and the most there."""
    return _outnumbers(_certain(here), [member for member in there if member.votes])


def _checked(quorum: int | None) -> int:
    if quorum is None or quorum < 1:
        raise ValueError(
            f"quorum is {quorum}; static_quorum needs the number of voting members of a side, at least 1"
        )
    return quorum


def _static_quorum(quorum: int, here: Sequence[ViewMember], there: Sequence[ViewMember]) -> Decision:
    if len(_voting(here)) + len(_voting(there)) >= 2 * quorum:
        return Decision.DOWN_ALL
    return Decision.DOWN_UNREACHABLE if len(_certain(here)) >= quorum else Decision.DOWN_SELF


def _keep_oldest(here: Sequence[ViewMember], there: Sequence[ViewMember]) -> bool:
    """Whether this side has the oldest or has left it alone; also if LEAVING members are gone and JOINING ones UP."""
    if not _certain(here) or not _has_oldest(_voting(here), _voting(there)):
        return False
    return _has_oldest([m for m in here if _may_stay(m)], [m for m in there if _may_stay(m)])


def _may_stay(member: ViewMember) -> bool:
    return member.votes and member.state is not MemberState.LEAVING


def _has_oldest(here: Sequence[ViewMember], there: Sequence[ViewMember]) -> bool:
    """Whether the oldest is here and not alone, or alone there. With one member on each side it is kept."""
    if not here or not there:
        return bool(here)
    if min(map(_age, here)) < min(map(_age, there)):
        return len(here) > 1 or len(there) == 1
    return len(there) == 1 and len(here) > 1


def _age(member: ViewMember) -> tuple[bool, int, str, int]:
    """Order members from the oldest; a JOINING one has no number yet, and is younger than all that do."""
    return member.state is MemberState.JOINING, member.up_number, *_rank(member)
