"""Sessions and subscriptions are rebuilt from events, in whatever order they come."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_event_kafka.rebuild import Rebuilder
from kinmqtt_spi.export import line_text, read_export
from kinmqtt_spi.services.event import Event, EventKind, EventVersion
from kinmqtt_spi.services.session import StoredSession
from kinmqtt_spi.values import Subscription

NOW = 1_700_000_000.0


def happened(kind: EventKind, epoch: int, counter: int, client_id: str = "c", **data: Any) -> Event:
    """An event of schema 2."""
    return Event(kind, client_id, EventVersion(epoch, counter), NOW + counter, data)


def connect(epoch: int, counter: int, client_id: str = "c", present: bool = False, **more: Any) -> Event:
    data = {"expiry_s": 60, "session_present": present, "created_at": NOW, "username": "ada", "version": 5, **more}
    return happened(EventKind.CONNECT, epoch, counter, client_id, **data)


def subscribe(epoch: int, counter: int, filter: str, client_id: str = "c", **more: Any) -> Event:
    return happened(EventKind.SUBSCRIBE, epoch, counter, client_id, **{"filter": filter, "qos": 1, **more})


def rebuilt(*events: Event, now: float = NOW) -> dict[str, tuple[int, StoredSession]]:
    """The sessions by client id."""
    rebuilder = Rebuilder()
    for each in events:
        rebuilder.take(each)
    return {session.client_id: (epoch, session) for epoch, session in rebuilder.sessions(now)}


HISTORY = (
    subscribe(1, 1, "by/plugin"),
    connect(1, 2),
    subscribe(1, 3, "a", identifier=7, no_local=True),
    subscribe(1, 4, "$share/g/b/#", qos=2),
    happened(EventKind.UNSUBSCRIBE, 1, 5, filter="by/plugin"),
    happened(EventKind.CONNECTION_LOST, 1, 6, expires_at=NOW + 66),
    connect(2, 1, present=True, expiry_s=90),
    subscribe(2, 2, "a", qos=0),
    happened(EventKind.DISCONNECT, 2, 3, by="client", reason=0, expires_at=NOW + 99),
    happened(EventKind.QUEUE_DROP, 2, 4, topic="a", messages=1),
    happened(EventKind.ADD_RETAIN, 2, 5, topic="t", qos=1, bytes=1, message_id="1-1"),
)


def test_a_session_is_what_its_events_say() -> None:
    """Of each fact the newest counts."""
    assert rebuilt(*HISTORY) == {
        "c": (
            2,
            StoredSession(
                "c",
                90,
                (Subscription("b/#", 2, "g"), Subscription("a", 0)),
                created_at=NOW,
                username="ada",
                protocol_version=5,
                expires_at=NOW + 99,
            ),
        )
    }


@given(st.permutations(HISTORY), st.lists(st.sampled_from(HISTORY), max_size=5))
def test_the_order_does_not_matter(events: list[Event], again: list[Event]) -> None:
    """Nor does what comes twice: partitions and nodes have paces of their own."""
    assert rebuilt(*events, *again) == rebuilt(*HISTORY)


def test_a_new_session_has_none_of_the_older_subscriptions() -> None:
    """A CONNECT that found no session begins anew."""
    events = [
        connect(1, 1),
        subscribe(1, 2, "old"),
        subscribe(2, 3, "by/plugin"),
        connect(2, 4),
        subscribe(2, 5, "new"),
    ]

    _, session = rebuilt(*events)["c"]

    assert [each.filter for each in session.subscriptions] == ["by/plugin", "new"]


def test_what_has_expired_or_never_persists_is_left_out() -> None:
    """As it would be in an export."""
    lost = happened(EventKind.CONNECTION_LOST, 1, 6, expires_at=NOW + 6)

    assert not rebuilt(connect(1, 1), lost, now=NOW + 6)
    assert rebuilt(connect(1, 1), lost, now=NOW + 5)
    assert not rebuilt(connect(1, 1, expiry_s=0))
    assert rebuilt(connect(1, 1), happened(EventKind.DISCONNECT, 1, 2, expires_at=None), now=NOW + 1e9)


def test_the_lines_are_an_export() -> None:
    """`kinmqtt store import` reads them."""
    rebuilder = Rebuilder()
    for each in HISTORY:
        rebuilder.take(each)

    contents = read_export(f"{line_text(line)}\n".encode() for line in rebuilder.lines(NOW))

    assert contents.epoch_floor == 2
    assert [(each.epoch, each.session) for each in contents.sessions] == [rebuilt(*HISTORY)["c"]]


def test_what_can_not_be_rebuilt_is_known() -> None:
    """Sessions that began before the first event, and events of schema 1."""
    rebuilder = Rebuilder()
    rebuilder.take(connect(1, 1, "late", present=True))
    rebuilder.take(Event(EventKind.CONNECT, "old", EventVersion(1, 1), NOW, {"version": 5}, 1))

    assert rebuilder.incomplete == ["late"]
    assert rebuilder.old_schema == 1
