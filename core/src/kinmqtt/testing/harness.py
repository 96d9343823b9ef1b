"""A whole broker in memory: real plugins and services, links without sockets, and a clock that the test advances.

    broker = BrokerHarness(plugins={"guard": Guard()}, config='plugins.guard.deny = ["secret/#"]')
    subscriber = broker.connect("subscriber")
    subscriber.subscribe("a/#", qos=1)
    broker.connect("publisher").publish("a/b", b"x", qos=1)
    assert subscriber.messages == [("a/b", b"x", 1)]

Everything runs at once: a call returns when the reactor turns that it caused are over. Timers wait for
:meth:`BrokerHarness.advance`. The tests of a plugin get the class from the fixture ``kinmqtt_broker``, and need not
import the core.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, TypeVar

from attrs import fields
from twisted.internet.defer import Deferred, succeed

from kinmqtt.broker.assembly import Assembly, Environment, assemble
from kinmqtt.broker.broker import Broker
from kinmqtt.broker.connection.connection import Connection
from kinmqtt.broker.connection.listener import Listener, ListenerPlan
from kinmqtt.broker.handlers.table import HANDLERS
from kinmqtt.hooks.discovery import Candidate, builtin_candidates
from kinmqtt.hooks.manager import PluginManager
from kinmqtt.hooks.selection import Selection, choose
from kinmqtt.mqtt.codec import decode, encode
from kinmqtt.mqtt.framing import Framer
from kinmqtt.mqtt.packets import (
    V5,
    V311,
    Connack,
    Connect,
    ConnectWill,
    DisconnectPacket,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscribeRequest,
    Unsuback,
    Unsubscribe,
)
from kinmqtt.settings import BrokerSettings, LimitSettings, ListenerSettings
from kinmqtt.settings.machine import Machine
from kinmqtt_spi.errors import SettingsError
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.properties import NO_PROPERTIES, Properties
from kinmqtt_spi.settings import Document, did_you_mean, parse
from kinmqtt_spi.values import Address, NodeIdentity
from kinmqtt_spi.values import Will as SpiWill

P = TypeVar("P")


class MemoryLink:
    """A transport without a network; see :class:`kinmqtt.broker.connection.link.Link`."""

    def __init__(self, listener: Listener, address: Address) -> None:
        self.ready = True
        self.listener = listener
        self.address = address
        self.certificate_subject: str | None = None
        self.certificate_username: str | None = None
        self.certificate_problem: str | None = None
        self.written = bytearray()
        self.reading = True
        self.closed = False
        self.lingered = False
        """Whether the broker lets the client read the last packets before the connection ends."""
        self.lingers = False
        """Set by a test: a close does not end the connection; the test does."""
        self.blocked = False
        """Set by a test: the socket accepts no bytes until :meth:`HarnessClient.unblock`."""

    def write(self, data: bytes) -> None:
        if self.closed:
            return
        self.written += data
        if self.blocked:
            self.ready = False

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self, linger: bool = False) -> None:
        self.closed = True
        self.lingered = linger

    def abort(self) -> None:
        self.closed = True


class HarnessClient:
    """The client's end of a connection. It acknowledges what it receives, unless ``silent``."""

    def __init__(self, harness: BrokerHarness, link: MemoryLink, connection: Connection, version: int) -> None:
        self.harness = harness
        self.link = link
        self.connection = connection
        self.version = version
        self.packets: list[Packet] = []
        """All packets that the broker has sent, in order."""
        self.silent = False
        self.packet_ids = count(1)
        self._framer = Framer()

    # Sending

    def send(self, packet: Packet) -> HarnessClient:
        """Send a packet."""
        return self.send_bytes(encode(packet, self.version))

    def send_bytes(self, data: bytes) -> HarnessClient:
        """Send bytes as they are."""
        if not self.link.closed:
            self.connection.receive(data)
        self.harness.settle()
        return self

    def publish(
        self, topic: str, payload: bytes = b"", qos: int = 0, retain: bool = False, **more: Any
    ) -> HarnessClient:
        """Publish; ``packet_id``, ``dup`` and ``properties`` may be given."""
        if qos:
            more.setdefault("packet_id", next(self.packet_ids))
        return self.send(Publish.build(topic, payload, qos=qos, retain=retain, **more))

    def subscribe(
        self, filter: str, qos: int = 0, properties: Properties = NO_PROPERTIES, **options: Any
    ) -> HarnessClient:
        """Subscribe to one filter; ``options`` are those of :class:`SubscribeRequest`."""
        request = SubscribeRequest(filter, qos, **options)
        return self.send(Subscribe(next(self.packet_ids), (request,), properties))

    def unsubscribe(self, filter: str) -> HarnessClient:
        """Unsubscribe from one filter."""
        return self.send(Unsubscribe(next(self.packet_ids), (filter,)))

    def disconnect(self, **fields: Any) -> HarnessClient:
        """Send DISCONNECT."""
        return self.send(DisconnectPacket(**fields))

    def drop(self) -> HarnessClient:
        """Lose the network connection."""
        self.link.closed = True
        self.connection.lost("Connection was lost.")
        self.harness.settle()
        return self

    def unblock(self) -> HarnessClient:
        """Let the socket accept what the broker has buffered."""
        self.link.blocked = False
        self.link.ready = True
        self.connection.drained()
        self.harness.settle()
        return self

    # Receiving

    def collect(self) -> bool:
        """Read what the broker has written and acknowledge it; returns whether there was anything to acknowledge."""
        answers: list[Packet] = []
        data = bytes(self.link.written)
        self.link.written.clear()
        if self.link.closed and not self.link.lingers and self.connection in self.harness.broker.connections:
            self.connection.lost("Connection was closed.")
        for frame, body in self._framer.feed(data):
            packet = decode(frame, body, self.version)
            self.packets.append(packet)
            answers.extend(self._answer(packet))
        if self.link.closed or self.silent:
            return False
        for answer in answers:
            self.connection.receive(encode(answer, self.version))
        return bool(answers)

    def _answer(self, packet: Packet) -> list[Packet]:
        if isinstance(packet, Publish) and packet.qos == 1:
            return [Puback(packet.packet_id)]
        if isinstance(packet, Publish) and packet.qos == 2:
            return [Pubrec(packet.packet_id)]
        if isinstance(packet, Pubrel):
            return [Pubcomp(packet.packet_id)]
        if isinstance(packet, Pubrec) and not packet.reason.is_failure:
            return [Pubrel(packet.packet_id)]
        return []

    def of(self, packet_class: type[P]) -> list[P]:
        """The packets of one class that the broker has sent."""
        return [packet for packet in self.packets if isinstance(packet, packet_class)]

    @property
    def messages(self) -> list[tuple[str, bytes, int]]:
        """Topic, payload and QoS of every PUBLISH received."""
        return [(p.topic, p.payload, p.qos) for p in self.of(Publish)]

    @property
    def connack(self) -> Connack:
        """The CONNACK."""
        [connack] = self.of(Connack)
        return connack

    @property
    def granted(self) -> list[int]:
        """The reason codes of the last SUBACK."""
        return [int(reason) for reason in self.of(Suback)[-1].reasons]

    @property
    def given_up(self) -> list[int]:
        """The reason codes of the last UNSUBACK."""
        return [int(reason) for reason in self.of(Unsuback)[-1].reasons]

    @property
    def closed(self) -> bool:
        """Whether the broker has closed the connection."""
        return self.link.closed


