"""What is read back from a log: the same answers as before, whatever was written, and when it was told anew."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, TypeAlias

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kinmqtt.builtins.embedded import image, stores
from kinmqtt.builtins.embedded.image import Image, everything
from kinmqtt.builtins.embedded.records import CommitGroup, pack, unpack
from kinmqtt.builtins.embedded.stores import Ledger
from kinmqtt_spi.errors import Fenced
from kinmqtt_spi.memory.plugin import NODE, BareContext
from kinmqtt_spi.properties import Properties
from kinmqtt_spi.services.event import Event, EventKind, EventVersion, Recorded
from kinmqtt_spi.services.queue import (
    Append,
    Entry,
    InboundClose,
    InboundOpen,
    Purge,
    QueueWrite,
    Release,
    Remove,
    Requeue,
    Send,
    Stage,
)
from kinmqtt_spi.services.retain import RetainVersion, RetainWrite
from kinmqtt_spi.services.session import (
    ClearWill,
    DiscardSession,
    OpenSession,
    ReleaseSession,
    RemoveSubscriptions,
    ResumeSession,
    SaveSubscriptions,
    StoredSession,
)
from kinmqtt_spi.values import Message, MessageId, Publisher, Subscription, Will
from spi_harness.examples import examples

Step: TypeAlias = tuple[str, str, int]
"""What is done, of which client, and a number that says how."""

MESSAGES = [
    Message("a/b", b"1", 1, publisher=Publisher("p", "user"), id=MessageId(7, 1), received_at=1.5),
    Message("ä", b"", 2, True, Properties(content_type="x", user_property=(("k", "v"),))),
    Message("a", b"x" * 60, 1, expires_at=9.0),
]
SUBSCRIPTIONS = (
    Subscription("a/#", 1),
    Subscription("a/#", 2, share_group="g", identifier=4),
    Subscription("+", 0, no_local=True, retain_as_published=True, retain_handling=2),
)
STEPS = (
    *("open", "resume", "save", "unsubscribe", "clear_will", "release", "discard"),
    *("append", "append", "append", "send", "send", "pubrec", "remove", "requeue", "inbound_open"),
    *("inbound_pending", "inbound_close"),
    *("purge", "retain", "retain", "event"),
)
REFUSED = ("fenced", "repeated", "outdated")
"""Steps that a store turns down: an older owner's, one that was taken before, and an older retained message."""


