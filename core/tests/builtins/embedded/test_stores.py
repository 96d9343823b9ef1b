"""Stores with a log in front of them: what is kept, what is refused, and what a restart may not undo."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from kinmqtt.builtins.embedded import stores
from kinmqtt.builtins.embedded.image import EVENTS_BYTES, Image, everything
from kinmqtt.builtins.embedded.records import CommitGroup, pack, unpack
from kinmqtt.builtins.embedded.stores import Ledger
from kinmqtt_spi.errors import Fenced, ServiceUnavailable
from kinmqtt_spi.memory.plugin import NODE, BareContext
from kinmqtt_spi.services.event import Event, EventKind, EventVersion, Recorded, Start
from kinmqtt_spi.services.queue import Append, Entry, InboundOpen, Purge, QueueSizes
from kinmqtt_spi.services.retain import DELETION_S, RetainVersion, RetainWrite
from kinmqtt_spi.services.session import DiscardSession, OpenSession, ReleaseSession, StoredSession
from kinmqtt_spi.values import Message, Subscription
from spi_harness.examples import examples


def event(number: int = 1) -> Event:
    return Event(EventKind.CONNECT, "c", EventVersion(1, number), 1.5, {"n": number})


def retained(topic: str = "t", payload: bytes = b"x") -> RetainWrite:
    return RetainWrite(Message(topic, payload, retain=True), RetainVersion(1.0, 1, 1))


def opened(client_id: str, epoch: int) -> OpenSession:
    return OpenSession(epoch, StoredSession(client_id, 100))


def appended(client_id: str, epoch: int, sequence: int = 1) -> Append:
    return Append(client_id, epoch, Entry(sequence, Message("t", b"12345"), 1))


def begun(log: list[bytes], context: BareContext | None = None) -> Ledger:
    """A ledger that begins with what this log says, and goes on in it."""
    image = Image()
    for data in log:
        image.take(data)
    ledger = Ledger(BareContext() if context is None else context)
    ledger.restore(image)
    ledger.append = log.append
    return ledger


def hand_over(ledger: Ledger, number: int = 1) -> None:
    """A turn's writes for all four stores; the turn is not over yet."""
    epoch = ledger.sessions.claim("c", NODE).epoch
    ledger.sessions.apply([opened("c", epoch)])
    ledger.queues.apply([appended("c", epoch, number), InboundOpen("c", epoch, number)])
    ledger.retained.put([retained(f"t/{number}")])
    ledger.events.append([event(number)])


def held(ledger: Ledger) -> list[object]:
    """What the stores say they hold."""
    return [
        ledger.sessions.iterate(),
        ledger.queues.load("c"),
        ledger.queues.read("c", 0, 100),
        ledger.queues.totals(),
        ledger.retained.iterate().writes,
        ledger.events.all(),
        ledger.events.newest,
    ]


def outcome(commit: Any) -> list[Any]:
    """What an awaitable comes to: empty until then, and an error in place of what it raises."""
    results: list[Any] = []

    async def wait() -> None:
        await commit

    def note(result: Any) -> None:
        results.append(result.value if isinstance(result, Failure) else result)

    Deferred.fromCoroutine(wait()).addBoth(note)
    return results


def test_a_turn_is_one_group() -> None:
    """What four stores were handed goes to the log at the first commit, and the others have nothing left to do."""
    log: list[bytes] = []
    ledger = begun(log)
    hand_over(ledger)

    family = (ledger.sessions, ledger.queues, ledger.retained, ledger.events)
    commits = [store.commit() for store in family]

    assert commits == [None] * 4
    assert (len(log), ledger.groups) == (1, 1)


def test_nothing_is_seen_before_it_is_kept() -> None:
    """Until its turn's commit, what a store was handed is not in memory either."""
    ledger = begun([])
    before = held(ledger)

    hand_over(ledger)

    assert held(ledger) == before
    ledger.queues.commit()
    assert held(ledger) != before


def test_a_turn_without_writes_costs_nothing() -> None:
    """A commit for which nothing was handed over does not ask the log."""
    log: list[bytes] = []
    ledger = begun(log)
    calls: list[None] = []
    ledger.after = lambda: calls.append(None)

    commit = ledger.commit()

    assert (commit, log, calls) == (None, [], [])


def test_each_group_is_told_of() -> None:
    """Who looks after the log is called once for each group, when memory is as far as the log."""
    ledger = begun([])
    seen: list[int] = []
    ledger.after = lambda: seen.append(ledger.sessions.count())

    hand_over(ledger)
    ledger.commit()

    assert seen == [1]


