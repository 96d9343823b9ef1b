"""Failure detection: which members answer, as this node sees it.

Members stand on a ring, by a hash of their uids. Each node sends heartbeats to its successors only, so its traffic
does not grow with the cluster. A peer whose silence is too unlikely (:mod:`.phi`) is a suspect. Before it is marked,
other nodes that monitor it too are asked, its witnesses: a path that is bad from here only marks nobody.

A node whose own loop has stalled can't tell its own silence from others'. So for two heartbeat intervals it decides
nothing, and witnesses nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from hashlib import blake2b
from typing import Final

from attrs import define, field, frozen, validators

from kinmqtt_akka_like_cluster.pure.phi import HIGHEST_PHI, Intervals, deviations

LONGEST_TICK_S: Final = 1.0
"""The time between two ticks with slow heartbeats, in seconds. See also :data:`~.downing.LONGEST_GAP_S`."""


@frozen(slots=True)
class DetectorSettings:
    """Settings of a detector. Raises :class:`ValueError` for a value out of its range.

    :meth:`Detector.tick` is meant to be called each :attr:`tick_s` seconds, a quarter of the interval of heartbeats
    or more often, and at least once in ``heartbeat_s``.
    """

    heartbeat_s: float = field(default=1.0, validator=validators.gt(0))
    """The interval of heartbeats to a monitored peer, in seconds."""
    pause_s: float = field(default=2.0, validator=validators.gt(0))
    """The acceptable silence beyond the usual interval, and how long witnesses have time to answer, in seconds."""
    threshold: float = field(default=8.0, validator=[validators.gt(0), validators.lt(HIGHEST_PHI)])
    """The phi from which on a peer is a suspect: at 8, one normally distributed interval in 10⁸ is as long."""
    ring: int = field(default=9, validator=validators.ge(1))
    """How many reachable successors a node monitors."""
    witnesses: int = field(default=3, validator=validators.ge(0))
    """How many nodes are asked about a suspect at a time; 0 marks without asking."""

    @property
    def tick_s(self) -> float:
        """How often to call :meth:`Detector.tick`, in seconds; as often as downing wants to see the members."""
        return min(self.heartbeat_s / 4, LONGEST_TICK_S)

    @property
    def stall_s(self) -> float:
        """The time between two ticks, in seconds, beyond which this node has stalled: by half the pause."""
        return self.tick_s + self.pause_s / 2

    @property
    def quiet_s(self) -> float:
        """How long nothing is decided after a stall, in seconds."""
        return 2 * self.heartbeat_s

    @property
    def recent_s(self) -> float:
        """How old an answer may be for a witness to call a peer alive, in seconds.

        With a pause of a heartbeat or more it is less than the silence of any suspect: so a witness does not go on
        to call a peer alive that has crashed.
        """
        return self.heartbeat_s + self.pause_s / 2


@frozen(slots=True)
class Beat:
    """Send a heartbeat to the member with this uid, and report its answer by :meth:`Detector.heard`."""

    to: int


@frozen(slots=True)
class Ask:
    """Ask a member for its :meth:`Detector.is_alive` of another, and report the answer by :meth:`Detector.witnessed`.

    A witness that does not know (``None``) need not answer.
    """

    witness: int
    about: int


@frozen(slots=True)
class Marked:
    """This node's view of a member has changed: it has become unreachable, or reachable again."""

    uid: int
    reachable: bool


@define(slots=True, eq=False)
class _Question:
    """A suspect, and the answers of its witnesses: ``None`` until one has come."""

    answers: dict[int, bool | None]
    asked_s: float


@define(slots=True, eq=False)
class _Peer:
    """A monitored member."""

    intervals: Intervals
    answered_s: float
    """When the last answer came; at first, when monitoring began."""
    suspect_s: float
    """The time at which the silence makes it a suspect."""
    beat_s: float
    """When the next heartbeat is due."""
    has_answered: bool = False
    is_regular: bool = False
    """The next answer ends an interval that counts: nothing but the peer and the network has determined it."""
    is_marked: bool = False
    rounds: int = 0
    """How often witnesses were asked about it."""
    question: _Question | None = None


