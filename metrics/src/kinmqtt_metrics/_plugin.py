"""The plugin itself: hooks, what they become, and one timer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kinmqtt_metrics.aggregation import EventCounts, EventKey
from kinmqtt_metrics.capture import capturing, message_record
from kinmqtt_metrics.disk_writer import DiskWriter
from kinmqtt_metrics.line_writer import RETRY_S, LineWriter, WriterThread
from kinmqtt_metrics.record import EVENT, Record, as_told, memory_bytes, shortened
from kinmqtt_metrics.sampling import Sampling
from kinmqtt_metrics.segments import Disk, InUse, Lock, Recovered, recover
from kinmqtt_metrics.settings import CHOICES, MetricsSettings, check_node_name
from kinmqtt_metrics.spool import Figures, Spool
from kinmqtt_metrics.traffic import TrafficReporter
from kinmqtt_spi import hookimpl
from kinmqtt_spi.errors import AssemblyError, NotConfigured
from kinmqtt_spi.markers import on_topics
from kinmqtt_spi.services.limiter import LimitVerdict
from kinmqtt_spi.services.metric import SysTopic
from kinmqtt_spi.services.plugin import Context, Health, HealthState, Requirements, Timer

if TYPE_CHECKING:
    from kinmqtt_kafka_kit import AiokafkaLog
    from kinmqtt_spi.reasons import ReasonCode
    from kinmqtt_spi.services.authentication import ConnectRequest
    from kinmqtt_spi.services.authorization import AuthorizationRequest
    from kinmqtt_spi.services.limiter import LimitDecision, Resource
    from kinmqtt_spi.services.metric import Snapshot, TrafficSnapshot
    from kinmqtt_spi.values import Address, Client, Message, Subscription

STOP_S: Final = 10.0
"""How long the broker's end may be held up by what is still to be written."""

REMEMBERED: Final = 1_000_000
"""Connections of which it is known when they began."""

_HOOKS: Final = {name: (name,) for name in CHOICES} | {
    "disconnected": ("disconnected", "connection_lost"),
    "taken_over": ("session_taken_over",),
}
"""By event; `connected` is also wanted for how long connections lasted."""

_RESTART: Final = ("sink", "landing", "kafka", "events", "capture")
"""Settings that a reload can't change: what is bound is bound."""

KAFKA: Final = "kafka"
"""The sink that is not the landing folder."""


