"""Taps: calls of plugins that see messages while these are routed, and what such a call publishes.

A fan-out has the taps of its topic, so other topics pay nothing. What a tap publishes shares the ticket of the
message that it sees: its publisher waits until both are committed, here and on the other nodes.
"""

from __future__ import annotations

from typing import Final

from twisted.logger import Logger

from kinmqtt.broker.filter_table import FilterTable
from kinmqtt.broker.message.publication import Lineage, Publication, ticket_of
from kinmqtt.broker.message.ticket import Ticket
from kinmqtt.broker.runtime import Runtime
from kinmqtt.broker.turn.ports import Peer
from kinmqtt.hooks.calls import BLOCKED_S, FAILURES, SAID_AGAIN_AFTER_S, Call
from kinmqtt_spi.pace import Pace, and_others
from kinmqtt_spi.services.tap import MAX_MADE, MAX_NESTED, PayloadTest
from kinmqtt_spi.values import Message

log = Logger("kinmqtt.taps")

SYS_PREFIX: Final = "$SYS/"
"""Topics of one node: other nodes have their own, and taps do not see them."""


class TapCall:
    """The calls of one tap."""

    __slots__ = ("_busy", "_call", "_calls", "_pace", "_timer", "is_open", "number", "plugin", "wants")

    def __init__(self, runtime: Runtime, call: Call, number: int, wants: PayloadTest | None) -> None:
        self._call = call
        self._timer = call.timer
        self._calls = call.calls
        self._busy = call.busy
        self.wants = wants
        """What looks at payloads first; ``None`` if it sees all messages."""
        self.plugin = call.plugin
        self.number = number
        """Taps see a message in this order."""
        self.is_open = True
        """Whether it sees messages: a delivery under way has the taps of its beginning."""
        self._pace = Pace(runtime.clock, SAID_AGAIN_AFTER_S)

    def leaves_out(self, wants: PayloadTest, payload: bytes) -> bool:
        """Whether :attr:`wants` leaves a message out; that counts as a call."""
        timer = self._timer
        began = timer()
        leaves_out = True
        try:
            leaves_out = not wants(payload)
        except FAILURES as error:
            self._failed(error)
        seconds = timer() - began
        if leaves_out:
            self._calls.value += 1
        self._busy.value += int(seconds * 1e6)
        if seconds > BLOCKED_S:
            self._call.blocks(seconds)
        return leaves_out

    def see(self, message: Message) -> None:
        """Show a message; a failure is counted, and logged once a minute."""
        try:
            self._call(message)
        except FAILURES as error:
            self._failed(error)

    def _failed(self, error: BaseException) -> None:
        call = self._call
        if self._pace.due() is None:
            call.failures.value += 1
        else:
            call.failed(error)


class Tapped:
    """A message that taps see."""

    __slots__ = ("after_commit", "connection", "plugin", "publication")

    def __init__(self, publication: Publication, after_commit: bool, connection: Peer | None) -> None:
        self.publication = publication
        self.after_commit = after_commit
        """Whether it is delivered only if this turn's writes are committed, and then what taps publish is, too."""
        self.connection = connection
        """The publisher's, if the message is to be acknowledged."""
        self.plugin = ""
        """Whose tap sees it now. Other plugins' hooks may be called meanwhile: what they do is no part of it."""

    @property
    def ticket(self) -> Ticket | None:
        """The message's ticket; ``None`` if nobody waits for one."""
        return ticket_of(self.publication) if self.publication.publish.qos else None


class Taps:
    """The open taps, and the message that one of them sees now."""

    __slots__ = ("_by_filter", "_number", "_pace", "_runtime", "current")

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._by_filter = FilterTable()
        """By filter: a tuple of :class:`TapCall`."""
        self._number = 0
        self._pace = Pace(runtime.clock, SAID_AGAIN_AFTER_S)
        self.current: Tapped | None = None
        """What a tap sees at this moment; ``None`` outside of their calls. See :meth:`seen_by`."""

    def add(self, call: Call, filters: tuple[str, ...], wants: PayloadTest | None) -> TapCall:
        """Add a tap. The fan-outs that the filters match are outdated then."""
        self._number += 1
        tap = TapCall(self._runtime, call, self._number, wants)
        for filter in filters:
            self._by_filter.put(filter, (*self._of(filter), tap))
        return tap

    def remove(self, tap: TapCall, filters: tuple[str, ...]) -> None:
        """Remove a tap; as :meth:`add`."""
        tap.is_open = False
        for filter in filters:
            self._by_filter.put(filter, tuple([each for each in self._of(filter) if each is not tap]) or None)

    def _of(self, filter: str) -> tuple[TapCall, ...]:
        taps = self._by_filter.get(filter)
        return taps if isinstance(taps, tuple) else ()

    def for_topic(self, topic: str) -> tuple[TapCall, ...] | None:
        """Return the taps that see a topic's messages, in their order; ``None`` if there are none."""
        if not len(self._by_filter) or topic.startswith(SYS_PREFIX):
            return None
        found: dict[int, TapCall] = {}
        for taps in self._by_filter.match(topic):
            assert isinstance(taps, tuple)
            for tap in taps:
                found[tap.number] = tap
        return tuple([found[number] for number in sorted(found)]) or None

    def see(
        self, taps: tuple[TapCall, ...], publication: Publication, after_commit: bool, connection: Peer | None
    ) -> None:
        """Let taps see a message; see :class:`Tapped`."""
        before = self.current
        payload: bytes | None = None
        tapped: Tapped | None = None
        try:
            for tap in taps:
                if not tap.is_open:
                    continue
                wants = tap.wants
                if wants is not None:
                    if payload is None:
                        payload = publication.publish.payload
                    self.current = None  # What looks at payloads publishes nothing.
                    if tap.leaves_out(wants, payload):
                        continue
                if tapped is None:
                    tapped = Tapped(publication, after_commit, connection)
                tapped.plugin = tap.plugin
                self.current = tapped
                tap.see(publication.stored)
        finally:
            self.current = before

    def seen_by(self, plugin: str) -> Tapped | None:
        """Return what a tap of a plugin sees at this moment; ``None`` outside of such a call."""
        current = self.current
        return current if current is not None and current.plugin == plugin else None

    def nest(self, publication: Publication, tapped: Tapped) -> bool:
        """Note that a message is published because of another; returns ``False`` if that drops it.

        So end chains that are too deep, and floods of one message. That counts for all plugins, or two of them could
        make an endless loop.
        """
        depth = publication.depth = tapped.publication.depth + 1
        seen = tapped.publication
        lineage = publication.lineage = seen.lineage = seen.lineage or Lineage()
        if depth > MAX_NESTED or lineage.count >= MAX_MADE:
            self._drop(publication)
            return False
        lineage.count += 1
        return True

    def _drop(self, publication: Publication) -> None:
        self._runtime.drop(publication.publisher.client_id, publication.message, "nested_too_deep")
        more = self._pace.due()
        if more is not None:
            log.warn(
                "a message to {topic!r} is dropped: taps have published one because of another, {depth} deep, or "
                "{most} because of one{others}",
                topic=publication.publish.topic,
                depth=MAX_NESTED,
                most=MAX_MADE,
                others=and_others(more),
            )

    def refuse_within(self, plugin: str, what: str) -> None:
        """Raise ``RuntimeError`` in the call of a plugin's tap, which must answer at once."""
        if self.seen_by(plugin) is not None:
            raise RuntimeError(f"a tap must answer at once: it can't {what}")
