"""Delivers notices: plugins are notified in later turns of the event loop, each in order and at its own pace.

A plugin has one mailbox for all of its hooks. An awaited notice delays those behind it. At its time limit it is
cancelled, and the next one begins when it has ended or :data:`CANCEL_LIMIT_S` later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Generic, ParamSpec

from attrs import define
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from kinmqtt.hooks.awaitables import cancel, has_result
from kinmqtt.hooks.calls import (
    CACHED_TOPIC_LENGTH,
    CACHED_TOPICS,
    FAILURES,
    SAID_AGAIN_AFTER_S,
    Call,
    concerns,
)
from kinmqtt_spi.markers import NOTICE_LIMIT_S
from kinmqtt_spi.pace import Pace, and_others
from kinmqtt_spi.services.metric import Counter, Metrics
from kinmqtt_spi.services.plugin import Clock, Timer

P = ParamSpec("P")

log = Logger("kinmqtt.hooks")

MAILBOX_LIMIT: Final = 10_000
"""Maximum number of queued notices of one hook for one plugin."""
CANCEL_LIMIT_S: Final = 1.0
"""How long later notices wait for a cancelled one to end."""


@define(slots=True)
class NoticeLimit:
    """The time limit of awaited notices, shared by all mailboxes; a reload changes it."""

    limit_s: float = NOTICE_LIMIT_S


class Mailbox:
    """The queued notices of one plugin, in order over all its hooks; handled in a later turn."""

    __slots__ = ("_awaited", "_busy", "_clock", "_drained", "_limit", "_waiting", "overdue")

    def __init__(self, clock: Clock, limit: NoticeLimit) -> None:
        self._clock = clock
        self._limit = limit
        self._drained: list[Deferred[None]] = []
        self._waiting: deque[tuple[Observer, tuple[Any, ...]]] = deque()
        self._awaited: _Awaited | None = None
        self._busy = False
        self.overdue: str | None = None
        """The last notice that exceeded its time limit; ``None`` again after a notice ends in time."""

    def put(self, listener: Observer, arguments: tuple[Any, ...]) -> None:
        """Queue a notice for a later turn."""
        self._waiting.append((listener, arguments))
        if not self._busy:
            self._busy = True
            self._clock.later(0, self._empty)

    def drained(self) -> Deferred[None]:
        """Return a Deferred that fires when the plugin has handled all notices."""
        done: Deferred[None] = Deferred()
        if self._busy:
            self._drained.append(done)
        else:
            done.callback(None)
        return done

    def give_up(self) -> None:
        """Cancel the awaited notice and drop those behind it, with a log line, because the broker stops."""
        awaited = self._awaited
        if awaited is None:
            return
        waiting = len(self._waiting)
        for listener, _ in self._waiting:
            listener.waiting -= 1
        self._waiting.clear()
        log.error(
            "plugin {plugin}: the broker stops before {hook} has ended; it is cancelled; notices lost behind "
            "it: {waiting}",
            plugin=awaited.call.plugin,
            hook=awaited.call.hook,
            waiting=waiting,
        )
        awaited.abandon()

    def _empty(self) -> None:
        # Only the notices queued now: a notice that causes another must not block the reactor.
        for _ in range(len(self._waiting)):
            listener, arguments = self._waiting.popleft()
            listener.waiting -= 1
            call = listener.call
            try:
                answer = call(*arguments)
            except FAILURES as error:
                call.failed(error)
            else:
                if isinstance(answer, Deferred):
                    self._await(listener, answer)
                    return
            if self.overdue is not None:
                self.overdue = None
        if self._waiting:
            self._clock.later(0, self._empty)
        else:
            self._busy = False
            drained, self._drained = self._drained, []
            for done in drained:
                done.callback(None)

    def _await(self, listener: Observer, answer: Deferred[Any]) -> None:
        awaited = self._awaited = _Awaited(self, listener, answer, self._clock)
        awaited.begin(self._limit.limit_s)

    # Called by the awaited notice

    def is_overdue(self, call: Call, limit_s: float) -> None:
        """Log that a notice exceeded its time limit, before it is cancelled."""
        self.overdue = f"{call.hook} did not end within {limit_s:g} s"
        log.error(
            "plugin {plugin}: {hook} has not ended within {limit} s and is cancelled; notices that waited "
            "for it: {waiting}",
            plugin=call.plugin,
            hook=call.hook,
            limit=f"{limit_s:g}",
            waiting=len(self._waiting),
        )

    def ended(self, in_time: bool) -> None:
        """Continue with the next notice: this one has ended, or its time is over."""
        self._awaited = None
        if in_time:
            self.overdue = None
        self._clock.later(0, self._empty)


class _Awaited:
    """A notice whose end is awaited up to the time limit, and after cancellation for a short time more."""

    __slots__ = ("_answer", "_box", "_clock", "_listener", "_timer", "_waited_for", "_was_cut_off", "_was_left")

    def __init__(self, box: Mailbox, listener: Observer, answer: Deferred[Any], clock: Clock) -> None:
        self._box = box
        self._listener = listener
        self._answer = answer
        self._clock = clock
        self._timer: Timer | None = None
        self._was_cut_off = False
        self._was_left = False
        self._waited_for = True

    @property
    def call(self) -> Call:
        """The call that handles the notice."""
        return self._listener.call

    def begin(self, limit_s: float) -> None:
        """Start the time limit."""
        if not has_result(self._answer):
            self._timer = self._clock.later(limit_s, partial(self._cut_off, limit_s))
        self._answer.addCallbacks(self._done, self._failed)

    def abandon(self) -> None:
        """Cancel it without waiting for its end."""
        self._was_cut_off = True
        self._go_on()
        cancel(self._answer)

    def _done(self, _: Any) -> None:
        self._over()

    def _failed(self, failure: Failure) -> None:
        if not self._was_cut_off:
            error: Any = failure.value
            self.call.failed(error)
        self._over()

    def _over(self) -> None:
        if self._waited_for:
            self._go_on()
        elif self._was_left:
            log.info("plugin {plugin}: {hook} ended late", plugin=self.call.plugin, hook=self.call.hook)

    def _cut_off(self, limit_s: float) -> None:
        """Cancel the notice at its time limit. If it can be cancelled, it ends before the next one begins."""
        self._was_cut_off = True
        self.call.failures.value += 1
        self._listener.timed_out.value += 1
        self._box.is_overdue(self.call, limit_s)
        self._timer = self._clock.later(CANCEL_LIMIT_S, self._leave)
        cancel(self._answer)

    def _leave(self) -> None:
        """Stop waiting for a notice that did not end after it was cancelled."""
        self._was_left = True
        log.error(
            "plugin {plugin}: {hook} still runs {limit} s after it was cancelled; later notices to this plugin "
            "run concurrently",
            plugin=self.call.plugin,
            hook=self.call.hook,
            limit=f"{CANCEL_LIMIT_S:g}",
        )
        self._go_on()

    def _go_on(self) -> None:
        self._waited_for = False
        if self._timer is not None:
            self._timer.cancel()
        self._box.ended(not self._was_cut_off)


class Observer:
    """One implementation of a notice. Its share of the plugin's mailbox is bounded independently of other hooks."""

    __slots__ = ("_box", "_dropped", "_pace", "call", "timed_out", "waiting")

    def __init__(self, call: Call, box: Mailbox, metrics: Metrics) -> None:
        labels = {"plugin": call.plugin, "hook": call.hook}
        self.call = call
        self.waiting = 0
        self.timed_out: Counter = metrics.counter("plugin.notices_timed_out", "notices", labels)
        self._dropped: Counter = metrics.counter("plugin.notices_dropped", "notices", labels)
        self._pace = Pace(call.clock, SAID_AGAIN_AFTER_S)
        self._box = box

    def offer(self, arguments: tuple[Any, ...]) -> None:
        """Queue a notice, or drop it if too many wait."""
        if self.waiting >= MAILBOX_LIMIT:
            self._drop()
            return
        self.waiting += 1
        self._box.put(self, arguments)

    def _drop(self) -> None:
        self._dropped.value += 1
        more = self._pace.due()
        if more is not None:
            log.error(
                "plugin {plugin} is too slow for {hook}: {waiting} notices are queued, others are dropped{more}",
                plugin=self.call.plugin,
                hook=self.call.hook,
                waiting=self.waiting,
                more=and_others(more),
            )