class BrokerHarness:
    """A broker with its clock, and the clients that use it."""

    def __init__(
        self,
        *,
        plugins: Mapping[str, Any] | None = None,
        settings: BrokerSettings | None = None,
        plugin_settings: Mapping[str, Any] | None = None,
        config: str = "",
        start: bool = True,
        reactor: str = "asyncio",
        clock: TurnableClock | None = None,
        services: Mapping[str, str] | None = None,
        order: tuple[str, ...] = (),
        listeners: Mapping[str, ListenerSettings] | None = None,
        sys_interval_s: int = 0,
        machine: Machine = Machine(),  # noqa: B008 - it never changes
        node: NodeIdentity = NodeIdentity("test", 7),  # noqa: B008
        **limits: Any,
    ) -> None:
        """``plugins`` by name come before the built-ins; ``limits`` are fields of :class:`LimitSettings`.

        A plugin's settings are an instance of its settings class in ``plugin_settings``, or a section of
        ``config``, which is TOML as in a settings file and holds ``[plugins.NAME]`` only. ``$SYS`` topics and
        snapshots of the metrics come every ``sys_interval_s`` seconds; with 0 never. By default nothing is known
        of the ``machine`` that limits follow from. ``node`` is the broker's identity in a cluster. Raises what
        assembling a broker raises.
        """
        self.node = node
        self.clock = clock or TurnableClock()
        self.memory_bytes: int | None = 0
        """The memory that the broker measures."""
        self.trims = 0
        """How often the broker has released free memory to the system."""
        self.machine = machine
        """The machine that the broker sees, at the start and at a reload."""
        self.peers: list[HarnessClient] = []
        self._soon: deque[Callable[[], object]] = deque()
        self._hex = count(1)
        manager = _manager(plugins or {}, Selection(order=order, services=dict(services or {})), reactor)
        sections = _PluginSections(plugin_settings or {}, config)
        self.assembly: Assembly = assemble(
            settings or BrokerSettings(sys_interval_s=sys_interval_s),
            _limits(limits),
            sections.of,
            manager,
            self._surroundings(listeners or {"tcp:1883": ListenerSettings(endpoint="127.0.0.1:1883")}),
        )
        sections.check_all_read()
        self.broker = Broker(self.assembly, self._soon.append, lambda n: f"{next(self._hex):0{2 * n}x}", "test")
        if start:
            self.result(self.broker.start())

    def _surroundings(self, listeners: Mapping[str, ListenerSettings]) -> Environment:
        return Environment(
            self.node,
            self.clock,
            lambda call: succeed(call()),
            [ListenerPlan(name, True, plan) for name, plan in listeners.items()],
            lambda: self.memory_bytes,
            lambda: self.machine,
            lambda: setattr(self, "trims", self.trims + 1),
        )

    def result(self, coroutine: Any) -> Any:
        """The result of a coroutine that can end without time passing."""
        outcome: list[Any] = []
        Deferred.fromCoroutine(coroutine).addBoth(outcome.append)
        self.settle()
        assert outcome, "the coroutine still waits"
        if hasattr(outcome[0], "raiseException"):
            outcome[0].raiseException()
        return outcome[0]

    def settle(self) -> None:
        """Run reactor turns until nothing more happens without time passing."""
        busy = True
        while busy:
            busy = False
            while self._soon:
                self._soon.popleft()()
                busy = True
            for peer in self.peers:
                busy |= peer.collect()
            self.clock.advance(0)
            busy |= bool(self._soon) or any(peer.link.written for peer in self.peers)

    def advance(self, seconds: float) -> None:
        """Let time pass, second by second."""
        whole = int(seconds)
        for step in [1.0] * whole + ([seconds - whole] if seconds > whole else []):
            self.clock.advance(step)
            self.settle()

    def open(self, version: int = V311, host: str = "192.0.2.1", listener: str = "tcp:1883") -> HarnessClient:
        """A network connection that has sent nothing yet."""
        link = MemoryLink(self.broker.listeners[listener], Address(host, 50_000 + len(self.peers)))
        peer = HarnessClient(self, link, Connection(self.broker.services, HANDLERS, link), version)
        self.peers.append(peer)
        peer.connection.opened()
        self.settle()
        return peer

    def connect(
        self,
        client_id: str = "",
        version: int = V311,
        *,
        clean_start: bool = True,
        expiry_s: int | None = None,
        will: ConnectWill | SpiWill | None = None,
        properties: Properties = NO_PROPERTIES,
        silent: bool = False,
        host: str = "192.0.2.1",
        **fields: Any,
    ) -> HarnessClient:
        """A client that has sent its CONNECT; ``expiry_s`` is an MQTT 5 session expiry interval.

        ``version`` is 3 (MQTT 3.1), 4 (3.1.1) or 5; ``fields`` may be ``username``, ``password`` and ``keep_alive``.
        """
        peer = self.open(version, host)
        peer.silent = silent
        if expiry_s is not None:
            assert version == V5, "only MQTT 5 has a session expiry interval"
            properties = properties.replace(session_expiry_interval=expiry_s)
        fields.setdefault("keep_alive", 0)
        fields.setdefault("username", None)
        fields.setdefault("password", None)
        return peer.send(
            Connect(
                version=version,
                client_id=client_id,
                clean_start=clean_start,
                will=_as_sent(will),
                properties=properties,
                **fields,
            )
        )