class Life:
    """A ledger, and a broker's way of using it: who writes has claimed the client id in this life."""

    def __init__(self, ledger: Ledger, log: list[bytes]) -> None:
        self.ledger = ledger
        self.log = log
        self.epochs: dict[str, int] = {}
        self.sequences: dict[str, int] = {}
        self.count = 100 * len(log)
        """Versions of retained messages go up, from one life to the next too."""
        ledger.append = log.append

    def turn(self, steps: Sequence[Step]) -> None:
        """All of this is one group, unless a client id is claimed on the way."""
        for sort, who, number in steps:
            getattr(self, sort)(who, number)
        self.commit()

    def commit(self) -> None:
        """What was gathered is kept."""
        try:
            self.ledger.sessions.commit()
        except Fenced:
            pass

    def epoch(self, who: str) -> int:
        """The epoch under which the client is owned; it is claimed for that where need be."""
        if who not in self.epochs:
            self.resume(who, 0)
        return self.epochs[who]

    def claim(self, who: str) -> int:
        """A new epoch; what was written under the old one is in before, as the broker sees to."""
        self.commit()
        self.epochs[who] = self.ledger.sessions.claim(who, NODE).epoch
        return self.epochs[who]

    def session(self, *writes: Any) -> None:
        self.ledger.sessions.apply(writes)

    def queue(self, *writes: QueueWrite) -> None:
        self.ledger.queues.apply(writes)

    def open(self, who: str, number: int) -> None:
        will = Will(MESSAGES[number % 3], number) if number % 2 else None
        stored = StoredSession(who, number, SUBSCRIPTIONS[: number % 4], will, 2.5, "user", 5)
        self.session(OpenSession(self.claim(who), stored))

    def resume(self, who: str, number: int) -> None:
        will = Will(MESSAGES[number % 3], number) if number % 2 else None
        self.session(ResumeSession(who, self.claim(who), number, will, None, 4))

    def save(self, who: str, number: int) -> None:
        self.session(SaveSubscriptions(who, self.epoch(who), SUBSCRIPTIONS[number % 4 :]))

    def unsubscribe(self, who: str, number: int) -> None:
        self.session(RemoveSubscriptions(who, self.epoch(who), (SUBSCRIPTIONS[number % 3].full_filter,)))

    def clear_will(self, who: str, number: int) -> None:
        self.session(ClearWill(who, self.epoch(who)))

    def release(self, who: str, number: int) -> None:
        self.session(ReleaseSession(who, self.epoch(who), number or None, 4.5 if number % 2 else None))

    def discard(self, who: str, number: int) -> None:
        self.purge(who, number)
        self.session(DiscardSession(who, self.epoch(who)))
        del self.epochs[who]

    def append(self, who: str, number: int) -> None:
        self.sequences[who] = sequence = self.sequences.get(who, 0) + 1 + number % 2
        self.queue(Append(who, self.epoch(who), self.entry(sequence, number), number + 1 if number < 3 else None))

    def entry(self, sequence: int, number: int) -> Entry:
        return Entry(
            sequence, MESSAGES[number % 3], 1 + number % 2, number > 4, (number,), "$share/g/a" if number else None
        )

    def some(self, who: str, number: int) -> int:
        """The number of an entry, if there is such a one."""
        return max(0, self.sequences.get(who, 0) - number)

    def send(self, who: str, number: int) -> None:
        sequence = self.some(who, number)
        self.queue(Send(who, self.epoch(who), sequence, 100 + sequence))

    def pubrec(self, who: str, number: int) -> None:
        self.queue(Release(who, self.epoch(who), self.some(who, number)))

    def remove(self, who: str, number: int) -> None:
        self.queue(Remove(who, self.epoch(who), self.some(who, number)))

    def requeue(self, who: str, number: int) -> None:
        self.queue(Requeue(who, self.epoch(who)))

    def inbound_open(self, who: str, number: int) -> None:
        self.queue(InboundOpen(who, self.epoch(who), number + 1))

    def inbound_pending(self, who: str, number: int) -> None:
        self.queue(InboundOpen(who, self.epoch(who), number + 1, MessageId(2**64 - 1, self.count)))

    def inbound_close(self, who: str, number: int) -> None:
        self.queue(InboundClose(who, self.epoch(who), number + 1))

    def purge(self, who: str, number: int) -> None:
        self.queue(Purge(who, self.epoch(who)))
        self.sequences[who] = 0

    def retain(self, who: str, number: int) -> None:
        self.count += 1
        payload = b"" if number > 6 else b"r" * (10 * number + 1)
        message = Message(f"{who}/{number % 3}", payload, retain=True)
        self.ledger.retained.put([RetainWrite(message, RetainVersion(9.0, 1, self.count))])

    def event(self, who: str, number: int) -> None:
        self.count += 1
        version = EventVersion(number, self.count)
        self.ledger.events.append([Event(EventKind.CONNECT, who, version, 1.5, {"n": number})] * (number % 3))

    def fenced(self, who: str, number: int) -> None:
        older = self.epoch(who) - 1
        self.session((OpenSession(older, StoredSession(who, 1)), DiscardSession(who, older))[number % 2])
        queue = (
            Append(who, older, self.entry(self.some(who, 0) + 1, 1)),
            Purge(who, older),
            InboundOpen(who, older, 9),
        )
        self.queue(queue[number % 3])

    def repeated(self, who: str, number: int) -> None:
        self.queue(Append(who, self.epoch(who), self.entry(self.some(who, number), number), number or None))

    def outdated(self, who: str, number: int) -> None:
        message = Message(f"{who}/{number % 3}", b"old", retain=True)
        self.ledger.retained.put([RetainWrite(message, RetainVersion(1.0, 1, number))])


def turns(steps: Sequence[str] = STEPS, most: int = 12) -> st.SearchStrategy[list[list[Step]]]:
    """Turns of a few clients."""
    step = st.tuples(st.sampled_from(steps), st.sampled_from("abc"), st.integers(0, 9))
    return st.lists(st.lists(step, min_size=1, max_size=6), max_size=most)


def life(log: list[bytes] | None = None, groups: Sequence[bytes] = ()) -> Life:
    """A ledger that begins with what these groups say, and goes on in this log."""
    whole = Image()
    for data in groups:
        whole.take(data)
    ledger = Ledger(BareContext())
    ledger.restore(whole)
    return Life(ledger, [] if log is None else log)