def test_a_turn_that_the_log_refuses_changes_nothing() -> None:
    """Where a group can't be appended nothing of it is in memory, and nothing of it goes with the next turn."""
    log: list[bytes] = []
    ledger = begun(log)
    hand_over(ledger)
    ledger.commit()
    before = held(ledger)

    def refuse(data: bytes) -> None:
        raise ServiceUnavailable("full")

    ledger.append = refuse
    hand_over(ledger, 2)
    with pytest.raises(ServiceUnavailable):
        ledger.sessions.commit()
    rest = [ledger.queues.commit(), ledger.retained.commit(), ledger.events.commit()]

    assert rest == [None] * 3
    # The claim has raised the epoch, as it must: everything else is as it was.
    assert held(ledger)[1:] == before[1:]
    ledger.append = log.append
    ledger.events.append([event(3)])
    ledger.commit()
    group = unpack(log[-1])
    assert (group.sessions, group.queue, group.retain) == ([], [], [])
    assert group.events == [Recorded(1, event(3))]


def test_a_turn_that_cannot_be_packed_changes_nothing() -> None:
    """An event with a value that can't be kept fails its turn, and the next one is as good as ever."""
    log: list[bytes] = []
    ledger = begun(log)
    before = held(ledger)

    hand_over(ledger)
    ledger.events.append([Event(EventKind.CONNECT, "c", EventVersion(1, 1), 1.5, {"value": object()})])
    with pytest.raises(TypeError):
        ledger.commit()

    assert (held(ledger), log) == (before, [])


def test_a_store_that_is_not_open_refuses() -> None:
    """Writes before the log is open are a mistake of the caller, and not lost in silence."""
    ledger = Ledger(BareContext())
    hand_over(ledger)

    with pytest.raises(RuntimeError, match="before it was open"):
        ledger.commit()


def fenced(ledger: Ledger) -> None:
    """A turn in which two former owners write, one to each store, and two who are owners."""
    for client_id in ("session", "both"):
        ledger.sessions.claim(client_id, NODE)
        ledger.sessions.claim(client_id, NODE)
    ledger.queues.apply([appended("queue", 2), appended("both", 2)])
    ledger.commit()
    ledger.sessions.apply([opened("session", 1), opened("both", 1), opened("fine", 1)])
    ledger.queues.apply([appended("queue", 1, 2), appended("both", 1, 2), appended("fine", 1)])


def test_former_owners_are_named_at_once() -> None:
    """A commit that is kept at once names those whose writes were refused, and keeps the others."""
    ledger = begun([])
    fenced(ledger)

    with pytest.raises(Fenced) as caught:
        ledger.commit()

    assert caught.value.client_ids == {"session", "queue", "both"}
    assert [stored.client_id for _, stored in ledger.sessions.iterate().sessions] == ["fine"]
    assert ledger.queues.totals().queued == 3


def test_former_owners_are_named_when_the_rest_is_kept() -> None:
    """A commit that waits for the disk names those whose writes were refused when the disk has the others."""
    ledger = begun([])
    disk: Deferred[None] = Deferred()
    fenced(ledger)
    ledger.append = lambda data: disk

    results = outcome(ledger.commit())
    early = list(results)
    disk.callback(None)

    assert early == []
    [error] = results
    assert isinstance(error, Fenced)
    assert error.client_ids == {"session", "queue", "both"}


def test_a_disk_that_fails_is_told_of_before_former_owners() -> None:
    """Where nothing of the turn was kept, that is what the turn is told."""
    ledger = begun([])
    disk: Deferred[None] = Deferred()
    fenced(ledger)
    ledger.append = lambda data: disk

    results = outcome(ledger.commit())
    disk.errback(ServiceUnavailable("gone"))

    assert [type(result) for result in results] == [ServiceUnavailable]


@given(st.lists(st.lists(st.sampled_from("abc"), max_size=12), min_size=2, max_size=4))
@settings(max_examples=examples(100), deadline=None)
def test_epochs_of_unknown_clients_never_come_again(lives: list[Sequence[str]]) -> None:
    """A client of whom nothing is stored is claimed, after a restart, above every epoch it may have had."""
    highest: dict[str, int] = {}
    log: list[bytes] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stores, "EPOCHS_AHEAD", 3)
        for claims in lives:
            ledger = begun(log)
            for client_id in claims:
                epoch = ledger.sessions.claim(client_id, NODE).epoch

                assert epoch > highest.get(client_id, 0)
                highest[client_id] = epoch
                ledger.sessions.apply([ReleaseSession(client_id, epoch, None)])
                ledger.commit()