class Detector:
    """Decides which members are unreachable from here. ``now`` is a monotonic time in seconds in all calls."""

    def __init__(self, own: int, settings: DetectorSettings) -> None:
        """``own`` is this node's uid."""
        self._own = own
        self._settings = settings
        self._sigmas = deviations(settings.threshold)
        self._ring: list[int] = [own]
        """All watched members and this node, in the ring's order."""
        self._places: dict[int, int] = {own: 0}
        self._peers: dict[int, _Peer] = {}
        self._ticked_s: float | None = None
        self._quiet_until_s = float("-inf")

    def watch(self, uids: Collection[int], now: float) -> None:
        """Set the members: all that are neither DOWN nor REMOVED. This node may be among them.

        A member that is missing from now on is forgotten, and is not marked any more.
        """
        if self._ticked_s is None:
            self._ticked_s = now
        if self._places.keys() == {*uids, self._own}:
            return
        self._ring = sorted({*uids, self._own}, key=_ring_place)
        self._places = {uid: place for place, uid in enumerate(self._ring)}
        self._choose_peers(now)

    @property
    def monitored(self) -> tuple[int, ...]:
        """The members that this node sends heartbeats to, in the ring's order.

        These are its successors up to the ``ring``-th that is not marked, so that a failure of many neighbours hides
        nobody; and members that it has marked, until they answer or are not watched any more.
        """
        return tuple(self._peers)

    def heard(self, uid: int, now: float) -> None:
        """Note that a heartbeat was answered. A member that is not monitored is ignored."""
        self._notice_stall(now)
        peer = self._peers.get(uid)
        if peer is None:
            return
        # The answer that ends a suspicion ends no usual interval: it would hide the next failure for long.
        if peer.is_regular and now < peer.suspect_s:
            peer.intervals.add(now - peer.answered_s)
        peer.answered_s = now
        peer.suspect_s = now + peer.intervals.longest_silence_s(self._sigmas)
        peer.has_answered = peer.is_regular = True
        peer.question = None

    def tick(self, now: float) -> list[Beat | Ask | Marked]:
        """Return what is due: heartbeats, questions, and changes of the view. Call it often: see the settings."""
        self._notice_stall(now)
        self._ticked_s = now
        effects: list[Beat | Ask | Marked] = list(self._beats(now))
        if now < self._quiet_until_s:
            return effects
        marks: list[Marked] = []
        for uid, peer in self._peers.items():
            is_suspect = now >= peer.suspect_s
            if is_suspect != peer.is_marked:
                questions = self._questions(uid, peer, now) if is_suspect else []
                effects += questions
                if not questions and peer.question is None:
                    peer.is_marked = is_suspect
                    marks.append(Marked(uid, not is_suspect))
        if marks:
            self._choose_peers(now)
        return effects + marks

    def witnessed(self, about: int, by: int, is_alive: bool, now: float) -> None:
        """Note a witness's answer; the next tick acts on it. One that was not asked for or is late is ignored."""
        peer = self._peers.get(about)
        if peer is not None and peer.question is not None and by in peer.question.answers:
            peer.question.answers[by] = is_alive

    def is_alive(self, uid: int, now: float) -> bool | None:
        """Answer as a witness: has the member answered this node recently?

        ``None`` if this node can't know: it does not monitor it, had no answer from it yet, or has stalled.
        """
        peer = self._peers.get(uid)
        if peer is None or not peer.has_answered or now < self._quiet_until_s or self._has_stalled(now):
            return None
        return now - peer.answered_s <= self._settings.recent_s

    def is_marked(self, uid: int) -> bool:
        """Tell whether this node has marked a member as unreachable."""
        return uid in self._peers and self._peers[uid].is_marked

    def phi(self, uid: int, now: float) -> float:
        """Return the suspicion of a member, from 0 to 300; 0 if this node does not monitor it."""
        peer = self._peers.get(uid)
        return 0.0 if peer is None else peer.intervals.phi(now - peer.answered_s)

    def _has_stalled(self, now: float) -> bool:
        return self._ticked_s is not None and now - self._ticked_s > self._settings.stall_s

    def _notice_stall(self, now: float) -> None:
        """Forget what a stall of this node has made of intervals and questions, and decide nothing for a while."""
        if not self._has_stalled(now):
            return
        self._quiet_until_s = now + self._settings.quiet_s
        for peer in self._peers.values():
            peer.is_regular = False
            peer.question = None

    def _beats(self, now: float) -> Iterator[Beat]:
        """Yield the heartbeats that are due. After a stall a peer gets one, not all that were left out."""
        interval_s = self._settings.heartbeat_s
        for uid, peer in self._peers.items():
            if now >= peer.beat_s:
                peer.beat_s = max(peer.beat_s, now - interval_s / 2) + interval_s
                yield Beat(uid)

    def _questions(self, suspect: int, peer: _Peer, now: float) -> list[Ask]:
        """Return what to ask about a suspect now. It is to be marked when this leaves no question open."""
        question = peer.question
        if question is None or self._is_to_repeat(question, now):
            witnesses = self._witnesses(suspect, peer.rounds, now)
            peer.question = _Question(dict.fromkeys(witnesses), now) if witnesses else None
            peer.rounds += 1
            return [Ask(witness, suspect) for witness in witnesses]
        if self._is_confirmed(question, now):
            peer.question = None
        return []

    def _is_to_repeat(self, question: _Question, now: float) -> bool:
        return True in question.answers.values() and now - question.asked_s >= self._settings.heartbeat_s

    def _is_confirmed(self, question: _Question, now: float) -> bool:
        """Whether no witness calls the suspect alive: all have answered, or their time is over."""
        if True in question.answers.values():
            return False
        return None not in question.answers.values() or now - question.asked_s >= self._settings.pause_s

    def _witnesses(self, suspect: int, rounds: int, now: float) -> list[int]:
        """Return whom to ask: others that monitor the suspect, others in each round, and silent ones last."""
        place = self._places[suspect]
        count = min(self._settings.ring, len(self._ring) - 1)
        others = [uid for back in range(1, count + 1) if (uid := self._ring[place - back]) != self._own]
        silent, heard = [], []
        for uid in others:
            peer = self._peers.get(uid)
            if peer is None or now - peer.answered_s <= self._settings.recent_s:
                heard.append(uid)
            elif not peer.is_marked:
                silent.append(uid)
        first = rounds * self._settings.witnesses % len(heard) if heard else 0
        return (heard[first:] + heard[:first] + silent)[: self._settings.witnesses]

    def _choose_peers(self, now: float) -> None:
        """Choose whom to monitor, and keep what is known of those that stay."""
        chosen: dict[int, _Peer] = {}
        place = self._places[self._own]
        unmarked = 0
        for uid in self._ring[place + 1 :] + self._ring[:place]:
            peer = self._peers.get(uid)
            is_marked = peer is not None and peer.is_marked
            if unmarked < self._settings.ring or is_marked:
                chosen[uid] = peer or self._new_peer(now)
                unmarked += not is_marked
        self._peers = chosen

    def _new_peer(self, now: float) -> _Peer:
        intervals = Intervals(self._settings.heartbeat_s, self._settings.pause_s)
        return _Peer(
            intervals=intervals,
            answered_s=now,
            suspect_s=now + intervals.longest_silence_s(self._sigmas),
            beat_s=now,
        )


def _ring_place(uid: int) -> tuple[bytes, int]:
    """Return a member's place on the ring, the same on all nodes."""
    return blake2b(str(uid).encode(), digest_size=8).digest(), uid
