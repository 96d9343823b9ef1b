"""The contract of an outbox: what it commits, hands out, drops and refuses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import pytest

from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.services.outbox import Accepted, AtMostOnce, Outbox, OutboxEntry, OutboxSettings, WhenFull
from kinmqtt_spi.testing.behaviours import behaviour
from kinmqtt_spi.testing.build import message
from kinmqtt_spi.testing.contract import Contract
from kinmqtt_spi.values import Message


class OutboxHouse(ABC):
    """Where the suite gets outboxes from. There is one outbox at a time."""

    clock: TurnableClock
    """The outbox's clock."""

    @abstractmethod
    def open(self, settings: OutboxSettings) -> Outbox:
        """Return the outbox, which is new at the first call, and after :meth:`kill` what a restart leaves."""

    @abstractmethod
    def turn(self, seconds: float = 0.0) -> None:
        """Let time pass; afterwards everything is committed and handed out that can be."""

    @abstractmethod
    def kill(self) -> None:
        """End the outbox's process at once: what is not committed is lost."""

    def publish(self, message: Message) -> None:
        """Publish a message as a client, for the suite's ``routes``."""
        raise NotImplementedError(f"{type(self).__name__} does not override publish")


class Consumed:
    """Consumes an outbox, and keeps what it is handed."""

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        self.entries: list[OutboxEntry] = []
        outbox.consume(self._take)

    def _take(self, entries: Sequence[OutboxEntry]) -> None:
        self.entries += entries

    def payloads(self) -> list[bytes]:
        """Return the payloads of all entries."""
        return [entry.message.payload for entry in self.entries]

    def acknowledge(self, *places: int) -> None:
        """Acknowledge the entries at these places."""
        self.outbox.acknowledge([self.entries[place].number for place in places])