def test_most_claims_need_no_write() -> None:
    """Epochs are set aside in large numbers: thousands of clients that come and go leave one record."""
    log: list[bytes] = []
    ledger = begun(log)

    for number in range(100):
        ledger.sessions.claim(f"c{number}", NODE)
        ledger.commit(all=True)

    assert len(log) == 1
    assert begun(log).sessions.claim("c7", NODE).epoch == stores.EPOCHS_AHEAD + 2


def test_epochs_of_ended_sessions_do_not_come_again() -> None:
    """A session that was stored and has ended is claimed above its last epoch, told anew or not."""
    log: list[bytes] = []
    ledger = begun(log)
    hand_over(ledger)
    ledger.commit()
    epoch = ledger.sessions.claim("c", NODE).epoch
    ledger.sessions.apply([DiscardSession("c", epoch)])
    ledger.queues.apply([Purge("c", epoch)])
    ledger.commit()
    anew = [pack(ledger.standing()), *map(pack, everything(ledger.sessions, ledger.queues, ledger.retained))]

    claims = [begun(each).sessions.claim("c", NODE) for each in (log, anew)]

    assert all(claim.epoch > epoch and claim.session is None for claim in claims)


def test_epochs_are_set_aside_though_a_turn_failed() -> None:
    """Epochs that were given while the disk was full are not given again after a restart."""
    log: list[bytes] = []
    ledger = begun(log)

    def refuse(data: bytes) -> None:
        raise ServiceUnavailable("full")

    ledger.append = refuse
    first = ledger.sessions.claim("c", NODE).epoch
    with pytest.raises(ServiceUnavailable):
        ledger.commit(all=True)
    ledger.append = log.append
    second = ledger.sessions.claim("c", NODE).epoch
    ledger.events.append([event()])
    ledger.commit(all=True)

    after = begun(log).sessions.claim("c", NODE).epoch

    assert after > second > first


def test_epochs_of_stored_sessions_do_not_come_again() -> None:
    """A claim that nothing was written under counts, too: its epoch is not given a second time after a restart."""
    log: list[bytes] = []
    ledger = begun(log)
    hand_over(ledger)
    ledger.commit()
    claimed = ledger.sessions.claim("c", NODE).epoch
    ledger.events.append([event()])
    ledger.commit()

    after = begun(log).sessions.claim("c", NODE).epoch

    assert after > claimed


def test_what_the_broker_says_of_itself_is_not_kept() -> None:
    """A message under $SYS/ is retained at once, costs no group, and is gone after a restart; others under $ stay."""
    log: list[bytes] = []
    ledger = begun(log)

    ledger.retained.put([retained("$SYS/uptime")])
    commit = ledger.commit()
    ledger.retained.put([retained("$SYS/a"), retained("$SYSTEM"), retained("$SYS"), retained("t")])
    ledger.commit()

    assert (commit, len(log)) == (None, 1)
    assert ledger.retained.match("$SYS/uptime").messages[0].payload == b"x"
    everyone = {write.message.topic for write in ledger.retained.iterate().writes}
    assert everyone == {"$SYS/uptime", "$SYS/a", "$SYSTEM", "$SYS", "t"}
    told = [
        write.message.topic
        for group in everything(ledger.sessions, ledger.queues, ledger.retained)
        for write in group.retain
    ]
    assert sorted(told) == ["$SYS", "$SYSTEM", "t"]
    assert begun(log).retained.count() == 3


def test_consumers_go_on_where_they_were() -> None:
    """What a group has committed comes back with the log, and its consumer sees what came after only."""
    log: list[bytes] = []
    context = BareContext()
    ledger = begun(log, context)
    ledger.events.consume("group", lambda batch: None)
    ledger.events.append([event(1), event(2)])
    ledger.commit()
    context.clock.advance()
    ledger.events.append([event(3)])
    ledger.commit()

    later = BareContext()
    after = begun(log, later)
    seen: list[int] = []
    after.events.consume("group", lambda batch: seen.extend(each.offset for each in batch), Start.OLDEST)
    later.clock.advance()

    assert begun(log).events.committed("group") == 1
    assert seen == [2]


