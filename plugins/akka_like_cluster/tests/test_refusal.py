"""Refused connections: counted, and logged at a bounded rate."""

from __future__ import annotations

from kinmqtt_akka_like_cluster.net.refusal import LOG_EVERY_S, MAX_LOGGED, HandshakeRefused, Refusal, Refusals
from kinmqtt_spi.memory.plugin import RecordingLog, TurnableClock


class Desk:
    """Refusals with their log and clock."""

    def __init__(self) -> None:
        self.log = RecordingLog()
        self.clock = TurnableClock()
        self.refusals = Refusals(self.log, self.clock)

    def refuse(self, refusal: Refusal = Refusal.CLUSTER, peer: str = "10.0.0.1", *, by_peer: bool = False) -> None:
        """Report one."""
        self.refusals.report(HandshakeRefused(refusal, "because", by_peer=by_peer), peer, "a")


def test_a_line_names_who_and_why() -> None:
    """It differs by the side that has refused."""
    desk = Desk()

    desk.refuse()
    desk.refuse(peer="10.0.0.2", by_peer=True)
    desk.refuse(Refusal.NOT_AUTHENTICATED)
    desk.refusals.report(HandshakeRefused(Refusal.TLS, "no"), "10.0.0.3")

    assert desk.log.texts() == [
        "refused 10.0.0.1, which calls itself 'a': because",
        "10.0.0.2, which calls itself 'a', has refused this broker: because",
        "refused 10.0.0.1, which calls itself 'a': because; the cookies differ (cookie_file), "
        "or somebody is in between",
        "refused 10.0.0.3: no",
    ]


def test_a_peer_is_logged_once_a_minute_for_each_reason() -> None:
    """The next line says how many there were; all are counted."""
    desk = Desk()
    for _ in range(5):
        desk.refuse()
    desk.refuse(Refusal.VERSION)

    desk.clock.advance(LOG_EVERY_S)
    desk.refuse()

    assert len(desk.log.lines) == 3
    assert desk.log.texts()[-1].endswith("because (4 more since the last such line)")
    assert desk.refusals.counts == {Refusal.CLUSTER: 6, Refusal.VERSION: 1}


def test_many_addresses_share_one_line() -> None:
    """Who has many addresses fills neither the log nor the memory."""
    desk = Desk()

    for number in range(3 * MAX_LOGGED):
        desk.refuse(peer=f"2001:db8::{number:x}")

    assert len(desk.log.lines) == MAX_LOGGED + 1
    assert len(desk.refusals._paces) == MAX_LOGGED
    desk.clock.advance(LOG_EVERY_S)
    desk.refuse(peer="another")
    assert len(desk.log.lines) == MAX_LOGGED + 2
    assert len(desk.refusals._paces) == 1


def test_a_broker_that_finds_itself_is_not_refused() -> None:
    """It is among its own seeds."""
    desk = Desk()

    desk.refuse(Refusal.SELF)

    assert desk.log.lines == []
    assert not desk.refusals.counts
