"""``$SYS``: the broker's metrics as retained messages, under Mosquitto's names and the broker's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from twisted.logger import Logger

from kinmqtt_spi.services.metric import Counter, SysScope, SysTopic
from kinmqtt_spi.values import Message

if TYPE_CHECKING:
    from kinmqtt.broker.services import Services

log = Logger("kinmqtt.sys")


def own_topics(services: Services, version: str) -> list[SysTopic]:
    """Returns the broker's own topics; docs/metric.md lists them."""
    runtime = services.runtime
    statistics = runtime.statistics
    stores = runtime.stores
    sessions = services.sessions
    started = runtime.clock.monotonic()
    queued: Callable[[], int] = lambda: sum(s.queue.count for s in sessions.by_id.values())  # noqa: E731
    inflight: Callable[[], int] = lambda: sum(len(s.outgoing) for s in sessions.by_id.values())  # noqa: E731
    dropped: Callable[[], int] = lambda: sum(c.value for c in statistics.dropped.values())  # noqa: E731
    numbers: dict[str, Callable[[], int]] = {
        "$SYS/client/connected": lambda: sessions.connected,
        "$SYS/client/disconnected": lambda: sessions.clients - sessions.connected,
        "$SYS/retain/count": stores.retain.count,
        "$SYS/sent/count": _value(statistics.messages_sent),
        "$SYS/sent/bytes": _value(statistics.bytes_sent),
        "$SYS/received/count": _value(statistics.messages_received),
        "$SYS/received/bytes": _value(statistics.bytes_received),
        "$SYS/inflight/count": inflight,
        "$SYS/queued/count": queued,
        "$SYS/broker/clients/connected": lambda: sessions.connected,
        "$SYS/broker/clients/disconnected": lambda: sessions.clients - sessions.connected,
        "$SYS/broker/clients/total": lambda: sessions.clients,
        "$SYS/broker/clients/expired": _value(statistics.sessions_expired),
        "$SYS/broker/bytes/received": _value(statistics.bytes_received),
        "$SYS/broker/bytes/sent": _value(statistics.bytes_sent),
        "$SYS/broker/messages/received": _value(statistics.packets_received),
        "$SYS/broker/messages/sent": lambda: statistics.packets_sent.value + statistics.messages_sent.value,
        "$SYS/broker/publish/messages/received": _value(statistics.messages_received),
        "$SYS/broker/publish/messages/sent": _value(statistics.messages_sent),
        "$SYS/broker/publish/messages/dropped": dropped,
        "$SYS/broker/retained messages/count": stores.retain.count,
        "$SYS/broker/subscriptions/count": services.router.index.count,
        "$SYS/broker/store/messages/count": lambda: stores.queue.totals().queued,
        "$SYS/broker/store/messages/bytes": lambda: stores.queue.totals().queued_bytes,
    }
    topics = [SysTopic(topic, _text(read)) for topic, read in numbers.items()]
    topics.append(SysTopic("$SYS/broker/version", lambda: f"kinmqtt version {version}", on_change_only=True))
    topics.append(SysTopic("$SYS/broker/uptime", lambda: f"{int(runtime.clock.monotonic() - started)} seconds"))
    return topics


def _value(counter: Counter) -> Callable[[], int]:
    return lambda: counter.value


def _text(read: Callable[[], int]) -> Callable[[], str]:
    return lambda: str(read())


class SysPublisher:
    """Publishes the topics at each interval; those marked ``on_change_only`` only after a change."""

    def __init__(self, publish: Callable[[Message], object], topics: Iterable[SysTopic]) -> None:
        """If two topics have the same name, the first is used."""
        self._publish = publish
        self._topics: dict[str, SysTopic] = {}
        self._last: dict[str, str] = {}
        self.add(topics)

    def add(self, topics: Iterable[SysTopic]) -> None:
        """Publish these as well; of two with the same name, the first is used."""
        for topic in topics:
            if not topic.topic.startswith("$SYS/"):
                log.error("{topic!r} is not below $SYS/ and is left out", topic=topic.topic)
            else:
                self._topics.setdefault(topic.topic, topic)

    def publish(self) -> dict[str, str]:
        """Publish all topics; those marked ``on_change_only`` only if they changed.

        Returns the payloads of those that tell of this node, by topic.
        """
        read: dict[str, str] = {}
        for name, topic in self._topics.items():
            try:
                text = topic.read()
                if topic.scope is SysScope.NODE:
                    read[name] = text
                if topic.on_change_only and self._last.get(name) == text:
                    continue
                self._publish(Message(name, text.encode(), retain=True))
                self._last[name] = text
            except Exception:
                log.failure("{topic} can't be read or published", topic=name)
        return read
