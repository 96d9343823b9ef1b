"""The ledger: sessions in the image, one record of a message in many queues, and when to compact."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinmqtt.builtins.embedded import journal
from kinmqtt.builtins.embedded.image import Image, everything
from kinmqtt.builtins.embedded.journal import MOST_SEGMENTS, Journal
from kinmqtt.builtins.embedded.records import pack
from kinmqtt.builtins.embedded.segment import name_of
from kinmqtt.builtins.embedded.stores import Ledger
from kinmqtt_spi import Message
from kinmqtt_spi.memory.plugin import NODE, BareContext
from kinmqtt_spi.services.queue import Append, Entry
from kinmqtt_spi.services.session import DiscardSession, OpenSession, StoredSession
from kinmqtt_spi.values import MessageId


def begun(log: list[bytes]) -> Ledger:
    """A ledger that begins with what this log says, and goes on in it."""
    image = Image()
    for data in log:
        image.take(data)
    ledger = Ledger(BareContext())
    ledger.restore(image)
    ledger.append = log.append
    return ledger


def test_a_session_that_was_kept_is_in_the_image() -> None:
    """However many clients came and went, and whatever their epochs: what is read back has what the store had."""
    log: list[bytes] = []
    ledger = begun(log)
    sessions = ledger.sessions

    def kept(client_id: str) -> int:
        epoch = sessions.claim(client_id, NODE).epoch
        sessions.apply([OpenSession(epoch, StoredSession(client_id, 600))])
        ledger.commit()
        return epoch

    for _ in range(20):
        sessions.claim("often", NODE)
    sessions.apply([DiscardSession("often", kept("often"))])
    ledger.commit()
    sessions.claim("often", NODE)
    for number in range(10_001):
        sessions.apply([DiscardSession(f"c{number}", kept(f"c{number}"))])
        ledger.commit()
    kept("stays")

    after = begun(log).sessions

    assert [stored.client_id for _, stored in sessions.iterate().sessions] == ["stays"]
    assert [stored.client_id for _, stored in after.iterate().sessions] == ["stays"]


def shared(ledger: Ledger, message: Message, queues: int) -> None:
    """Have a message in many queues."""
    for number in range(queues):
        client_id = f"c{number}"
        epoch = ledger.sessions.claim(client_id, NODE).epoch
        ledger.sessions.apply([OpenSession(epoch, StoredSession(client_id, 600))])
        ledger.queues.apply([Append(client_id, epoch, Entry(1, message, 1))])
    ledger.commit()


def test_a_message_in_many_queues_is_told_about_once() -> None:
    """To tell everything anew takes no more disk and memory than what is told of."""
    ledger = begun([])
    message = Message("t", b"x" * 400_000, 1, id=MessageId(7, 1))
    shared(ledger, message, 300)

    told = [pack(group) for group in everything(ledger.sessions, ledger.queues, ledger.retained)]

    assert sum(map(len, told)) < 1.5 * message.size_bytes


@pytest.mark.parametrize("slice_bytes", [None, 1000])
def test_a_message_in_many_queues_is_one_message_again(slice_bytes: int | None) -> None:
    """What is read back holds it once, though it was told in more slices than one."""
    ledger = begun([])
    shared(ledger, Message("t", b"x" * 5000, 1, id=MessageId(7, 1)), 300)
    shares = everything(ledger.sessions, ledger.queues, ledger.retained, slice_bytes)
    told = [pack(ledger.standing()), *map(pack, shares)]

    after = begun(told)

    entries = [entry for number in range(300) for entry in after.queues.read(f"c{number}", 0, 10)]
    assert len(told) > 20 or slice_bytes is None
    assert len(entries) == 300
    assert len({id(entry.message) for entry in entries}) == 1


def test_messages_that_only_look_the_same_stay_apart() -> None:
    """An identifier that two messages share makes no one message of them."""
    ledger = begun([])
    for number in (1, 2):
        epoch = ledger.sessions.claim("c", NODE).epoch
        ledger.queues.apply([Append("c", epoch, Entry(number, Message("t", b"%d" % number, 1), 1))])
        ledger.commit()
    told = [pack(group) for group in everything(ledger.sessions, ledger.queues, ledger.retained)]

    after = begun(told)

    assert [entry.message.payload for entry in after.queues.read("c", 0, 10)] == [b"1", b"2"]


@pytest.mark.parametrize(("live_bytes", "wants"), [(0, True), (1000, True), (10 << 20, False)])
def test_a_small_log_of_many_segments(tmp_path: Path, live_bytes: int, wants: bool) -> None:
    """It is told anew, unless what counts is much more than what it takes: each message might be told again."""
    paths = [tmp_path / name_of(number) for number in range(1, MOST_SEGMENTS + 3)]
    for path in paths:
        path.write_bytes(b"x" * 1000)
    log = Journal(tmp_path, False, BareContext(), lambda: iter(()), paths)

    assert log.wants_compaction(live_bytes) is wants
    assert log.size_bytes < journal.SEGMENT_BYTES