class _PluginSections:
    """The settings of plugins: instances that a test gives, and sections of its ``config``."""

    def __init__(self, parsed: Mapping[str, Any], config: str) -> None:
        self._parsed = parsed
        self._document = Document.parse(config, "the harness's config")
        _check_config(self._document)
        self._unread = set(self._document.data.get("plugins", {}))

    def of(self, name: str, settings_class: type[Any] | None) -> Any:
        """Returns a plugin's settings; ``None`` where it has none."""
        self._unread.discard(name)
        if name in self._parsed or settings_class is None:
            return self._parsed.get(name)
        return parse(settings_class, self._document, ("plugins", name))

    def check_all_read(self) -> None:
        """Raise :class:`SettingsError` for sections of plugins that do not exist."""
        if self._unread:
            unread = sorted(self._unread)
            raise SettingsError([f"the harness's config: no plugin reads plugins.{name}" for name in unread])


def _manager(plugins: Mapping[str, Any], selection: Selection, reactor: str) -> PluginManager:
    """Returns a manager of a test's plugins and of the built-in ones."""
    candidates = [Candidate(name, "test", name, False, plugin) for name, plugin in plugins.items()]
    return PluginManager(choose([*candidates, *builtin_candidates()], selection), selection, reactor)


def _check_config(document: Document) -> None:
    """Raise :class:`SettingsError` for tables other than plugins' sections."""
    problems = [
        f"the harness's config: {key}: only [plugins.NAME] here: limits are keyword arguments, broker settings go in "
        "settings="
        for key in document.data
        if key != "plugins"
    ]
    if problems:
        raise SettingsError(problems)


def _limits(limits: Mapping[str, Any]) -> LimitSettings:
    """Return the limits; raise ``TypeError`` for an unknown keyword, with the nearest known one."""
    known = [attribute.name for attribute in fields(LimitSettings)]
    for name in limits:
        if name not in known:
            hint = did_you_mean(name, known) or "; see docs/limits.md"
            raise TypeError(f"the harness takes no keyword {name!r}, and there is no such limit{hint}")
    return LimitSettings(**limits)


def _as_sent(will: ConnectWill | SpiWill | None) -> ConnectWill | None:
    """Return a will as in CONNECT."""
    if not isinstance(will, SpiWill):
        return will
    message = will.message
    properties = message.properties
    if will.delay_s:
        properties = properties.replace(will_delay_interval=will.delay_s)
    return ConnectWill(message.topic, message.payload, message.qos, message.retain, properties)
