"""One network connection to a far broker, from CONNECT to its end. A lost one is never used again."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Final

from attrs import field, frozen
from paho.mqtt.client import Client, ConnectFlags, DisconnectFlags, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from kinmqtt_bridge_mqtt.receiving import size_of
from kinmqtt_bridge_mqtt.refusals import UNSUPPORTED_VERSION, answer_of, error_of
from kinmqtt_bridge_mqtt.wire import Wire, WiredClient
from kinmqtt_spi.errors import ServiceUnavailable, SinkRefused
from kinmqtt_spi.services.bridge import Answer

MAX_INCOMING_BYTES: Final = 16 << 20
"""The most bytes of payloads and properties that wait to be published; beyond that the far broker is not read from.

Where it owes answers to what was sent, it is: they come behind its messages. Then twice as many may wait.
"""


class Unanswered(ServiceUnavailable):
    """The far broker closed the connection without an answer to CONNECT."""


@frozen(slots=True)
class Introduction:
    """What a link says of itself in CONNECT."""

    client_id: str
    is_v5: bool
    is_bridge: bool
    """Whether to set the bit of bridges in MQTT 3.1.1."""
    username: str
    password: str | None = field(repr=False)
    keep_alive_s: int
    clean_start: bool
    session_expiry_s: int
    state_topic: str
    """Where the state is published; empty for nowhere."""
    max_inflight: int
    max_packet_bytes: int


class Batch:
    """Messages that were sent together, and what the far broker has answered."""

    def __init__(self, count: int) -> None:
        self.answers: list[Answer] = [None] * count
        self.left = 0
        self.has_failed = False
        self._news: asyncio.Future[None] | None = None

    def answer(self, number: int, answer: Answer) -> None:
        """Take the answer for a message that was not sent, or was refused."""
        self.answers[number] = answer
        self.has_failed = True

    def settle(self, number: int, answer: Answer) -> None:
        """Take the answer for a message that was sent."""
        self.left -= 1
        if answer is not None:
            self.answer(number, answer)
        if not self.left:
            self.wake()

    def wake(self) -> None:
        """Let who waits look again."""
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def answered(self) -> None:
        """Wait until all that was sent is answered, or the link is lost."""
        self._news = asyncio.get_running_loop().create_future()
        await self._news


class Link:
    """See the module's text. Make one with :func:`connect`."""

    def __init__(self, introduction: Introduction, wire: Wire) -> None:
        self._introduction = introduction
        self._wire = wire
        self._loop = asyncio.get_running_loop()
        self.users = 0
        """How many use it."""
        self.error: SinkRefused | ServiceUnavailable | None = None
        """Why it is lost."""
        self.session_present = False
        self.max_packet_bytes = 268_435_455
        """The longest packet that the far broker takes."""
        self.can_retain = True
        self.max_qos = 2
        self.acknowledged = 0
        """How many messages were acknowledged or refused."""
        self.is_moving = False
        """Whether this client connects elsewhere, to brokers that may share the session with this one."""
        self.on_lost: Callable[[], object] = lambda: None
        self._accepted: asyncio.Future[None] = self._loop.create_future()
        self._subscribed: asyncio.Future[Sequence[ReasonCode]] | None = None
        self._limit = introduction.max_inflight
        self._under_way: dict[int, tuple[Batch, int, str]] = {}
        self._room: asyncio.Event = asyncio.Event()
        self._room.set()
        self._incoming: deque[MQTTMessage] = deque()
        self._incoming_bytes = 0
        self._dropped = 0
        """How many messages of QoS 0 were dropped, since somebody asked."""
        self._is_behind = False
        """Whether messages above QoS 0 were dropped; the far broker sends them again over another connection."""
        self._arrived: asyncio.Event = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._client = self._make_client()

    def _make_client(self) -> WiredClient:
        said = self._introduction
        protocol = MQTTProtocolVersion.MQTTv5 if said.is_v5 else MQTTProtocolVersion.MQTTv311
        client = WiredClient(
            CallbackAPIVersion.VERSION2,
            said.client_id,
            clean_session=None if said.is_v5 else said.clean_start,
            protocol=protocol,
            reconnect_on_failure=False,
            manual_ack=True,
        )
        client.wire = self._wire
        client.max_inflight_messages = 0  # We count them: paho looks through all that wait at each acknowledgement.
        client.username_pw_set(said.username or None, said.password)
        if said.is_bridge:
            client.enable_bridge_mode()
        if said.state_topic:
            client.will_set(said.state_topic, b"0", 1, True)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_publish = self._on_publish
        client.on_message = self._on_message
        client.on_subscribe = self._on_subscribe
        client.on_socket_register_write = self._on_register_write
        return client

    async def introduce(self, timeout_s: float) -> None:
        """Send CONNECT, and wait for its answer; raises ``SinkRefused`` and ``ServiceUnavailable``."""
        said = self._introduction
        self._wire.on_packet = self._read
        self._wire.on_lost = self._on_wire_lost
        if self._wire.lost is not None:
            self._on_wire_lost(self._wire.lost)
            self.check()
        properties = None
        if said.is_v5:
            properties = Properties(PacketTypes.CONNECT)
            properties.SessionExpiryInterval = said.session_expiry_s
            properties.ReceiveMaximum = said.max_inflight
            properties.MaximumPacketSize = said.max_packet_bytes
        more = {"clean_start": said.clean_start, "properties": properties} if said.is_v5 else {}
        # The address is the wire's; paho wants one.
        self._client.connect("wire", 1883, said.keep_alive_s, **more)  # type: ignore[arg-type]
        try:
            async with asyncio.timeout(timeout_s):
                await self._accepted
        except TimeoutError:
            self.fail(ServiceUnavailable(f"the far broker did not answer CONNECT within {timeout_s:g} s"))
        except BaseException:
            self.fail(ServiceUnavailable("the connection was given up"))
            raise
        self.check()
        self._tick()
        if said.state_topic:
            self.publish(Batch(1), 0, said.state_topic, b"1", 1, True, None)  # It counts for Receive Maximum.

    def check(self) -> None:
        """Raise the error of a link that is lost."""
        if self.error is not None:
            raise type(self.error)(str(self.error))

    # Sending

    @property
    def has_room(self) -> bool:
        """Whether another message may be sent; if not, wait for :meth:`room`."""
        return len(self._under_way) < self._limit

    async def room(self) -> None:
        """Wait until a message is acknowledged, or the link is lost."""
        self._room.clear()
        await self._room.wait()

    async def drained(self) -> None:
        """Wait until the network takes more."""
        await self._wire.drained()

    def publish(
        self,
        batch: Batch,
        number: int,
        topic: str,
        payload: bytes,
        qos: int,
        retain: bool,
        properties: Properties | None,
    ) -> None:
        """Send a message; above QoS 0 the batch gets an answer. Raises ``ServiceUnavailable``."""
        info = self._client.publish(topic, payload, qos, retain, properties)
        if info.rc != MQTTErrorCode.MQTT_ERR_SUCCESS:
            raise ServiceUnavailable(f"a message can't be sent: {info.rc.name}")
        if qos:
            batch.left += 1
            self._under_way[info.mid] = (batch, number, topic)
            self._wire.resume()

    # Receiving

    async def subscribe(self, filters: Sequence[tuple[str, int]], no_local: bool, timeout_s: float) -> None:
        """Subscribe; raises ``SinkRefused`` for a filter that the far broker refuses."""
        asked: list[tuple[str, Any]] = list(filters)
        if self._introduction.is_v5:
            asked = [
                (
                    filter,
                    SubscribeOptions(
                        qos,
                        noLocal=no_local and not filter.startswith("$share/"),
                        retainAsPublished=True,
                        retainHandling=SubscribeOptions.RETAIN_SEND_IF_NEW_SUB,
                    ),
                )
                for filter, qos in filters
            ]
        self._subscribed = self._loop.create_future()
        self._client.subscribe(asked)
        await asyncio.wait([self._subscribed], timeout=timeout_s)
        while not self._subscribed.done() and self._wire.is_paused:
            # It comes behind what can't be published here for now.
            await asyncio.wait([self._subscribed], timeout=timeout_s)
        if not self._subscribed.done():
            self.fail(ServiceUnavailable(f"the far broker did not answer SUBSCRIBE within {timeout_s:g} s"))
        self.check()
        for (filter, _), reason in zip(filters, self._subscribed.result(), strict=False):
            if reason.value >= 0x80:
                raise SinkRefused(
                    f"the far broker refuses the subscription to {filter[:100]!r}: {reason} (0x{reason.value:02X}); "
                    "check the rights of the user there"
                )

    async def take(self, count: int) -> list[MQTTMessage]:
        """Return up to ``count`` messages, at least one; they stay until :meth:`acknowledge`."""
        while not self._incoming:
            self.check()
            self._arrived.clear()
            await self._arrived.wait()
        self.check()
        return list(islice(self._incoming, count))

    def acknowledge(self, count: int) -> None:
        """Acknowledge the oldest messages."""
        for _ in range(min(count, len(self._incoming))):
            message = self._incoming.popleft()
            self._incoming_bytes -= size_of(message)
            if message.qos and self.error is None:
                self._client.ack(message.mid, message.qos)
        if self._is_behind and not self._incoming:
            self.close("it sent more than could be published here, and must send that again")
        elif not self._has(1):
            self._wire.resume()

    def take_dropped(self) -> int:
        """Return how many messages of QoS 0 were dropped since the last call, as too many waited."""
        dropped, self._dropped = self._dropped, 0
        return dropped

    def _has(self, times: int) -> bool:
        """Whether so many times what may wait to be published does."""
        return (
            len(self._incoming) >= 2 * times * self._introduction.max_inflight
            or self._incoming_bytes >= times * MAX_INCOMING_BYTES
        )

    # The end

    def fail(self, error: SinkRefused | ServiceUnavailable) -> None:
        """Close at once; everybody who waits gets the error."""
        if self.error is not None:
            return
        self.error = error
        if self._timer is not None:
            self._timer.cancel()
        self._wire.abort()
        self._incoming.clear()
        for batch in {id(batch): batch for batch, _, _ in self._under_way.values()}.values():
            batch.wake()
        self._under_way.clear()
        self._room.set()
        self._arrived.set()
        for future in (self._accepted, self._subscribed):
            if future is not None and not future.done():
                future.set_result(None if future is self._accepted else ())  # type: ignore[arg-type]
        self.on_lost()

    def close(self, why: str = "the connection was closed") -> None:
        """Say goodbye, and close; who still uses it gets ``why`` as ``ServiceUnavailable``."""
        if self.error is not None:
            return
        if self._introduction.state_topic:
            self._client.publish(self._introduction.state_topic, b"0", 1, True)
        self._client.on_disconnect = None
        self._client.disconnect()
        self._write()
        self._wire.close()
        self.fail(ServiceUnavailable(why))

    # paho's callbacks

    def _on_connect(
        self, client: Client, user: object, flags: ConnectFlags, reason: ReasonCode, said: Properties | None
    ) -> None:
        if reason.value >= 0x80:
            self.fail(error_of(reason.value, str(reason), "refuses the connection"))
            return
        self.session_present = bool(flags.session_present)
        values: dict[str, Any] = {} if said is None else vars(said)
        self._limit = min(self._limit, values.get("ReceiveMaximum", self._limit))
        self.max_packet_bytes = values.get("MaximumPacketSize", self.max_packet_bytes)
        self.can_retain = bool(values.get("RetainAvailable", 1))
        self.max_qos = values.get("MaximumQoS", 2)
        if not self._accepted.done():
            self._accepted.set_result(None)

    def _on_disconnect(
        self, client: Client, user: object, flags: DisconnectFlags, reason: ReasonCode, said: Properties | None
    ) -> None:
        if flags.is_disconnect_packet_from_server and not self.is_moving:
            self.fail(error_of(reason.value, str(reason), "ended the connection"))
        elif not self._accepted.done() and not self._introduction.is_v5:
            # All that paho says of return code 1 in CONNACK.
            self.fail(error_of(UNSUPPORTED_VERSION, "Unsupported protocol version", "refuses the connection"))
        else:
            self.fail(ServiceUnavailable(f"the connection is lost: {reason}"))

    def _on_wire_lost(self, why: str) -> None:
        kind = ServiceUnavailable if self._accepted.done() else Unanswered
        self.fail(kind(f"the connection is lost: {why}"))

    def _on_publish(self, client: Client, user: object, mid: int, reason: ReasonCode, said: Properties) -> None:
        entry = self._under_way.pop(mid, None)
        if entry is not None:
            batch, number, topic = entry
            value = reason.value
            self.acknowledged += 1
            batch.settle(number, None if value < 0x80 else answer_of(value, str(reason), topic))
            if not self._room.is_set():
                self._room.set()

    def _on_message(self, client: Client, user: object, message: MQTTMessage) -> None:
        if self._has(2) or (self._is_behind and message.qos):
            if message.qos:
                self._is_behind = True
            else:
                self._dropped += 1
            return
        self._incoming.append(message)
        self._incoming_bytes += size_of(message)
        if not self._arrived.is_set():
            self._arrived.set()
        if self._has(1) and not self._under_way:
            self._wire.pause()

    def _on_subscribe(
        self, client: Client, user: object, mid: int, reasons: list[ReasonCode], said: Properties | None
    ) -> None:
        if self._subscribed is not None and not self._subscribed.done():
            self._subscribed.set_result(reasons)

    def _on_register_write(self, client: Client, user: object, sock: object) -> None:
        self._loop.call_soon(self._write)

    def _write(self) -> None:
        self._client.loop_write()
        self._wire.flush()

    def _read(self) -> None:
        try:
            self._client.loop_read()
        except Exception as error:  # What can't be read, as a property that is not UTF-8.
            self.fail(ServiceUnavailable(f"a packet can't be read: {type(error).__name__}"))

    def _tick(self) -> None:
        """Let paho send PINGREQ, and see that an answer is missing."""
        if self.error is None:
            self._timer = self._loop.call_later(min(self._introduction.keep_alive_s / 4, 10), self._tick)
            self._wire.resume()  # Until the next message: the answer may be all that waits.
            self._client.loop_misc()


async def connect(
    introduction: Introduction, server: tuple[str, int], context: ssl.SSLContext | None, timeout_s: float
) -> Link:
    """Return a link that the far broker has accepted; raises ``SinkRefused`` and ``ServiceUnavailable``."""
    host, port = server
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            _, wire = await loop.create_connection(
                lambda: Wire(introduction.max_packet_bytes), host, port, ssl=context
            )
    except ssl.SSLCertVerificationError as error:
        raise SinkRefused(f"{host}:{port}: its certificate is not trusted: {error.verify_message}; see tls") from None
    except TimeoutError:
        raise ServiceUnavailable(f"{host}:{port}: no connection within {timeout_s:g} s") from None
    except UnicodeError as error:
        raise SinkRefused(f"{host}:{port}: it can't be the name of a host: {error}") from None
    except OSError as error:
        raise ServiceUnavailable(f"{host}:{port}: {error.strerror or error}") from None
    link = Link(introduction, wire)
    try:
        await link.introduce(timeout_s)
    except (SinkRefused, ServiceUnavailable) as error:
        raise type(error)(f"{host}:{port}: {error}") from None
    return link