def answers(ledger: Ledger) -> dict[str, Any]:
    """All that the stores say of what they hold.

    Left out is the last number of a queue, which tests of its own ask for.
    """
    queues, clients = ledger.queues, "abc"
    loaded = [queues.load(who) for who in clients]
    return {
        "sessions": {stored.client_id: (epoch, stored) for epoch, stored in ledger.sessions.iterate().sessions},
        "count": ledger.sessions.count(),
        "inflight": [state.inflight for state in loaded],
        "inbound": [state.inbound for state in loaded],
        "pending": [dict(state.pending) for state in loaded],
        "queued": [queues.read(who, 0, 1000) for who in clients],
        "sizes": [queues.sizes(who) for who in clients],
        "totals": queues.totals(),
        "retained": {write.message.topic: write for write in ledger.retained.iterate().writes},
        "deletions": {write.message.topic: write.version for write in ledger.retained.deletions().writes},
        "retained_bytes": (ledger.retained.count(), ledger.retained.size_bytes()),
        "events": ledger.events.all(),
        "newest": ledger.events.newest,
        "committed": dict(ledger.events.commits()),
    }


@pytest.fixture(scope="module", autouse=True)
def small_slices() -> Iterator[None]:
    """A few clients are enough for many slices."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(image, "SLICE_BYTES", 250)
        patch.setattr(image, "_PAGE", 2)
        yield


@given(turns((*STEPS, *REFUSED)))
@settings(max_examples=examples(200), deadline=None)
def test_a_log_that_is_read_again_gives_the_same_answers(steps: list[list[Step]]) -> None:
    """Whatever the turns have written, refused writes among it, the stores say the same after a restart."""
    before = life()
    for each in steps:
        before.turn(each)

    after = life(groups=before.log)

    assert answers(after.ledger) == answers(before.ledger)


@given(st.lists(turns(most=5), min_size=2, max_size=3))
@example([[[("append", "a", 0)] * 2 + [("purge", "a", 0), ("append", "a", 0)]], [[("append", "a", 0)]]])
@settings(max_examples=examples(100), deadline=None)
def test_a_log_of_several_lives_gives_the_same_answers(lives: list[list[list[Step]]]) -> None:
    """What a broker writes after a restart goes on from what it has read, and is read again with it."""
    log: list[bytes] = []
    sequences: dict[str, int] = {}
    for steps in lives:
        current = life(log, list(log))
        current.sequences = sequences
        for each in steps:
            current.turn(each)

    after = life(groups=log)

    assert answers(after.ledger) == answers(current.ledger)


@given(turns(), turns(), turns(most=3))
@settings(max_examples=examples(200), deadline=None)
def test_what_is_told_anew_gives_the_same_answers(
    before: list[list[Step]], between: list[list[Step]], behind: list[list[Step]]
) -> None:
    """The slices alone, with what was written between and behind them, say what the whole log says."""
    current = life()
    for each in before:
        current.turn(each)
    first = len(current.log)

    left = iter(between)
    for group in told_anew(current.ledger):
        current.log.append(pack(group))
        current.turn(next(left, []))
    for each in (*left, *behind):
        current.turn(each)

    assert answers(life(groups=current.log[first:]).ledger) == answers(current.ledger)
    assert answers(life(groups=current.log).ledger) == answers(current.ledger)


@given(turns(), turns(), st.integers(0, 5))
@settings(max_examples=examples(60), deadline=None)
def test_slices_that_break_off_do_no_harm(before: list[list[Step]], between: list[list[Step]], told: int) -> None:
    """A process that ends while everything is told anew leaves a log that says the same as without the slices."""
    current = life()
    for each in before:
        current.turn(each)

    left = iter(between)
    for group in islice(told_anew(current.ledger), told):
        current.log.append(pack(group))
        current.turn(next(left, []))

    assert answers(life(groups=current.log).ledger) == answers(current.ledger)


def told_anew(ledger: Ledger, most: int = 1000) -> Iterator[CommitGroup]:
    """Everything in slices, as the plugin tells it; raises where that has no end."""
    yield ledger.standing()
    for number, group in enumerate(everything(ledger.sessions, ledger.queues, ledger.retained)):
        assert number < most, "the slices have no end"
        yield group


def test_a_slice_holds_about_as_much_as_it_should() -> None:
    """Telling everything anew never holds up the broker for more than one slice, however much there is."""
    current = life()
    current.turn([("open", who, 3) for who in "abc"])
    current.turn([("append", who, 5) for who in "abc" for _ in range(20)])
    current.turn([("retain", who, number) for who in "abc" for number in range(3)])

    sizes = [len(pack(group)) for group in told_anew(current.ledger)]

    assert len(sizes) > 10
    assert max(sizes) < 2 * 250 + 500


def test_nothing_is_told_of_empty_stores() -> None:
    """A store that holds nothing costs no slice."""
    ledger = life().ledger

    assert list(everything(ledger.sessions, ledger.queues, ledger.retained)) == []


def test_retained_messages_under_very_many_levels_are_told_in_many_slices() -> None:
    """Levels where nothing is retained hold the broker up for no longer than a slice, and the telling ends."""
    current = life()
    topic = "/" * 5000
    current.ledger.retained.put([RetainWrite(Message(topic, b"x", retain=True), RetainVersion(1.0, 0, 0))])
    current.turn([])

    groups = list(told_anew(current.ledger))

    assert sum(not group for group in groups) >= 4
    assert [write.message.topic for group in groups for write in group.retain] == [topic]


def test_many_inbound_identifiers_are_told_within_few_slices() -> None:
    """A client with thousands of open QoS 2 identifiers and no entries is told of once, and the telling ends."""
    current = life()
    current.turn([("resume", "a", 0)])
    current.ledger.queues.apply([InboundOpen("a", 1, number) for number in range(1, 200)])
    current.turn([])

    groups = [pack(group) for group in told_anew(current.ledger, most=300)]

    assert life(groups=groups).ledger.queues.load("a").inbound == set(range(1, 200))


def test_an_older_owner_is_left_out_when_the_log_is_read() -> None:
    """A write that was refused when it was made is refused when it is read."""
    before = life()
    before.turn([("open", "a", 2), ("resume", "a", 1), ("append", "a", 4)])

    before.turn([("fenced", "a", number) for number in range(6)])

    after = life(groups=before.log).ledger
    assert [stored.expiry_s for _, stored in after.sessions.iterate().sessions] == [1]
    assert [each.sequence for each in after.queues.read("a", 0, 10)] == [1]


def test_a_released_entry_keeps_its_packet_identifier() -> None:
    """Of a message for which PUBREC was seen the identifier comes back, at its stage, and nothing of the message."""
    before = life()
    before.turn([("append", "a", 1), ("append", "a", 5), ("pubrec", "a", 2)])

    for log in (before.log, [pack(group) for group in told_anew(before.ledger)]):
        [released] = life(groups=log).ledger.queues.load("a").inflight

        assert (released.packet_id, released.stage, released.entry) == (2, Stage.RELEASED, None)


def test_what_is_in_flight_comes_back_in_the_order_of_sending() -> None:
    """Resending goes by the order of sending after a restart too, whatever the numbers are (MQTT-4.6.0-1)."""
    before = life()
    before.turn([("append", "a", 4)] * 5)
    epoch = before.epoch("a")
    before.queue(*(Send("a", epoch, sequence, 10 + sequence) for sequence in (4, 2, 1, 5)), Release("a", epoch, 2))
    before.commit()
    slices = [pack(group) for group in told_anew(before.ledger)]

    for log in (before.log, slices, before.log + slices, before.log + slices[:-1]):
        inflight = life(groups=log).ledger.queues.load("a").inflight

        assert [(each.sequence, each.packet_id) for each in inflight] == [(4, 14), (2, 12), (1, 11), (5, 15)]


def test_messages_shared_by_queues_are_shared_again() -> None:
    """A message that waits for many clients takes its memory once after a restart, too."""
    before = life()
    before.turn([("resume", who, 0) for who in "abc"])
    before.turn([("append", who, 5) for who in "abc"])

    after = life(groups=before.log).ledger.queues

    messages = {id(after.read(who, 0, 1)[0].message) for who in "abc"}
    assert len(messages) == len({id(before.ledger.queues.read(who, 0, 1)[0].message) for who in "abc"})


def test_only_the_newest_events_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that is read for years of events holds as many as the stores would, and counts on from the last."""
    monkeypatch.setattr(image, "EVENTS", 5)
    monkeypatch.setattr(stores, "EVENTS", 5)
    before = life()
    for _ in range(12):
        before.turn([("event", "a", 2)])

    after = life(groups=before.log).ledger

    assert [each.offset for each in after.events.all()] == [19, 20, 21, 22, 23]
    assert after.events.all() == before.ledger.events.all()
    assert after.events.newest == 23