class MetricsSink:
    """Writes metrics and events into the landing folder or to Kafka, and never keeps the broker waiting."""

    def __init__(self, disk: Disk | None = None, monotonic: Callable[[], float] = time.monotonic) -> None:
        """``monotonic`` is the writing thread's clock, in seconds."""
        self._disk = Disk() if disk is None else disk
        self._monotonic = monotonic
        self._lock: Lock | None = None
        self._thread: WriterThread | None = None
        self._timer: Timer | None = None
        self._left: list[str] = []
        """What earlier lives have left that could not be published."""
        self._aiokafka_log: AiokafkaLog | None = None
        self._told_trouble = ""
        self._told_unlocked = ""
        self._told_dropped = 0
        self.publish_received = capturing(self._captured)

    @hookimpl
    def requirements(self) -> Requirements:
        """Written for version 2 of the SPI (a number of ours: SPI_VERSION is whichever is installed)."""
        return Requirements(spi_version=2)

    @hookimpl
    def settings_class(self) -> type[MetricsSettings]:
        """The section is parsed into this: where the extra ``kafka`` is installed, with a table of that name."""
        try:
            from kinmqtt_metrics.kafka_settings import SettingsWithKafka
        except ImportError:
            return MetricsSettings
        return SettingsWithKafka

    # Its life

    @hookimpl
    def configure(self, context: Context) -> None:
        """Abstain without a place to write to; leave out the hooks of what is not told."""
        settings: MetricsSettings = context.settings
        self._context = context
        self.settings = settings
        self._bound = settings
        self._check_sink(settings)
        hooks = {hook for event, names in _HOOKS.items() if event not in settings.events for hook in names}
        if "disconnected" in settings.events:
            hooks.discard("connected")
        self._tells_connected = "connected" in settings.events
        self._tells_disconnected = "disconnected" in settings.events
        if settings.capture:
            on_topics(*settings.capture)(self.publish_received)
        else:
            hooks.add("publish_received")
        context.leave_out(*sorted(hooks))
        self._figures = Figures(context.metrics)
        self._spool = Spool(settings.max_waiting_bytes, self._figures)
        self._offer = self._spool.offer
        context.metrics.gauge("metrics.waiting", "bytes", lambda: self._spool.waiting_bytes)
        self._sampling = Sampling(self._offer)
        self._counts = EventCounts(self._offer, settings.max_pairs)
        self._traffic = TrafficReporter(context, self._offer)
        self._since: dict[str, float] = {}
        self._writer = self._writer_of(settings, context)
        self._go_by(settings)

    def _check_sink(self, settings: MetricsSettings) -> None:
        """Raises ``NotConfigured`` and ``AssemblyError``."""
        if settings.sink == KAFKA:
            kafka = getattr(settings, KAFKA, None)
            if kafka is None:
                raise AssemblyError(
                    'plugins.metrics.sink = "kafka" needs the extra kafka: pip install "kinmqtt-metrics[kafka]"'
                )
            if settings.landing is not None:
                raise AssemblyError(
                    'plugins.metrics: with sink = "kafka" nothing is written to landing: leave it out. What brokers '
                    "wrote there stays, for a pipeline that reads it"
                )
            if not kafka.servers:
                raise NotConfigured("plugins.metrics.kafka.servers names no server")
        elif settings.landing is None:
            raise NotConfigured("plugins.metrics has no landing folder")
        else:
            check_node_name(self._context.node.name)

    def _writer_of(self, settings: MetricsSettings, context: Context) -> LineWriter:
        node, boot = context.node.name, f"{context.node.uid & (1 << 64) - 1:016x}"
        if settings.landing is None:
            from kinmqtt_kafka_kit import AiokafkaLog
            from kinmqtt_metrics.kafka_settings import SettingsWithKafka
            from kinmqtt_metrics.kafka_writer import KafkaWriter

            assert isinstance(settings, SettingsWithKafka)
            self._aiokafka_log = AiokafkaLog(context.log)
            return KafkaWriter(self._spool, settings.kafka, node, boot, self._monotonic)
        return DiskWriter(
            self._spool,
            self._disk,
            settings.landing,
            node,
            boot,
            context.clock.now,
            self._monotonic,
            self._keep_lock,
        )

    def _go_by(self, settings: MetricsSettings) -> None:
        self.settings = settings
        self._spool.limit(settings.max_waiting_bytes)
        self._counts.limit = settings.max_pairs
        self._writer.go_by(settings)

    @hookimpl
    async def start(self, context: Context) -> None:
        """Publish what earlier lives have left, and begin to write."""
        await self._take_over(context)
        if self._aiokafka_log is not None:
            self._aiokafka_log.begin()
        self._thread = WriterThread(self._writer, self._monotonic)
        self._thread.start()
        self._event("started", {})
        self._arm()

    async def _take_over(self, context: Context) -> None:
        landing = self._bound.landing
        if landing is None:
            return
        for one in await context.in_thread(lambda: self._open(landing)):
            if one.published is not None:
                context.log.info("published {segment} of an earlier run", segment=str(one.published))
            if one.cut_bytes:
                context.log.warn(
                    "removed {bytes} bytes of an incomplete record from {segment}",
                    bytes=one.cut_bytes,
                    segment=str(one.name),
                )
        for sentence in self._left:
            context.log.error("{sentence}", sentence=sentence)

    def _open(self, landing: Path) -> list[Recovered]:
        """Raises ``AssemblyError`` where the folder can't be written to, or another one does."""
        node = self._context.node.name
        try:
            self._disk.make_folder(landing)
            self._lock = Lock(landing, node)
            return recover(self._disk, landing, node, self._context.clock.now, self._not_recovered)
        except InUse as error:
            self._release()
            raise AssemblyError(
                f"plugins.metrics.landing: another broker named {node!r} writes to {landing}; give this one another "
                "name (broker.node_name) or another folder"
            ) from error
        except OSError as error:
            self._release()
            raise AssemblyError(
                f"plugins.metrics.landing: {landing} can't be written to ({error.strerror}); it must be a folder "
                "that belongs to the broker's user"
            ) from error

    def _keep_lock(self) -> None:
        # In the writing thread, which has ended before the lock is released.
        if self._lock is not None:
            self._lock.keep()

    def _release(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    def _not_recovered(self, path: Path, error: OSError) -> None:
        self._left.append(f"{path} can't be published before the next start: {error.strerror}")

    @hookimpl
    async def stop(self) -> None:
        """Write and publish everything, within a time that is bounded."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        thread, self._thread = self._thread, None
        if thread is None:
            self._release()
            return
        try:
            self._traffic.finish(is_last=True)
            self._counts.flush(self._now())
            self._event("stopped", {})
        finally:
            # Whatever became of the last words: from here on the thread writes and publishes, whoever waits for it.
            thread.end(STOP_S)
            ended = await self._joined(thread)
            self._tell_news(thread)
            if self._aiokafka_log is not None:
                self._aiokafka_log.end()
            if ended:
                self._release()
            else:
                # It may write yet: the folder stays this process's until it ends, or two would write one life.
                self._context.log.error("{stuck}", stuck=self._writer.stuck)

    async def _joined(self, thread: WriterThread) -> bool:
        """Wait for the writing thread's end; ``False`` where it takes longer than it may."""
        try:
            joined = self._context.in_thread(thread.join)
            # The threads that wait may all be busy with something else.
            cancel = getattr(joined, "cancel", _nothing)
            timer = self._context.clock.later(STOP_S + RETRY_S, cancel)
            try:
                return await joined
            finally:
                timer.cancel()
        except Exception:
            # Without their help, for as long as it has left: not at all where they were too busy until now.
            return thread.join()

    @hookimpl
    def reload(self, settings: MetricsSettings) -> Sequence[str]:
        """Take new limits and times; where records go, events and capture need a restart."""
        bound = self._bound
        sentences = [
            f"{key} needs a restart" for key in _RESTART if getattr(settings, key, None) != getattr(bound, key, None)
        ]
        self._go_by(settings)
        return sentences

    @hookimpl
    def health(self) -> Health:
        """Degraded while nothing can be written, and where something of an earlier life could not be published."""
        if self._thread is not None and not self._thread.is_alive:
            return Health(HealthState.FAILED, f"the writing thread has ended: {self._thread.error}")
        figures, trouble = self._figures, self._trouble()
        dropped = figures.all_dropped
        if trouble:
            return Health(HealthState.DEGRADED, f"writing fails: {trouble}; {dropped} records dropped")
        if self._writer.unlocked:
            return Health(HealthState.DEGRADED, self._writer.unlocked)
        if self._left:
            return Health(HealthState.DEGRADED, "; ".join(self._left))
        return Health(HealthState.HEALTHY, f"{figures.written.value} records written, {dropped} dropped")

    @hookimpl
    def sys_topics(self) -> Sequence[SysTopic]:
        """What was written and dropped, and what waits."""
        figures = self._figures
        readings: dict[str, Callable[[], int]] = {
            "written": lambda: figures.written.value,
            "bytes": lambda: figures.bytes.value,
            "segments": lambda: figures.segments.value,
            "failures": lambda: figures.failures.value,
            "dropped": lambda: figures.all_dropped,
            "waiting": lambda: self._spool.waiting_bytes,
        }
        return [SysTopic(f"$SYS/metrics/{name}", _text(read)) for name, read in readings.items()]

    # The timer

    def _arm(self) -> None:
        self._timer = self._context.clock.later(self.settings.roll_s, self._tick)

    def _tick(self) -> None:
        try:
            self._traffic.finish()
            self._counts.flush(self._now())
            if self._thread is not None:
                self._tell_news(self._thread)
        finally:
            self._arm()

    def _trouble(self) -> str:
        return self._writer.stuck if self._writer.is_stuck else self._writer.trouble

    def _tell_news(self, thread: WriterThread) -> None:
        """Log what has changed since the last time; the writing thread leaves the log alone."""
        thread.count_left()
        if self._aiokafka_log is not None:
            self._aiokafka_log.flush()
        log = self._context.log
        trouble = self._trouble() or thread.error
        if trouble != self._told_trouble:
            if trouble:
                log.error("records can't be written: {trouble}", trouble=trouble)
            else:
                log.info("records are written again")
            self._told_trouble = trouble
        unlocked = self._writer.unlocked
        if unlocked != self._told_unlocked:
            if unlocked:
                log.error("{unlocked}", unlocked=unlocked)
            else:
                log.info("the lock of {landing} is held again", landing=str(self._bound.landing))
            self._told_unlocked = unlocked
        dropped = self._figures.all_dropped
        if dropped != self._told_dropped:
            log.warn("{number} records were dropped", number=dropped - self._told_dropped)
            self._told_dropped = dropped

    # What is told

    def _now(self) -> int:
        return int(self._context.clock.now() * 1e6)

    @hookimpl
    def sampled(self, snapshot: Snapshot) -> None:
        """All metrics at one moment."""
        self._sampling.take(snapshot, int(snapshot.at * 1e6))

    @hookimpl
    def traffic_sampled(self, traffic: TrafficSnapshot) -> None:
        """What each client has published to each topic."""
        self._traffic.sample(traffic, self.settings.max_pairs)

    def _event(
        self,
        name: str,
        labels: dict[str, str],
        client: str = "",
        topic: str = "",
        reason: str = "",
        number: float | None = None,
    ) -> None:
        record: Record = {"kind": EVENT, "name": name}
        if labels:
            record["labels"] = labels
        if number is not None:
            record["number"] = number
        if client:
            record["client"] = as_told(client)
        if topic:
            record["topic"] = as_told(topic)
        if reason:
            record["reason"] = reason
        self._offer(self._now(), record, memory_bytes(client, topic, *labels.values()))

    @hookimpl
    def connected(self, client: Client, session_present: bool) -> None:
        """A client has its CONNACK."""
        if self._tells_disconnected:
            since = self._since
            if len(since) >= REMEMBERED:
                del since[next(iter(since))]
            since[client.client_id] = self._context.clock.monotonic()
        if self._tells_connected:
            labels = _who(client)
            labels["protocol"] = str(client.protocol_version)
            labels["session"] = "resumed" if session_present else "new"
            self._event("connected", labels, client.client_id)

    @hookimpl
    def disconnected(self, client: Client, by_client: bool, reason: ReasonCode) -> None:
        """A connection has ended with a DISCONNECT."""
        self._ended(client, "client" if by_client else "broker", reason.name.lower())

    @hookimpl
    def connection_lost(self, client: Client) -> None:
        """A connection has ended without one."""
        self._ended(client, "network", "connection_lost")

    def _ended(self, client: Client, by: str, reason: str) -> None:
        began = self._since.pop(client.client_id, None)
        lasted_s = None if began is None else self._context.clock.monotonic() - began
        labels = _who(client)
        labels["by"] = by
        self._event("disconnected", labels, client.client_id, "", reason, lasted_s)

    @hookimpl
    def session_taken_over(self, client: Client, old_address: Address) -> None:
        """A new connection has taken a client id from an open one."""
        self._event("taken_over", _who(client) | {"old_address": old_address.host}, client.client_id)

    @hookimpl
    def session_expired(self, client_id: str) -> None:
        """A session's expiry interval has passed."""
        self._event("session_expired", {}, client_id)

    @hookimpl
    def subscribed(self, client: Client, subscription: Subscription) -> None:
        """A subscription was made or replaced."""
        labels = {"qos": str(int(subscription.qos))}
        self._event("subscribed", labels, client.client_id, subscription.full_filter)

    @hookimpl
    def unsubscribed(self, client: Client, filter: str) -> None:
        """A subscription was given up."""
        self._event("unsubscribed", {}, client.client_id, filter)

    # What is summed

    @hookimpl
    def retained(self, message: Message) -> None:
        """A message is retained. The broker's own numbers are in the samples."""
        if not message.topic.startswith("$SYS/"):
            self._counts.count(EventKey("retained", message.publisher.client_id, message.topic, ""))

    @hookimpl
    def retain_cleared(self, topic: str) -> None:
        """A topic's retained message was deleted or has expired."""
        self._counts.count(EventKey("retain_cleared", "", topic, ""))

    @hookimpl
    def authentication_refused(self, request: ConnectRequest, by: str, reason: ReasonCode) -> None:
        """A client has been refused."""
        self._counts.count(
            EventKey(
                "authentication_refused", request.client_id, "", reason.name.lower(), (("by", by),) if by else ()
            )
        )

    @hookimpl
    def authorization_refused(self, request: AuthorizationRequest, by: str) -> None:
        """A client may not do something with a topic."""
        labels = (("action", request.action.value), ("by", by))
        self._counts.count(EventKey("authorization_refused", request.client.client_id, "", "not_authorized", labels))

    @hookimpl
    def limited(self, resource: Resource, decision: LimitDecision) -> None:
        """A limiter said something other than ALLOW."""
        verdict = decision.verdict
        says_why = verdict in (LimitVerdict.REJECT, LimitVerdict.DISCONNECT)
        reason = decision.reason.name.lower() if says_why else verdict.value
        labels = (("by", decision.rule), ("resource", resource.kind.value), ("verdict", verdict.value))
        self._counts.count(EventKey("limited", resource.client_id or "", "", reason, labels))

    @hookimpl
    def dropped(self, client_id: str, why: str) -> None:
        """A message did not reach a client."""
        self._counts.count(EventKey("dropped", client_id, "", why))

    # What is archived

    def _captured(self, client: Client, message: Message) -> None:
        record = message_record(client, message, self.settings.capture_max_payload_bytes)
        more_bytes = memory_bytes(client.client_id, message.topic) + len(record.get("payload", b""))
        self._offer(int(message.received_at * 1e6), record, more_bytes)


def _who(client: Client) -> dict[str, str]:
    labels = {"address": client.address.host, "listener": client.listener}
    if client.username is not None:
        labels["username"] = shortened(client.username)
    return labels


def _nothing() -> None:
    """What can't be cancelled."""


def _text(read: Callable[[], int]) -> Callable[[], str]:
    return lambda: str(read())
