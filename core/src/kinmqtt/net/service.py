"""The broker as a Twisted service: started before its listeners, stopped after them."""

from __future__ import annotations

import asyncio
import secrets
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from attrs import frozen
from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IListeningPort
from twisted.logger import Logger

from kinmqtt.broker.assembly import Assembly
from kinmqtt.broker.broker import Broker
from kinmqtt.broker.cluster.joining import JoinAbandoned
from kinmqtt.broker.lifecycle import STOP_LIMIT_S
from kinmqtt.broker.overload import Level
from kinmqtt.hooks.awaitables import limited
from kinmqtt.net.collector import Collector
from kinmqtt.net.listeners import ListenerPort, close_all, open_all
from kinmqtt.net.owned import log_errors, owning_loop
from kinmqtt.net.protocol import SharedBounds
from kinmqtt.net.remarks import remarks, warnings
from kinmqtt.settings import LimitSettings
from kinmqtt_spi.errors import SpiError

log = Logger("kinmqtt")

LOOK_AT_ALL_S: Final = 1.0
"""Interval of the check whether the garbage collector should examine all objects."""

LOOK_AT_CERTIFICATES_S: Final = 86_400.0
"""Interval at which a running broker checks its certificates."""


def next_turn(reactor: Any) -> Callable[[Callable[[], object]], object]:
    """Return what schedules a call for the next reactor turn: asyncio's cheaper way if there is a loop."""
    loop = getattr(reactor, "_asyncioEventloop", None)
    if isinstance(loop, asyncio.AbstractEventLoop):
        return loop.call_soon
    return lambda call: reactor.callLater(0, call)


@frozen(slots=True)
class NewSettings:
    """The new settings of a reload."""

    for_plugin: Callable[[str, type[Any] | None], Any]
    """Parses a plugin's section into its settings class."""
    limits: LimitSettings
    left: Sequence[str]
    """A line for each change that needs a restart."""


class BrokerService(Service):
    """Starts and stops one broker and its listeners."""

    name = "kinmqtt"

    def __init__(
        self,
        reactor: Any,
        assembly: Assembly,
        listeners: Sequence[ListenerPort],
        version: str,
        introduce: Callable[[Broker], Sequence[str]],
        reread: Callable[[], NewSettings],
    ) -> None:
        """``introduce`` returns the lines logged when the listeners are open; ``reread`` is called for a reload."""
        self._reread = reread
        self._reactor = reactor
        self._listeners = listeners
        self._introduce = introduce
        self._ports: list[IListeningPort] = []
        self._starting: Deferred[None] | None = None
        self.broker = Broker(assembly, next_turn(reactor), secrets.token_hex, version)
        self._bounds = SharedBounds.of(self.broker.runtime.clock)
        self._collector = Collector()
        self.failed: str | None = None
        """Why the broker could not start."""
        self._is_given_up = False
        self.expelled: str | None = None
        """Why the other nodes of the cluster have declared this process DOWN: it is to be started again."""
        self.broker.when_expelled(self._end_as_expelled)

    def startService(self) -> None:
        """Start; a failure stops the reactor, and the process exits with status 1."""
        super().startService()  # type: ignore[no-untyped-call]
        self._starting = Deferred.fromCoroutine(self._start())
        self._starting.addErrback(self._give_up)

    def stopService(self) -> Deferred[None]:
        """Stop in order; the Deferred fires when the broker has stopped."""
        super().stopService()  # type: ignore[no-untyped-call]
        return Deferred.fromCoroutine(self._stop())

    async def reload(self) -> None:
        """Read the settings file and the certificates again; a file with mistakes changes nothing."""
        try:
            new = self._reread()
            left = await self.broker.reload(new.for_plugin, new.limits)
        except SpiError as error:
            for line in str(error).splitlines():
                log.error("reload: {line}", line=line)
            log.error("reload: the settings have mistakes; the old ones stay in effect")
            return
        left += [*self._reload_certificates(), *new.left]
        self._look_at_certificates()
        for line in left:
            log.warn("reload: {line}", line=line)
        what = "all else is" if left else "plugins, limits and certificates are"
        log.info("reload: {what} as the settings say now", what=what)

    def _reload_certificates(self) -> list[str]:
        """Read each listener's certificates again; return a line for each listener that keeps its old ones."""
        left = []
        for listener in self._listeners:
            try:
                if listener.tls is not None:
                    listener.tls.reload()
            except SpiError as error:
                left.append(f"{error}; the old certificate stays in effect")
        return left

    def _look_at_certificates(self) -> None:
        """Log a warning for each certificate in use that is invalid, or soon will be."""
        for listener in self._listeners:
            if listener.tls is not None:
                for line in listener.tls.problems(self._now):
                    log.warn("{line}", line=line)

    @property
    def _now(self) -> float:
        return self.broker.runtime.clock.now()

    def _reload_on_hangup(self) -> None:
        """Reload on SIGHUP, if the reactor runs in the main thread."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGHUP, lambda *_: self._reactor.callFromThread(self._reload_soon))

    def _reload_soon(self) -> None:
        Deferred.fromCoroutine(self.reload()).addErrback(lambda failure: log.failure("the reload failed", failure))

    async def _start(self) -> None:
        await self.broker.start()
        if not self.running:
            return  # The service was stopped in the meantime.
        try:
            loop = owning_loop(self._reactor)
            if loop is not None:
                log_errors(loop)
            self._ports = await open_all(self.broker, self._listeners, loop, self._bounds)
        except BaseException:
            await self.broker.stop()
            raise
        await self.broker.ready()
        self._reload_on_hangup()
        for line in self._introduce(self.broker):
            log.info("{line}", line=line)
        for listener in self._listeners:
            for line in remarks(listener):
                log.info("{line}", line=line)
            for line in warnings(listener, self._now):
                log.warn("{line}", line=line)
        self.broker.housekeeping.every(LOOK_AT_CERTIFICATES_S, self._look_at_certificates, at_once=False)
        self._collector.begin()
        self.broker.runtime.turn.when_ended(self._collector.look)
        self.broker.housekeeping.every(LOOK_AT_ALL_S, self._look_at_all, at_once=False)

    def _look_at_all(self) -> None:
        self._collector.look_at_all(self.broker.overload.level > Level.NORMAL)

    def _end_as_expelled(self, reason: str) -> None:
        if self.expelled is None:
            self.expelled = reason
            if self.running:
                self._reactor.callWhenRunning(self._reactor.stop)

    def _give_up(self, failure: Any) -> None:
        if failure.check(JoinAbandoned):
            self._is_given_up = True
            log.info("stopped: {why}", why=failure.value)
            return
        if failure.check(SpiError):
            self.failed = str(failure.value)
        else:
            self.failed = f"{failure.type.__name__}: {failure.value}"
            log.failure("the broker could not start", failure)
        if self.running:
            self._reactor.callWhenRunning(self._reactor.stop)

    async def _stop(self) -> None:
        if self._starting is not None:
            # The start must have finished or failed before the stop. A wait for other nodes has no end of its own.
            self.broker.lifecycle.joining.give_up()
            await limited(self._starting, self.broker.runtime.clock, STOP_LIMIT_S)
        await close_all(self._ports)
        self._ports = []
        # The broker waits for the connections that it closes from now on, until their last data is sent.
        self._bounds.admission.stop()
        self._bounds.lingering.stop()
        try:
            if self.failed is None and not self._is_given_up:
                await self.broker.stop()
        finally:
            self._collector.stop()