class Notify(Generic[P]):
    """Notifies every implementation in a later turn, each at its own pace."""

    __slots__ = ("_listeners", "_wanted", "active")

    def __init__(self, calls: Sequence[Call], mailbox_of: Callable[[str], Mailbox], metrics: Metrics) -> None:
        """``mailbox_of`` returns a plugin's mailbox."""
        self._listeners = tuple(Observer(call, mailbox_of(call.plugin), metrics) for call in calls)
        self._wanted: dict[str, tuple[Observer, ...]] = {}
        self.active = bool(calls)

    def __call__(self, *arguments: P.args, **_: P.kwargs) -> None:
        """Notify all implementations."""
        for listener in self._listeners:
            listener.offer(arguments)

    def to(self, plugin: str, *arguments: P.args, **_: P.kwargs) -> None:
        """Notify one plugin."""
        for listener in self._listeners:
            if listener.call.plugin == plugin:
                listener.offer(arguments)

    def about(self, topic: str, *arguments: P.args, **_: P.kwargs) -> None:
        """Notify the implementations whose filters include the topic."""
        concerned = self._wanted.get(topic)
        if concerned is None:
            concerned = tuple(one for one in self._listeners if concerns(one.call.implementation, topic))
            if len(topic) <= CACHED_TOPIC_LENGTH:
                if len(self._wanted) >= CACHED_TOPICS:
                    self._wanted.clear()
                self._wanted[topic] = concerned
        for listener in concerned:
            listener.offer(arguments)