class OutboxContract(Contract):
    """Override the fixture ``house``, which returns an :class:`OutboxHouse`."""

    routes = True
    """Whether the suite may publish: override :meth:`OutboxHouse.publish`."""

    @pytest.fixture
    def house(self, clock: TurnableClock) -> OutboxHouse:
        """Where the outbox is."""
        raise NotImplementedError(f"{type(self).__name__} does not override the fixture house")

    # Handing out

    @behaviour("OUTBOX-01")
    def test_outbox_01_messages_come_out_in_order(self, house: OutboxHouse) -> None:
        """What is put in is handed out in order, unchanged, with different numbers."""
        outbox, consumed = _consumed(house)
        sent = [_numbered(number, topic=f"a/{number}") for number in range(5)]

        assert [outbox.put(each) for each in sent[:3]] == [Accepted.ACCEPTED] * 3
        house.turn()
        assert [outbox.put(each) for each in sent[3:]] == [Accepted.ACCEPTED] * 2
        house.turn()

        assert [(e.message.topic, e.message.payload, e.message.publisher) for e in consumed.entries] == [
            (each.topic, each.payload, each.publisher) for each in sent
        ]
        assert len({entry.number for entry in consumed.entries}) == 5

    @behaviour("OUTBOX-02")
    def test_outbox_02_nothing_is_handed_out_within_a_call(self, house: OutboxHouse) -> None:
        """The handler is called in a later turn, never inside ``consume``, ``put`` or ``acknowledge``."""
        outbox = house.open(OutboxSettings(window=1))
        outbox.put(_numbered(1))
        house.turn()
        consumed = Consumed(outbox)
        assert consumed.entries == []
        outbox.put(_numbered(2))
        assert consumed.entries == []
        house.turn()
        consumed.acknowledge(0)

        assert len(consumed.entries) == 1

    @behaviour("OUTBOX-03")
    def test_outbox_03_the_window_holds(self, house: OutboxHouse) -> None:
        """At most ``window`` entries are handed out; each acknowledgement, in any order, makes room for one."""
        _, consumed = _consumed(house, 6, window=3)
        assert consumed.payloads() == [b"1", b"2", b"3"]
        consumed.acknowledge(2)
        house.turn()
        assert consumed.payloads() == [b"1", b"2", b"3", b"4"]
        consumed.acknowledge(0, 1)
        house.turn()

        assert consumed.payloads() == [b"1", b"2", b"3", b"4", b"5", b"6"]

    @behaviour("OUTBOX-04")
    def test_outbox_04_a_first_time_is_not_repeated(self, house: OutboxHouse) -> None:
        """An entry that was never handed out before is not marked as repeated."""
        _, consumed = _consumed(house, 3)

        assert [entry.is_repeated for entry in consumed.entries] == [False] * 3

    # Restarts

    @behaviour("OUTBOX-05")
    def test_outbox_05_committed_messages_survive(self, house: OutboxHouse) -> None:
        """After a restart they are handed out in order, also without a consumer before."""
        outbox = house.open(OutboxSettings())
        for number in (1, 2, 3):
            outbox.put(_numbered(number))
        house.turn()
        house.kill()
        consumed = Consumed(house.open(OutboxSettings()))
        house.turn()

        assert consumed.payloads() == [b"1", b"2", b"3"]

    @behaviour("OUTBOX-06")
    def test_outbox_06_what_was_acknowledged_is_gone(self, house: OutboxHouse) -> None:
        """After its commit it is not handed out again, also after a restart."""
        _, consumed = _consumed(house, 3)
        consumed.acknowledge(0, 2)
        house.turn()
        assert len(consumed.entries) == 3
        house.kill()
        again = Consumed(house.open(OutboxSettings()))
        house.turn()

        assert again.payloads() == [b"2"]

    @behaviour("OUTBOX-07")
    def test_outbox_07_what_was_not_acknowledged_comes_first(self, house: OutboxHouse) -> None:
        """After a restart it comes again, marked as repeated, before what was never handed out."""
        _, consumed = _consumed(house, 4, window=2)
        assert len(consumed.entries) == 2
        house.kill()
        again = Consumed(house.open(OutboxSettings()))
        house.turn()

        assert again.payloads() == [b"1", b"2", b"3", b"4"]
        assert [entry.is_repeated for entry in again.entries[:2]] == [True, True]

    # Bounds

    @behaviour("OUTBOX-08")
    def test_outbox_08_figures_tell_the_state(self, house: OutboxHouse) -> None:
        """Messages that wait, their bytes, those handed out, the oldest of these, and the share of the bounds."""
        outbox, consumed = _consumed(house, 5, window=2, max_messages=6)
        figures = outbox.figures()
        assert (figures.queued, figures.inflight) == (3, 2)
        assert figures.queued_bytes >= 3
        assert figures.oldest_at == consumed.entries[0].message.received_at
        assert figures.fullness == pytest.approx(0.5)
        consumed.acknowledge(0, 1)
        house.turn()
        consumed.acknowledge(2, 3)
        house.turn()
        consumed.acknowledge(4)
        house.turn()
        figures = outbox.figures()

        assert (figures.queued, figures.queued_bytes, figures.inflight, figures.oldest_at) == (0, 0, 0, None)
        assert figures.fullness == 0

    @behaviour("OUTBOX-09")
    def test_outbox_09_a_full_outbox_may_refuse(self, house: OutboxHouse) -> None:
        """REFUSE: at ``max_messages`` nothing more is accepted, and what is there stays."""
        outbox = house.open(OutboxSettings(max_messages=3, when_full=WhenFull.REFUSE))

        assert _fill(outbox, house, 5) == [Accepted.ACCEPTED] * 3 + [Accepted.REFUSED] * 2
        assert _drained(outbox, house) == [b"1", b"2", b"3"]

    @behaviour("OUTBOX-10")
    def test_outbox_10_a_full_outbox_may_pause(self, house: OutboxHouse) -> None:
        """PAUSE: messages are accepted up to a tenth above the bounds, then refused."""
        outbox = house.open(OutboxSettings(max_messages=20, when_full=WhenFull.PAUSE))

        assert _fill(outbox, house, 24) == [Accepted.ACCEPTED] * 22 + [Accepted.REFUSED] * 2

    @behaviour("OUTBOX-11")
    def test_outbox_11_a_full_outbox_may_drop_the_oldest(self, house: OutboxHouse) -> None:
        """DROP_OLDEST: every message is accepted, and the newest are there, also after a restart."""
        settings = OutboxSettings(max_messages=3, when_full=WhenFull.DROP_OLDEST)
        outbox = house.open(settings)
        assert _fill(outbox, house, 5) == [Accepted.ACCEPTED] * 5
        house.kill()

        assert _drained(house.open(settings), house) == [b"3", b"4", b"5"]

    @behaviour("OUTBOX-12")
    def test_outbox_12_a_full_outbox_may_drop_the_newest(self, house: OutboxHouse) -> None:
        """DROP_NEWEST: what exceeds the bounds is DROPPED."""
        outbox = house.open(OutboxSettings(max_messages=3, when_full=WhenFull.DROP_NEWEST))

        assert _fill(outbox, house, 5) == [Accepted.ACCEPTED] * 3 + [Accepted.DROPPED] * 2
        assert _drained(outbox, house) == [b"1", b"2", b"3"]

    @behaviour("OUTBOX-13")
    def test_outbox_13_bytes_count_too(self, house: OutboxHouse) -> None:
        """Large messages fill an outbox before ``max_messages`` do; the last one may exceed ``max_bytes``."""
        outbox = house.open(OutboxSettings(max_bytes=10_000, when_full=WhenFull.REFUSE))
        answers = [outbox.put(_numbered(n, payload=bytes(3000))) for n in range(5)]
        house.turn()

        assert answers.count(Accepted.ACCEPTED) in (1, 2, 3, 4)
        assert answers[-1] is Accepted.REFUSED
        assert 0 < outbox.figures().queued_bytes < 10_000 + 2 * 3000

    @behaviour("OUTBOX-14")
    def test_outbox_14_room_comes_back(self, house: OutboxHouse) -> None:
        """A full outbox accepts again after it has handed out and got back what it had."""
        outbox = house.open(OutboxSettings(max_messages=2, when_full=WhenFull.REFUSE))
        _fill(outbox, house, 3)
        _drained(outbox, house)

        assert outbox.put(_numbered(4)) is Accepted.ACCEPTED

    # QoS 0, expiry, invalid messages

    @behaviour("OUTBOX-15")
    def test_outbox_15_qos_0_may_pass(self, house: OutboxHouse) -> None:
        """PASS: handed out while there is room in the window, else DROPPED; not there after a restart."""
        outbox, consumed = _consumed(house, window=2, qos_0=AtMostOnce.PASS)
        answers = [outbox.put(_numbered(number, qos=0)) for number in (1, 2)]
        house.turn()
        answers.append(outbox.put(_numbered(3, qos=0)))
        house.turn()
        assert answers == [Accepted.ACCEPTED, Accepted.ACCEPTED, Accepted.DROPPED]
        assert consumed.payloads() == [b"1", b"2"]
        house.kill()

        assert _drained(house.open(OutboxSettings()), house) == []

    @behaviour("OUTBOX-16")
    def test_outbox_16_qos_0_may_be_stored(self, house: OutboxHouse) -> None:
        """STORE: it survives a restart like QoS 1."""
        settings = OutboxSettings(qos_0=AtMostOnce.STORE)
        outbox = house.open(settings)
        assert outbox.put(_numbered(1, qos=0)) is Accepted.ACCEPTED
        house.turn()
        house.kill()

        assert _drained(house.open(settings), house) == [b"1"]

    @behaviour("OUTBOX-17")
    def test_outbox_17_qos_0_may_be_left_out(self, house: OutboxHouse) -> None:
        """IGNORE: it is DROPPED, and other messages are not."""
        outbox, consumed = _consumed(house, qos_0=AtMostOnce.IGNORE)
        answers = [outbox.put(_numbered(1, qos=0)), outbox.put(_numbered(2, qos=1))]
        house.turn()

        assert answers == [Accepted.DROPPED, Accepted.ACCEPTED]
        assert consumed.payloads() == [b"2"]

    @behaviour("OUTBOX-18")
    def test_outbox_18_an_expired_message_is_not_handed_out(self, house: OutboxHouse) -> None:
        """It is DROPPED if it comes expired, and left out if it expires while it waits."""
        outbox = house.open(OutboxSettings())
        now = house.clock.now()
        assert outbox.put(_numbered(1, expires_at=now - 1)) is Accepted.DROPPED
        assert outbox.put(_numbered(2, expires_at=now + 10)) is Accepted.ACCEPTED
        assert outbox.put(_numbered(3, expires_at=now + 1000)) is Accepted.ACCEPTED
        house.turn(11)

        assert _drained(outbox, house) == [b"3"]
        assert outbox.figures().queued == 0

    @behaviour("OUTBOX-19")
    def test_outbox_19_an_invalid_message_is_an_error(self, house: OutboxHouse) -> None:
        """A message that no PUBLISH can carry raises ``ValueError``, and nothing is put in."""
        outbox = house.open(OutboxSettings())
        for topic in ("", "a/+", "a/#", "a\0b"):
            with pytest.raises(ValueError):
                outbox.put(_numbered(1, topic=topic))

        assert _drained(outbox, house) == []

    # Subscriptions

    @behaviour("OUTBOX-20")
    def test_outbox_20_an_invalid_filter_is_an_error(self, house: OutboxHouse) -> None:
        """An invalid filter raises ``ValueError``, and so does a shared one."""
        outbox = house.open(OutboxSettings())
        for filter in ("", "a/#/b", "a+", "$share/group/a"):
            with pytest.raises(ValueError):
                outbox.subscribe([filter])

    @behaviour("OUTBOX-21", needs="routes")
    def test_outbox_21_filters_decide_what_comes_in(self, house: OutboxHouse) -> None:
        """A message comes in once if any filter matches; other filters replace the ones before."""
        outbox, consumed = _consumed(house)
        outbox.subscribe(["a/#", "a/b", "c"])
        for topic in ("a/b", "b", "c"):
            house.publish(_numbered(1, topic=topic))
        house.turn()
        outbox.subscribe(["b"])
        for topic in ("a/b", "b", "c"):
            house.publish(_numbered(2, topic=topic))
        house.turn()

        assert [entry.message.topic for entry in consumed.entries] == ["a/b", "c", "b"]

    # The end

    @behaviour("OUTBOX-22")
    def test_outbox_22_a_discarded_outbox_is_empty(self, house: OutboxHouse, drive: Any) -> None:
        """``discard`` deletes everything, also what is handed out, for good."""
        outbox, _ = _consumed(house, 5, window=2)
        answer = outbox.discard()
        house.turn()
        drive(answer)
        figures = outbox.figures()
        assert (figures.queued, figures.inflight) == (0, 0)
        house.kill()

        assert _drained(house.open(OutboxSettings()), house) == []

    @behaviour("OUTBOX-23")
    def test_outbox_23_a_second_acknowledgement_does_no_harm(self, house: OutboxHouse) -> None:
        """Unknown numbers, and those acknowledged before, are ignored: they make no room."""
        _, consumed = _consumed(house, 4, window=2)
        consumed.acknowledge(0)
        house.turn()
        consumed.acknowledge(0)
        consumed.outbox.acknowledge([max(entry.number for entry in consumed.entries) + 1000])
        house.turn()

        assert consumed.payloads() == [b"1", b"2", b"3"]

    # Numbers that came later

    @behaviour("OUTBOX-24")
    def test_outbox_24_the_last_message_may_exceed_the_bounds(self, house: OutboxHouse) -> None:
        """The bounds are compared with what waits, without the new message: one alone may have any size."""
        outbox = house.open(OutboxSettings(max_bytes=10_000, when_full=WhenFull.REFUSE))
        answers = [outbox.put(_numbered(n, payload=bytes(6000))) for n in range(3)]
        house.turn()
        assert answers == [Accepted.ACCEPTED, Accepted.ACCEPTED, Accepted.REFUSED]
        house.kill()
        settings = OutboxSettings(max_bytes=10_000, when_full=WhenFull.DROP_OLDEST)
        outbox = house.open(settings)
        assert outbox.put(_numbered(4, payload=bytes(30_000))) is Accepted.ACCEPTED
        house.turn()

        assert [len(payload) for payload in _drained(outbox, house)] == [30_000]

    @behaviour("OUTBOX-25")
    def test_outbox_25_what_is_held_has_no_place_in_the_window(self, house: OutboxHouse) -> None:
        """Others are handed out in its place; acknowledged, it is gone, and makes no room twice."""
        _, consumed = _consumed(house, 7, window=2)
        consumed.outbox.hold([entry.number for entry in consumed.entries])
        house.turn()
        assert consumed.payloads() == [b"1", b"2", b"3", b"4"]
        assert consumed.outbox.figures().inflight == 4
        consumed.acknowledge(0, 1)
        house.turn()
        assert consumed.payloads() == [b"1", b"2", b"3", b"4"]
        consumed.acknowledge(2)
        house.turn()

        assert consumed.payloads() == [b"1", b"2", b"3", b"4", b"5"]


def _numbered(number: int, **fields: Any) -> Message:
    its: dict[str, Any] = {"payload": b"%d" % number, "qos": 1, **fields}
    return message(number=number, **its)


def _consumed(house: OutboxHouse, count: int = 0, **settings: Any) -> tuple[Outbox, Consumed]:
    """Open an outbox, consume it, and put ``count`` messages in."""
    outbox = house.open(OutboxSettings(**settings))
    consumed = Consumed(outbox)
    house.turn()
    for number in range(1, count + 1):
        outbox.put(_numbered(number))
    house.turn()
    return outbox, consumed


def _fill(outbox: Outbox, house: OutboxHouse, count: int) -> list[Accepted]:
    answers = [outbox.put(_numbered(number)) for number in range(1, count + 1)]
    house.turn()
    return answers


def _drained(outbox: Outbox, house: OutboxHouse) -> list[bytes]:
    """Consume an outbox, acknowledge everything, and return the payloads."""
    consumed = Consumed(outbox)
    done = 0
    house.turn()
    while done < len(consumed.entries):
        fresh = range(done, len(consumed.entries))
        done = len(consumed.entries)
        consumed.acknowledge(*fresh)
        house.turn()
    return consumed.payloads()