@pytest.mark.parametrize("length", [0, 1000, 20_000])
def test_events_that_come_back_take_no_more_than_they_may(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that was told of very many long events is read without having all of them in memory at any time."""
    monkeypatch.setattr(image, "EVENTS_BYTES", 10_000)
    monkeypatch.setattr(stores, "EVENTS_BYTES", 10_000)
    several = [
        Recorded(number, Event(EventKind.SUBSCRIBE, "c", EventVersion(1, number), 1.5, {"filter": "x" * length}))
        for number in range(200)
    ]
    read = Image()
    most = 0
    for first in range(0, 200, 5):
        read.take(pack(CommitGroup(events=several[first : first + 5])))
        most = max(most, read._events_bytes)

    newest = read.events

    assert newest == several[-len(newest) :]
    assert len(newest) == max(1, 10_000 // several[0].event.size_bytes)
    assert most <= 20_000 + 5 * several[0].event.size_bytes
    assert read._events_bytes == sum(each.event.size_bytes for each in read._events.values())


def test_events_that_groups_hold_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are, from the log and from a snapshot; when the group has them only the newest do."""
    for module in (image, stores):
        monkeypatch.setattr(module, "EVENTS", 5)
    monkeypatch.setattr(stores, "EVENTS_IN_SLICE", 4)
    before = life()
    before.ledger.events.hold("g")
    for _ in range(12):
        before.turn([("event", "a", 2)])

    groups = [before.ledger.standing(), *before.ledger.held_events()]
    after = life(groups=before.log).ledger
    anew = life(groups=[pack(group) for group in groups]).ledger

    assert [len(group.events) for group in groups] == [5, 4, 4, 4, 4, 3]
    assert after.events.all() == anew.events.all() == before.ledger.events.all()
    assert len(after.events.all()) == 24
    assert after.events.held() == anew.events.held() == ("g",)

    before.ledger.events._group_commits("g", 23)
    before.turn([("event", "a", 1)])
    last = life(groups=before.log).ledger

    assert [each.offset for each in last.events.all()] == [20, 21, 22, 23, 24]


def test_a_group_that_is_held_no_more_is_written_down() -> None:
    """After the next start its events are not held."""
    before = life()
    before.ledger.events.hold("g")
    before.turn([("event", "a", 1)])
    between = life(groups=before.log)

    assert between.ledger.events.forget_unheld() == ["g"]
    between.turn([("event", "a", 1)])

    assert life(groups=[*before.log, *between.log]).ledger.events.held() == ()


def test_a_group_that_is_held_before_the_log_is_read_goes_on() -> None:
    """A plugin may hold and consume before the store has started: nothing comes again, and nothing is skipped."""
    before = life()
    before.ledger.events.hold("g")
    before.turn([("event", "a", 2), ("event", "b", 2)])
    before.ledger.events._group_commits("g", 1)
    before.turn([("event", "a", 2)])
    context = BareContext()
    early = Ledger(context)
    handled: list[int] = []
    early.events.hold("g")
    early.events.consume("g", lambda batch: handled.extend(each.offset for each in batch))
    context.clock.advance()
    read = Image()
    for group in before.log:
        read.take(group)

    early.restore(read)
    context.clock.advance()

    assert handled == [2, 3, 4, 5]
    assert early.gathered.offsets == {"g": 5}


def test_a_damaged_group_raises() -> None:
    """Bytes that are no group are not taken in silence."""
    with pytest.raises((ValueError, EOFError, TypeError)):
        Image().take(b"\0")


@pytest.mark.parametrize("drained", ["all", "the last"])
def test_what_is_queued_after_a_restart_survives_the_next(drained: str) -> None:
    """An owner that counts on from what the store tells it after a restart loses nothing at the next one."""
    first = life()
    first.turn([("open", "a", 2), ("append", "a", 4), ("append", "a", 4), ("append", "a", 4)])
    first.turn([("remove", "a", number) for number in range(3 if drained == "all" else 2)])
    second = life(first.log, list(first.log))
    second.sequences["a"] = second.ledger.queues.load("a").last_sequence

    second.turn([("resume", "a", 2), ("append", "a", 4)])

    third = life(groups=second.log)
    assert third.ledger.queues.read("a", 0, 10) == second.ledger.queues.read("a", 0, 10)
    assert third.ledger.queues.sizes("a").queued == (1 if drained == "all" else 2)


def test_a_queue_counts_on_after_a_restart() -> None:
    """The highest number ever given is told to a new owner, though its entry is gone."""
    before = life()
    before.turn([("append", "a", 4), ("append", "a", 4), ("remove", "a", 0)])

    after = life(groups=before.log).ledger

    assert after.queues.load("a").last_sequence == before.ledger.queues.load("a").last_sequence == 2


def test_a_write_refused_for_a_claim_is_refused_when_it_is_read() -> None:
    """An owner that lost the client id to a claim ends nothing, before a restart and after it."""
    before = life()
    before.turn([("open", "a", 2)])
    before.ledger.sessions.claim("a", NODE)
    before.ledger.sessions.apply([DiscardSession("a", 1)])
    before.turn([])
    before.ledger.sessions.apply([ResumeSession("a", 2, 9)])
    before.turn([])

    after = life(groups=before.log).ledger

    assert before.ledger.sessions.count() == 1
    assert after.sessions.count() == 1


def test_a_retained_message_put_after_a_restart_survives_the_next() -> None:
    """Where a clock was set back, what the store took after a restart is there after the next one."""
    first = life()
    first.turn([("retain", "a", 3), ("retain", "a", 9)])
    second = life(first.log, list(first.log))

    second.turn([("outdated", "a", 0)])

    third = life(groups=second.log)
    assert third.ledger.retained.count() == second.ledger.retained.count()


def test_deletions_survive_restarts() -> None:
    """Other nodes may have an older message, which must not come back; an older write is refused as before."""
    first = life()
    first.turn([("retain", "a", 9), ("retain", "b", 9), ("retain", "b", 6)])
    second = life(first.log, list(first.log))

    second.turn([("outdated", "a", 0), ("outdated", "b", 0)])

    third = life(groups=second.log).ledger
    assert [write.message.topic for write in third.retained.deletions().writes] == ["a/0"]
    assert [write.message.payload for write in third.retained.iterate().writes] == [b"r" * 61]


def test_what_is_accepted_after_a_deletion_was_forgotten_survives() -> None:
    """The store forgets by number and age, which the log does not have: it holds what was accepted."""
    first = life()
    first.turn([("retain", "a", 9)])
    first.ledger.retained.forget_deletions()

    first.turn([("outdated", "a", 0)])

    assert answers(life(groups=first.log).ledger) == answers(first.ledger)
    assert first.ledger.retained.count() == 1


def test_deletions_are_told_anew() -> None:
    """Once the log is written anew, they are in it."""
    first = life()
    first.turn([("retain", "a", 9), ("retain", "b", 6)])

    groups = [pack(group) for group in told_anew(first.ledger)]

    assert answers(life(groups=groups).ledger)["deletions"] == answers(first.ledger)["deletions"] != {}


def test_an_outdated_slice_undoes_nothing() -> None:
    """A snapshot may have a message that was cleared after it was read, and before it was written."""
    first = life()
    first.turn([("retain", "a", 6)])
    slices = [pack(group) for group in told_anew(first.ledger)]
    first.turn([("retain", "a", 9)])

    after = life(groups=[*first.log, *slices]).ledger

    assert answers(after)["deletions"] == answers(first.ledger)["deletions"] != {}
    assert after.retained.count() == 0


@example(lives=[[[("append", "a", 4)], [("remove", "a", 0)]], [[("append", "a", 4)]]])
@given(st.lists(turns(most=5), min_size=2, max_size=3))
@settings(max_examples=examples(60), deadline=None)
def test_owners_that_count_on_from_what_they_are_told_lose_nothing(lives: list[list[list[Step]]]) -> None:
    """As a broker does: after each restart a queue's numbers go on from those that the store tells of."""
    log: list[bytes] = []
    for steps in lives:
        current = life(log, list(log))
        current.sequences = {who: current.ledger.queues.load(who).last_sequence for who in "abc"}
        for each in steps:
            current.turn(each)

    after = life(groups=log)

    assert answers(after.ledger) == answers(current.ledger)


def test_a_group_says_which_writes_are_its_own() -> None:
    """What one turn has handed over to four stores is one group, and nothing else is in it."""
    current = life()

    current.turn([("open", "a", 1), ("append", "a", 4), ("retain", "a", 1), ("event", "a", 1)])

    [data] = current.log
    group = unpack(data)
    assert [len(part) for part in (group.sessions, group.queue, group.retain, group.events)] == [1, 1, 1, 1]
