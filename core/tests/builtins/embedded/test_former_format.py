"""A data directory of format 1, which did not say whether a session's user was verified, is read on."""

from __future__ import annotations

import marshal
import sqlite3
from contextlib import closing
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from kinmqtt.builtins.embedded.directory import DataDirectory
from kinmqtt.builtins.embedded.image import QueueImage, everything
from kinmqtt.builtins.embedded.records import CommitGroup, Unpacked, pack, unpack
from kinmqtt.builtins.embedded.segment import Segment
from kinmqtt_spi.memory.queue import MemoryQueueStore
from kinmqtt_spi.services.session import OpenSession, ResumeSession, SessionWrite, StoredSession
from kinmqtt_spi.values import Subscription

FILTER = ("a/#", 1, None, False, False, 0, None)


def former(*sessions: tuple[object, ...]) -> bytes:
    """A group of format 1 with these records of sessions."""
    return marshal.dumps(([], list(sessions), [], [], [], {}, 100, [], False), 4)


def opened(client_id: str, username: str | None) -> tuple[object, ...]:
    """The record of format 1 of a session that is opened and has been released."""
    return 0, client_id, 7, 60, (FILTER,), None, 1.5, username, 5, None, None


@given(st.none() | st.text(max_size=5), st.sampled_from((3, 4, 5)))
def test_records_of_the_former_format_name_nobody_for_sure(username: str | None, version: int) -> None:
    """Opened or resumed: the name is what CONNECT said, and everything else is as it was."""
    opening = (0, "c", 7, 60, (FILTER,), None, 1.5, username, version, 2.5, 3.5)
    read = unpack(former(opening, (1, "c", 8, 9, None, username, version)))

    stored = StoredSession(
        "c", 60, (Subscription("a/#", 1),), None, 1.5, username, version, 2.5, 3.5, username_unverified=True
    )
    assert read.sessions == [
        OpenSession(7, stored),
        ResumeSession("c", 8, 9, None, username, version, username_unverified=True),
    ]


@given(st.none() | st.text(max_size=5), st.booleans())
def test_records_of_this_format_say_whether_the_user_was_verified(username: str | None, unverified: bool) -> None:
    """Both come back as they were."""
    stored = StoredSession("c", 60, username=username, username_unverified=unverified)
    writes: list[SessionWrite] = [OpenSession(7, stored), ResumeSession("c", 8, 9, None, username, 5, unverified)]

    assert unpack(pack(CommitGroup(sessions=list(writes)))).sessions == writes


def test_a_directory_of_the_former_format_is_read(tmp_path: Path) -> None:
    """As a whole, and what is told anew of it still says that the user is unverified."""
    segment = Segment(tmp_path, 1)
    segment.append(former(opened("a", "ha"), opened("b", None)))
    segment.seal()
    with closing(sqlite3.connect(segment.path, isolation_level=None)) as connection:
        connection.execute("PRAGMA user_version = 1")
    directory = DataDirectory(tmp_path)
    directory.open()

    image = directory.load()
    directory.close()

    [anew] = everything(image.sessions, MemoryQueueStore(), image.retained)
    for sessions in ([stored for _, stored in image.sessions.iterate().sessions], _sessions(unpack(pack(anew)))):
        found = {stored.client_id: (stored.username, stored.username_unverified) for stored in sessions}
        assert found == {"a": ("ha", True), "b": (None, True)}


def test_inbound_identifiers_of_a_former_format_are_not_pending() -> None:
    """Records of format 2 have no message id, and close as before."""
    image = QueueImage()
    image.apply([(5, "c", 1, 7), (5, "c", 1, 8), (6, "c", 1, 8)], [])
    store = MemoryQueueStore()

    image.bring_about(store, store.apply)

    state = store.load("c")
    assert state.inbound == {7}
    assert not state.pending


def _sessions(group: Unpacked) -> list[StoredSession]:
    """The sessions that a group opens."""
    return [write.session for write in group.sessions if isinstance(write, OpenSession)]
