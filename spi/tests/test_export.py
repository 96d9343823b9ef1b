"""The reader of the export format: what it restores in stores, and what it refuses.

``core/tests/test_store_command.py`` has the refusals one by one.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from kinmqtt_spi.export import FORMAT, HEADER, MAX_EPOCH, ExportError, queue_lines, read_export
from kinmqtt_spi.memory.queue import MemoryQueueStore
from kinmqtt_spi.plain import to_plain
from kinmqtt_spi.services.event import Event, EventKind, EventVersion, Recorded
from kinmqtt_spi.services.queue import Entry, InflightEntry, QueueState, Stage
from kinmqtt_spi.services.retain import RetainVersion, RetainWrite
from kinmqtt_spi.services.session import OpenSession, StoredSession
from kinmqtt_spi.values import Message, MessageId

MESSAGE = Message("t", b"x", id=MessageId(1, 1))
SESSION = StoredSession("a", 60)
RETAINED = RetainWrite(MESSAGE, RetainVersion(1.0, 1, 1))
EVENT = Recorded(4, Event(EventKind.CONNECT, "a", EventVersion(1, 1), 1.0, {}))
QUEUED = Entry(2, MESSAGE, 1)
SENT = InflightEntry(1, 7, Stage.RELEASED, None)
QUEUE = {"kind": "queue", "client_id": "a", "epoch": 3, "last_sequence": 5, "inbound": [9]}


def export(*lines: dict[str, Any]) -> list[bytes]:
    """The lines with the first and the last one."""
    whole = [{HEADER: FORMAT}, *lines, {"kind": "end", "lines": len(lines) + 2}]
    return [json.dumps(line).encode() + b"\n" for line in whole]


def test_everything_is_read() -> None:
    """Each kind of line."""
    contents = read_export(
        export(
            {"kind": "epochs", "floor": 8},
            {"kind": "session", "epoch": 3, "session": to_plain(SESSION)},
            {"kind": "retained", **to_plain(RETAINED)},
            {"kind": "event", **to_plain(EVENT)},
            {"kind": "consumer", "group": "g", "offset": 4},
            {"kind": "consumer", "group": "h", "offset": -1, "held": True},
        )
    )

    assert contents.epoch_floor == 8
    assert contents.sessions == [OpenSession(3, SESSION)]
    assert contents.retained == [RETAINED]
    assert contents.events == [EVENT]
    assert contents.consumer_offsets == {"g": 4, "h": -1}
    assert contents.holding_groups == ["h"]


def test_pending_identifiers_are_restored_with_their_messages() -> None:
    """As the line of a queue has them, beside those that are completed."""
    pending = {3: MessageId(0, 0), 7: MessageId(2**64 - 1, 2**40)}
    store = MemoryQueueStore()
    [line] = queue_lines("a", 3, QueueState(inbound=frozenset({9}), last_sequence=5, pending=pending))
    for writes in read_export(export({"kind": "epochs", "floor": 3}, line)).queue_writes():
        store.apply(writes)

    state = store.load("a")
    assert state.inbound == {9}
    assert dict(state.pending) == pending
    assert "pending" not in next(queue_lines("a", 3, QueueState()))


def test_a_queue_is_restored() -> None:
    """With what is in flight, open identifiers, and the last number although its entry is gone."""
    contents = read_export(
        export(
            {"kind": "epochs", "floor": 3},
            QUEUE,
            {"kind": "inflight", "client_id": "a", **to_plain(SENT)},
            {"kind": "queued", "client_id": "a", **to_plain(QUEUED)},
        )
    )
    store = MemoryQueueStore()
    for writes in contents.queue_writes():
        store.apply(writes)

    state = store.load("a")
    assert state.inflight == (SENT,)
    assert state.inbound == {9}
    assert state.last_sequence == 5
    assert store.read("a", 0, 10) == (QUEUED,)


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ([], "line 1: there is nothing to read"),
        (export()[:1], "line 2: the export ends here, without a line of kind end"),
        ([*export(), b"{}"], "line 3: something comes after the last line"),
        (export(QUEUE, QUEUE), "line 3: client_id: 'a' has a queue already"),
    ],
)
def test_an_error_names_the_line(lines: list[bytes], text: str) -> None:
    """By number."""
    with pytest.raises(ExportError) as caught:
        read_export(lines)

    assert str(caught.value).startswith(text)


@pytest.mark.parametrize("owner", [{"kind": "epochs", "floor": 2}, SESSION], ids=["floor", "session"])
def test_a_queue_that_no_owner_could_write_to_is_refused(owner: Any) -> None:
    """Its epoch is higher than that of the session, or than the floor: each write of an owner would be fenced."""
    line = {"kind": "session", "epoch": 2, "session": to_plain(SESSION)} if owner is SESSION else owner

    with pytest.raises(ExportError, match=r"^line 2: epoch: 3 is higher than .* of 'a' .*; expected at most 2$"):
        read_export(export(QUEUE, line))


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ({"kind": "epochs", "floor": MAX_EPOCH + 1}, "floor: expected a whole number up to"),
        ({"kind": "session", "epoch": MAX_EPOCH + 1, "session": to_plain(SESSION)}, "epoch: expected a whole number"),
        ({**QUEUE, "inbound": [4, 9, 4]}, r"inbound\[2\]: 4 is there already"),
        ({**QUEUE, "pending": [[7, 1, 2], [7, 1, 2]]}, r"pending\[1\]: 7 is there already"),
        ({**QUEUE, "pending": [[9, 1, 2]]}, r"pending\[0\]: 9 is there already"),
        ({**QUEUE, "pending": {}}, "pending: expected a list"),
        ({**QUEUE, "pending": [7]}, r"pending\[0\]: expected \[packet identifier, node, counter\]"),
        ({**QUEUE, "pending": [[0, 1, 2]]}, r"pending\[0\]: expected"),
        ({**QUEUE, "pending": [[7, 1, -1]]}, r"pending\[0\]: expected"),
        ({**QUEUE, "pending": [[7, 1, True]]}, r"pending\[0\]: expected"),
    ],
    ids=["floor", "session", "inbound", "pending", "both", "list", "short", "packet", "negative", "flag"],
)
def test_what_leaves_no_room_or_is_there_twice_is_refused(line: dict[str, Any], text: str) -> None:
    """An epoch after which no later one can come, and an identifier that is open twice."""
    with pytest.raises(ExportError, match=f"^line 2: {text}"):
        read_export(export(line))