def test_consumer_offsets_are_told_anew() -> None:
    """A log that was told anew knows what groups have committed, those that are not here at present included."""
    context = BareContext()
    ledger = begun([], context)
    ledger.events.consume("group", lambda batch: None)
    ledger.events.append([event(1)])
    ledger.commit()
    context.clock.advance()

    after = begun([pack(ledger.standing())])

    assert after.events.committed("group") == 0
    assert dict(after.standing().offsets) == {"group": 0}


def test_offsets_count_on_after_a_restart() -> None:
    """Events of a later life stand behind those of an earlier one, and of a turn in their order."""
    log: list[bytes] = []
    ledger = begun(log)
    ledger.events.append([event(1), event(2)])
    ledger.events.append([event(3)])
    ledger.commit()

    after = begun(log)
    after.events.append([event(4)])
    after.commit()

    expected = [(number - 1, event(number)) for number in (1, 2, 3, 4)]
    assert [(each.offset, each.event) for each in begun(log).events.all()] == expected


def test_what_a_log_would_hold_is_weighed() -> None:
    """The weight of what counts grows with each store's contents, and falls to nothing when they are gone."""
    ledger = begun([])
    weights = [ledger.live_bytes]
    ledger.sessions.apply([opened("c", 1)])
    ledger.commit()
    weights.append(ledger.live_bytes)
    ledger.queues.apply([appended("c", 1), Append("c", 1, Entry(2, Message("t"), 1), 7)])
    ledger.commit()
    weights.append(ledger.live_bytes)
    ledger.retained.put([retained()])
    ledger.commit()
    weights.append(ledger.live_bytes)

    ledger.sessions.apply([DiscardSession("c", 1)])
    ledger.queues.apply([Purge("c", 1)])
    ledger.retained.carry_out([RetainWrite(Message("t"), RetainVersion(2.0, 1, 1))])
    ledger.commit()

    assert 0 < ledger.live_bytes < 200  # The deletion is remembered, too.
    ledger.retained.expire(3.0 + DELETION_S, 1)
    assert weights[0] == ledger.live_bytes == 0
    assert weights == sorted(set(weights))


@pytest.mark.parametrize("what", ["queued", "retained", "sessions", "subscriptions", "events"])
def test_what_counts_is_about_what_a_log_would_hold(what: str) -> None:
    """Compaction goes by it: for each kind it is near to what everything takes when it is written anew."""
    ledger = begun([])
    for number in range(400):
        epoch = ledger.sessions.claim(f"c{number}", NODE).epoch if what == "sessions" else 1
        if what == "queued":
            ledger.queues.apply([Append("c", 1, Entry(1 + number, Message(f"a/{number}", b"%050d" % number), 1))])
        elif what == "retained":
            ledger.retained.put([retained(f"t/{number}", b"%050d" % number)])
        elif what == "sessions":
            ledger.sessions.apply([opened(f"c{number}", epoch)])
        elif what == "events":
            ledger.events.append([evolve(event(number), data={"filter": f"{number}" + "x" * 500})])
    if what == "subscriptions":
        several = tuple(Subscription(f"a/{number}" + "x" * 500) for number in range(400))
        ledger.sessions.apply([evolve(opened("c", 1), session=StoredSession("c", 100, several))])
    ledger.commit(all=True)

    told = [pack(ledger.standing()), *map(pack, everything(ledger.sessions, ledger.queues, ledger.retained))]

    assert 0.5 < ledger.live_bytes / sum(map(len, told)) < 4


def test_events_that_are_gone_count_no_more() -> None:
    """Long ones push each other out of the log, and what a log must hold does not grow with them."""
    ledger = begun([])
    sizes = []
    for _ in range(3):
        for number in range(5000):
            ledger.events.append([evolve(event(number), data={"filter": "x" * 4000})])
        ledger.commit(all=True)
        sizes.append((ledger.live_bytes, ledger.events.size_bytes, len(pack(ledger.standing()))))

    assert max(size for each in sizes for size in each) <= EVENTS_BYTES
    assert len(set(sizes)) == 1
    assert ledger.events.newest == 14_999


def test_a_restored_ledger_writes_nothing_of_its_own() -> None:
    """To read a log is not to write it: what was restored is not gathered for the next turn."""
    log: list[bytes] = []
    ledger = begun(log)
    hand_over(ledger)
    ledger.commit()

    after = begun(log)

    assert not after.gathered
    assert after.gathered == CommitGroup()
    assert after.queues.totals() == ledger.queues.totals() == QueueSizes(1, appended("c", 1).entry.size_bytes, 0, 1)
