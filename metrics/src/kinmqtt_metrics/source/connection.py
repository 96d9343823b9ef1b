"""A connection to the broker that is made again when it is lost, and the messages that are not acknowledged yet."""

from __future__ import annotations

import ssl
import threading
import time
from collections import deque
from typing import Any, Final

from paho.mqtt.client import Client, ConnectFlags, DisconnectFlags, MQTTMessageInfo
from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from kinmqtt_metrics.source.client import Mqtt5Client, is_final
from kinmqtt_metrics.source.endpoint import Endpoint
from kinmqtt_metrics.source.messages import PACKET_BYTES, Message, NotPublished, shown

_RETRY_S: Final = 0.2
_AGAIN: Final = frozenset({0x88, 0x89, 0x8B, 0x8D, 0x9C, 0x9F, 0xA0})
"""Why a broker may refuse or end a connection that is worth another try: unavailable, busy, shutting down, silent for
too long, moved, too many at once, open for too long."""


class Connection:
    """A connection of MQTT 5 that is made again when it is lost, and what is not acknowledged yet.

    Whatever makes no progress for ``timeout_s`` raises :class:`NotPublished`.
    """

    def __init__(self, endpoint: Endpoint, client_id: str) -> None:
        self._endpoint = endpoint
        self._name = f"{endpoint.host}:{endpoint.port}"
        self._news = threading.Condition()
        self._connected = False
        self._waiting = 0
        self._room = endpoint.max_in_flight
        self._failures: list[tuple[int, str]] = []
        self._lost = ""
        self._refused = ""
        self._topics: dict[int, str] = {}
        self._unsent: dict[int, Message] = {}
        """Of QoS 0, by mid: the client has them and has not written them yet. They count as waiting,"""
        self._again: deque[Message] = deque()
        """as do these, which the client has dropped with a lost connection."""
        self._packet_bytes = PACKET_BYTES
        """The most that the broker takes."""
        client = Mqtt5Client(client_id)
        client.on_pre_connect = self._on_pre_connect
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_publish = self._on_publish
        client.reconnect_delay_set(1, 4)
        client.max_inflight_messages_set(endpoint.max_in_flight)
        if endpoint.username:
            client.username_pw_set(endpoint.username, endpoint.password())
        if endpoint.tls:
            try:
                context = ssl.create_default_context(cafile=endpoint.ca_file or None)
            except OSError as error:
                raise NotPublished(f"caFile {endpoint.ca_file}: {error.strerror or error}") from None
            client.tls_set_context(context)
        self._client = client
        self._connect()
        client.loop_start()
        try:
            self._until(lambda: self._connected, "the connection was not accepted")
        except BaseException:
            self.close()
            raise

    def _connect(self) -> None:
        end = time.monotonic() + self._endpoint.timeout_s
        pause = threading.Event()
        while True:
            try:
                # A session that outlives a lost connection, so that what is under way is sent once where that can be.
                properties = Properties(PacketTypes.CONNECT)
                properties.SessionExpiryInterval = max(1, int(self._endpoint.timeout_s))
                self._client.connect(self._endpoint.host, self._endpoint.port, keepalive=30, properties=properties)
                return
            except OSError as error:
                if is_final(error):
                    raise NotPublished(f"the broker {self._name} can't be reached: {error}") from None
                if time.monotonic() >= end:
                    raise NotPublished(
                        f"the broker {self._name} could not be reached for {self._endpoint.timeout_s:g} s "
                        f"(timeout_s): {error.strerror or error}"
                    ) from None
            pause.wait(_RETRY_S)

    # These are called in the client's thread, or wait for it.

    def _on_pre_connect(self, client: Client, user: object) -> None:
        """Just before, the client has dropped what it had not written; it keeps only what is to be acknowledged."""
        with self._news:
            self._connected = False
            self._again.extend(self._unsent.values())
            self._unsent.clear()

    def _on_connect(
        self, client: Client, user: object, flags: ConnectFlags, reason: ReasonCode, said: Properties | None
    ) -> None:
        if not reason.is_failure:
            self._client.connected(flags.session_present)
        with self._news:
            if reason.is_failure:
                self._lost = f"refused: {reason}"
                if reason.value not in _AGAIN:
                    self._refused = self._lost
            else:
                self._connected = True
                maximum = getattr(said, "ReceiveMaximum", self._endpoint.max_in_flight)
                self._room = min(self._endpoint.max_in_flight, maximum)
                self._packet_bytes = getattr(said, "MaximumPacketSize", PACKET_BYTES)
            self._news.notify_all()

    def _on_disconnect(
        self, client: Client, user: object, flags: DisconnectFlags, reason: ReasonCode, said: Properties | None
    ) -> None:
        with self._news:
            # Of a connection that was refused the reason is told already.
            if self._connected or not self._lost or flags.is_disconnect_packet_from_server:
                self._lost = f"disconnected: {reason}"
            self._connected = False
            if flags.is_disconnect_packet_from_server and reason.value not in _AGAIN:
                self._refused = self._lost
            self._news.notify_all()

    def _on_publish(self, client: Client, user: object, mid: int, reason: ReasonCode, said: Properties) -> None:
        why = self._client.refusal(mid, reason)
        with self._news:
            self._waiting -= 1
            self._unsent.pop(mid, None)
            if why:
                self._failures.append((mid, why))
            self._news.notify_all()

    def _until(self, condition: Any, what: str) -> None:
        """``what`` did not happen where it takes too long; ``{waiting}`` in it is how many messages wait by then.

        Whenever there is a connection again, what the last one has left unsent goes out.
        """
        with self._news:
            end = time.monotonic() + self._endpoint.timeout_s
            waiting = self._waiting
            while True:
                if self._failures:
                    mid, why = self._failures[0]
                    raise NotPublished(
                        f"the broker {self._name} refused a message to {shown(self._topics.get(mid))}: {why}"
                    )
                if self._refused:
                    raise NotPublished(f"the broker {self._name}: {self._refused}")
                self._send_again()
                if condition():
                    return
                if self._waiting != waiting:
                    waiting, end = self._waiting, time.monotonic() + self._endpoint.timeout_s
                left = end - time.monotonic()
                if left <= 0:
                    why = f"; {self._lost}" if self._lost else ""
                    what = what.format(waiting=self._waiting)
                    raise NotPublished(
                        f"the broker {self._name}: {what} within {self._endpoint.timeout_s:g} s (timeout_s){why}"
                    )
                self._news.wait(left)

    def publish(self, message: Message) -> None:
        """Send it, once there is room for one more that is not acknowledged."""
        if message.size_bytes > self._packet_bytes:
            raise NotPublished(
                f"the broker {self._name} takes packets of at most {self._packet_bytes} bytes, but the message to "
                f"{shown(message.topic)} needs one of {message.size_bytes}"
            )
        self._until(lambda: self._connected and self._waiting < self._room, "no message was acknowledged")
        with self._news:
            self._waiting += 1
            if not message.qos:
                self._again.append(message)
                self._send_again()
                return
        while True:
            # Not under our lock: the client's thread holds one of the client's while it waits for ours.
            sent = self._hand_over(message)
            # Without a connection the client keeps it. It has no room for a second of the same mid: the next one has
            # another.
            if sent.rc != MQTTErrorCode.MQTT_ERR_QUEUE_SIZE:
                self._topics[sent.mid] = message.topic
                return

    def _hand_over(self, message: Message) -> MQTTMessageInfo:
        properties = Properties(PacketTypes.PUBLISH)
        properties.UserProperty = list(message.properties)
        return self._client.publish(message.topic, message.payload, message.qos, message.retain, properties)

    def _send_again(self) -> None:
        """Give the client what is of QoS 0, and not written yet, as long as there is a connection.

        Under our lock, so that it is known before it is written or dropped: for QoS 0 the client takes none of the
        locks that its thread holds while it waits for ours.
        """
        while self._again and self._connected:
            sent = self._hand_over(self._again[0])
            if sent.rc == MQTTErrorCode.MQTT_ERR_NO_CONN:
                # Its thread is about to tell.
                self._connected = False
                return
            self._unsent[sent.mid] = self._again.popleft()

    def wait_for_all(self) -> None:
        """Until everything is acknowledged, and what is of QoS 0 is sent."""
        self._until(lambda: not self._waiting, "{waiting} messages were not acknowledged")

    def close(self) -> None:
        """Say good-bye; the session ends with it."""
        properties = Properties(PacketTypes.DISCONNECT)
        properties.SessionExpiryInterval = 0
        self._client.disconnect(properties=properties)
        self._client.loop_stop()
