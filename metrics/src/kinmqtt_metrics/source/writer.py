"""Rows as MQTT messages: in one go, and as a stream.

A task publishes the rows of its partition over a connection of its own, in their order, and is done when the broker
has acknowledged every one of them. A task or a batch that is repeated publishes them again, with the same ids in the
user property :data:`ID`: at least once, and receivers can tell.
"""

from __future__ import annotations

import importlib.metadata
import os
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
from attrs import field, frozen
from paho.mqtt.client import Client, ConnectFlags, DisconnectFlags, MQTTMessageInfo
from paho.mqtt.enums import CallbackAPIVersion, MessageState, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

ID: Final = "kinmqtt-id"
"""The user property that has the id of a message."""

COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "topic": ("string",),
    "payload": ("string", "binary"),
    "qos": ("int", "bigint", "smallint", "tinyint"),
    "retain": ("boolean",),
    "properties": ("map<string,string>",),
    "message_id": ("string",),
}
"""The columns of rows that are published, and their types; the first two are needed."""

_RETRY_S: Final = 0.2
_AGAIN: Final = frozenset({0x88, 0x89, 0x8B, 0x8D, 0x9C, 0x9F, 0xA0})
"""Why a broker may refuse or end a connection that is worth another try: unavailable, busy, shutting down, silent for
too long, moved, too many at once, open for too long."""
_NOT_FOUND: Final = 0x92
"""What a broker says to a PUBREL for which it has no message."""


_TEXT_BYTES: Final = 65_535
"""So long a text of MQTT may be,"""
_PACKET_BYTES: Final = 268_435_460
"""and so long a packet."""
_OURS_BYTES: Final = 200
"""How long what is added to client ids and ids of messages may get."""


class NotPublished(Exception):
    """A partition that could not be published: which message, where, and why."""


@frozen(slots=True, kw_only=True)
class Where:
    """The broker, and how to talk to it."""

    host: str
    port: int
    username: str = ""
    password_file: str = ""
    password_variable: str = ""
    tls: bool = False
    ca_file: str = ""
    client_id: str = "kinmqtt-spark"
    max_in_flight: int = 100
    timeout_s: float = 30.0

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Where:
        """Raises ``ValueError`` that names the option."""
        if options.get("password"):
            raise ValueError(
                "option password would stand in plans and logs: give passwordFile, the path of a file that holds it, "
                "or passwordVariable, the name of an environment variable, where the executors run"
            )
        if options.get("passwordFile") and options.get("passwordVariable"):
            raise ValueError("options passwordFile and passwordVariable: give one of them")
        if not options.get("host"):
            raise ValueError(
                "format('kinmqtt') publishes to a broker: give option host, and port where it is not 1883"
            )
        for name in ("host", "username", "clientId", "idPrefix", "caFile", "passwordFile", "passwordVariable"):
            more_bytes = _OURS_BYTES if name in ("clientId", "idPrefix") else 0
            why = _unfit(options.get(name, ""), _TEXT_BYTES - more_bytes)
            if why:
                raise ValueError(f"option {name} {why}")
        if not _is_host(options["host"]):
            raise ValueError(f"option host is {_shown(options['host'])}: it is a name or an address, without a port")
        if (options.get("passwordFile") or options.get("passwordVariable")) and not options.get("username"):
            raise ValueError("options passwordFile and passwordVariable: give option username, too")
        tls = _boolean(options, "tls") or bool(options.get("caFile"))
        return cls(
            host=options["host"],
            port=int(_number(options, "port", 8883 if tls else 1883, 1, 65_535)),
            username=options.get("username", ""),
            password_file=options.get("passwordFile", ""),
            password_variable=options.get("passwordVariable", ""),
            tls=tls,
            ca_file=options.get("caFile", ""),
            client_id=options.get("clientId", "kinmqtt-spark"),
            max_in_flight=int(_number(options, "maxInFlight", 100, 1, 65_535)),
            timeout_s=_number(options, "timeout_s", 30.0, 0.1, 86_400.0),
        )

    def password(self) -> str | None:
        """Read where the task runs. Raises :class:`NotPublished`."""
        password = self._password()
        if password is not None and (why := _unfit(password, _TEXT_BYTES)):
            told = "passwordVariable" if self.password_variable else "passwordFile"
            raise NotPublished(f"{told}: the password {why}")
        return password

    def _password(self) -> str | None:
        if self.password_variable:
            try:
                return os.environ[self.password_variable]
            except KeyError:
                raise NotPublished(
                    f"passwordVariable: the environment variable {self.password_variable} is not set on "
                    f"{socket.gethostname()}, where this task runs"
                ) from None
        if self.password_file:
            try:
                return Path(self.password_file).read_text("utf-8").rstrip("\r\n")
            except OSError as error:
                raise NotPublished(
                    f"passwordFile {self.password_file} on {socket.gethostname()}: {error.strerror}"
                ) from None
            except UnicodeDecodeError:
                raise NotPublished(
                    f"passwordFile {self.password_file} on {socket.gethostname()}: it is no text in UTF-8"
                ) from None
        return None


def _unfit(text: str, most_bytes: int) -> str:
    """Why MQTT has no such text; empty where it has."""
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError:
        return "is no text: it has half of a surrogate pair"
    if "\0" in text:
        return "has a NUL"
    return f"has {size_bytes} bytes: it may have {most_bytes}" if size_bytes > most_bytes else ""


def _is_host(host: str) -> bool:
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return not any(sign.isspace() for sign in host)


def _shown(text: str | None) -> str:
    return repr(text) if text is None or len(text) <= 100 else f"{text[:100]!r}…"


def _boolean(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name, "false").lower()
    if text not in ("true", "false"):
        raise ValueError(f"option {name} is {text!r}: it is true or false")
    return text == "true"


def _number(options: Mapping[str, str], name: str, default: float, least: float, most: float) -> float:
    text = options.get(name, "")
    try:
        number = type(default)(text) if text else default
    except ValueError:
        number = least - 1
    if not least <= number <= most:
        raise ValueError(f"option {name} is {text!r}: it is a number from {least:g} to {most:g}")
    return number


@frozen(slots=True)
class Published(WriterCommitMessage):
    """So many messages of a partition were acknowledged."""

    messages: int


class Writer:
    """What both ways of writing share. Raises ``ValueError`` for columns that say nothing to it."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise ValueError("messages can't be overwritten: use mode('append'), or outputMode append or update")
        for name in ("topic", "payload"):
            if name not in schema.fieldNames():
                raise ValueError(f"column {name} is missing: format('kinmqtt') publishes {', '.join(COLUMNS)}")
        for column in schema:
            kind = column.dataType.simpleString()
            if kind not in COLUMNS.get(column.name, ()):
                wanted = " or ".join(COLUMNS.get(column.name, ())) or f"none; it publishes {', '.join(COLUMNS)}"
                raise ValueError(f"column {column.name} {kind}: format('kinmqtt') takes {wanted}")
        self._names = schema.fieldNames()
        self._where = Where.of(options)
        # A run in one go has no id of Spark's; tasks that are repeated share this one.
        self._run = uuid4().hex
        self._prefix = options.get("idPrefix", "")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        """Publish a partition. Raises :class:`NotPublished`."""
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        attempt = context.taskAttemptId() if context is not None else 0
        query = (context.getLocalProperty("sql.streaming.queryId") if context is not None else None) or self._run
        batch = (context.getLocalProperty("streaming.sql.batchId") if context is not None else None) or "0"
        # Two writes within one batch of foreachBatch have all of these in common, and need a prefix each.
        ids = f"{self._prefix}{query}-{batch}-{partition}"
        count = 0
        connection: _Connection | None = None
        try:
            for rows in iterator:
                # All of them are looked at before the first is sent.
                messages = [
                    _message(row, at, f"{ids}-{at}") for at, row in enumerate(_rows(rows, self._names), count)
                ]
                if not messages:
                    continue
                if connection is None:
                    # A query that is started again counts its attempts from 0, and paho takes up the session that is
                    # there where its first try was refused: packet ids in that one would pass for known, and dropped.
                    once = uuid4().hex[:12]
                    client_id = f"{self._where.client_id}-{query}-{partition}-{attempt}-{once}"
                    connection = _Connection(self._where, client_id)
                for message in messages:
                    connection.publish(message)
                count += len(messages)
            if connection is not None:
                connection.wait_for_all()
        finally:
            if connection is not None:
                connection.close()
        return Published(count)


class BatchWriter(Writer, DataSourceArrowWriter):
    """``df.write``."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All is acknowledged already."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """What was published stays published: nobody can call a message back."""


class StreamWriter(Writer, DataSourceStreamArrowWriter):
    """``df.writeStream``."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """All is acknowledged already."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What was published stays published; the batch is repeated with the same ids."""


@frozen(slots=True)
class Message:
    """A row, looked at."""

    topic: str
    payload: bytes = field(repr=False)
    qos: int
    retain: bool
    properties: tuple[tuple[str, str], ...]

    @property
    def size_bytes(self) -> int:
        """What its packet takes."""
        said = sum(5 + len(name.encode()) + len(value.encode()) for name, value in self.properties)
        rest = 2 + len(self.topic.encode()) + (2 if self.qos else 0) + _length_bytes(said) + said + len(self.payload)
        return 1 + _length_bytes(rest) + rest


def _length_bytes(length: int) -> int:
    """How many bytes say a length."""
    return max(1, -(-length.bit_length() // 7))


def _rows(batch: pa.RecordBatch, names: list[str]) -> Iterator[dict[str, Any]]:
    columns = [column.to_pylist() for column in batch.columns]
    for values in zip(*columns, strict=True):
        yield dict(zip(names, values, strict=True))


def _message(row: Mapping[str, Any], number: int, default_id: str) -> Message:
    """Raises :class:`NotPublished` for a row that is no message."""
    topic, payload, qos = row["topic"], row["payload"], row.get("qos")
    here = f"row {number} of the partition"
    if (
        not topic
        or any(sign in topic for sign in "+#\0")
        or _unfit(topic, _TEXT_BYTES)
        or topic.startswith("$share/")
    ):
        raise NotPublished(
            f"{here}: topic {_shown(topic)} is none to publish to: it has 1 to {_TEXT_BYTES} bytes, no '+', '#' or "
            "NUL, and does not begin with $share/"
        )
    here += f", topic {_shown(topic)}"
    if payload is None:
        raise NotPublished(f"{here}: payload is null; an empty one is ''")
    if qos is not None and qos not in (0, 1, 2):
        raise NotPublished(f"{here}: qos is {qos}: it is 0, 1 or 2")
    properties = [(ID, row.get("message_id") or default_id)]
    if why := _unfit(properties[0][1], _TEXT_BYTES):
        raise NotPublished(f"{here}: message_id {why}")
    # Arrow gives maps as pairs.
    for name, value in row.get("properties") or ():
        if value is not None and name != ID:
            if why := _unfit(name, _TEXT_BYTES):
                raise NotPublished(f"{here}: properties: the name {_shown(name)} {why}")
            if why := _unfit(value, _TEXT_BYTES):
                raise NotPublished(f"{here}: properties: what {_shown(name)} says {why}")
            properties.append((name, value))
    message = Message(
        topic,
        payload.encode() if isinstance(payload, str) else bytes(payload),
        1 if qos is None else qos,
        bool(row.get("retain")),
        tuple(properties),
    )
    if message.size_bytes > _PACKET_BYTES:
        raise NotPublished(
            f"{here}: payload and properties make a packet of {message.size_bytes} bytes: one of MQTT's has at most "
            f"{_PACKET_BYTES}"
        )
    return message


class _Client(Client):
    """paho's, with what it leaves out of QoS 2.

    paho answers every PUBREC with a PUBREL, where one with a reason of 0x80 or more says that the message is refused
    and the exchange over (MQTT 5, 4.3.3); and it repeats a PUBREL for a session that the broker has no more. What is
    used here of paho's own is the same in 2.1 and 2.2.
    """

    def __init__(self, client_id: str) -> None:
        super().__init__(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            protocol=MQTTProtocolVersion.MQTTv5,
            reconnect_on_failure=True,
        )
        self._accepted: dict[int, int] = {}
        """The messages that the broker has taken but is not done with: by mid, the number of the connection."""
        self._connections = 0
        needed = ("_handle_pubrec", "_do_on_publish")
        missing = [name for name in needed if not callable(getattr(Client, name, None))]
        missing += [name for name in ("_in_packet", "_out_messages", "_out_message_mutex") if not hasattr(self, name)]
        if missing:
            raise NotPublished(
                f"paho-mqtt {importlib.metadata.version('paho-mqtt')} has no {', '.join(missing)}, by which refusals "
                "at QoS 2 are seen: install paho-mqtt 2.1 or 2.2"
            )

    # All of these are called in the client's thread.

    def _handle_pubrec(self) -> MQTTErrorCode:
        packet = bytes(self._in_packet["packet"])
        mid = int.from_bytes(packet[:2], "big")
        with self._out_message_mutex:
            if mid in self._out_messages and len(packet) > 1:
                if len(packet) > 2 and packet[2] >= 0x80:
                    self._accepted.pop(mid, None)
                    # As paho does it for PUBACK and PUBCOMP.
                    return self._do_on_publish(mid, _pubrec_reason(packet[2]), Properties(PacketTypes.PUBREC))
                self._accepted[mid] = self._connections
            return super()._handle_pubrec()

    def connected(self, resumed: bool) -> None:
        """Call it before anything is sent again: without the broker's session no PUBREL says anything to it."""
        self._connections += 1
        if resumed:
            return
        with self._out_message_mutex:
            self._accepted.clear()
            for message in self._out_messages.values():
                message.dup = False
                if message.state == MessageState.MQTT_MS_RESEND_PUBREL:
                    message.state = MessageState.MQTT_MS_PUBLISH

    def refusal(self, mid: int, reason: ReasonCode) -> str:
        """Why a message that is done with is not published; empty where it is."""
        if reason.packetType != PacketTypes.PUBCOMP:
            return str(reason) if reason.is_failure else ""
        accepted = self._accepted.pop(mid, None)
        if accepted is None:
            return "there was a PUBCOMP, and no PUBREC that took it"
        # The broker was done with it before the connection was lost: no error then (MQTT 5, 3.7.2.1).
        if reason.value == _NOT_FOUND and accepted < self._connections:
            return ""
        return str(reason) if reason.is_failure else ""


def _pubrec_reason(value: int) -> ReasonCode:
    try:
        return ReasonCode(PacketTypes.PUBREC, identifier=value)
    except (KeyError, ValueError):
        # None of MQTT's: refused all the same.
        return ReasonCode(PacketTypes.PUBREC, identifier=0x80)


class _Connection:
    """A connection of MQTT 5 that is made again when it is lost, and what is not acknowledged yet.

    Whatever makes no progress for ``timeout_s`` raises :class:`NotPublished`.
    """

    def __init__(self, where: Where, client_id: str) -> None:
        self._where = where
        self._name = f"{where.host}:{where.port}"
        self._news = threading.Condition()
        self._connected = False
        self._waiting = 0
        self._room = where.max_in_flight
        self._failures: list[tuple[int, str]] = []
        self._lost = ""
        self._refused = ""
        self._topics: dict[int, str] = {}
        self._unsent: dict[int, Message] = {}
        """Of QoS 0, by mid: the client has them and has not written them yet. They count as waiting,"""
        self._again: deque[Message] = deque()
        """as do these, which the client has dropped with a lost connection."""
        self._packet_bytes = _PACKET_BYTES
        """The most that the broker takes."""
        client = _Client(client_id)
        client.on_pre_connect = self._on_pre_connect
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_publish = self._on_publish
        client.reconnect_delay_set(1, 4)
        client.max_inflight_messages_set(where.max_in_flight)
        if where.username:
            client.username_pw_set(where.username, where.password())
        if where.tls:
            try:
                context = ssl.create_default_context(cafile=where.ca_file or None)
            except OSError as error:
                raise NotPublished(f"caFile {where.ca_file}: {error.strerror or error}") from None
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
        end = time.monotonic() + self._where.timeout_s
        pause = threading.Event()
        while True:
            try:
                # A session that outlives a lost connection, so that what is under way is sent once where that can be.
                properties = Properties(PacketTypes.CONNECT)
                properties.SessionExpiryInterval = max(1, int(self._where.timeout_s))
                self._client.connect(self._where.host, self._where.port, keepalive=30, properties=properties)
                return
            except OSError as error:
                if _is_final(error):
                    raise NotPublished(f"the broker {self._name} can't be reached: {error}") from None
                if time.monotonic() >= end:
                    raise NotPublished(
                        f"the broker {self._name} could not be reached for {self._where.timeout_s:g} s "
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
                maximum = getattr(said, "ReceiveMaximum", self._where.max_in_flight)
                self._room = min(self._where.max_in_flight, maximum)
                self._packet_bytes = getattr(said, "MaximumPacketSize", _PACKET_BYTES)
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
            end = time.monotonic() + self._where.timeout_s
            waiting = self._waiting
            while True:
                if self._failures:
                    mid, why = self._failures[0]
                    raise NotPublished(
                        f"the broker {self._name} refused a message to {_shown(self._topics.get(mid))}: {why}"
                    )
                if self._refused:
                    raise NotPublished(f"the broker {self._name}: {self._refused}")
                self._send_again()
                if condition():
                    return
                if self._waiting != waiting:
                    waiting, end = self._waiting, time.monotonic() + self._where.timeout_s
                left = end - time.monotonic()
                if left <= 0:
                    why = f"; {self._lost}" if self._lost else ""
                    what = what.format(waiting=self._waiting)
                    raise NotPublished(
                        f"the broker {self._name}: {what} within {self._where.timeout_s:g} s (timeout_s){why}"
                    )
                self._news.wait(left)

    def publish(self, message: Message) -> None:
        """Send it, once there is room for one more that is not acknowledged."""
        if message.size_bytes > self._packet_bytes:
            raise NotPublished(
                f"the broker {self._name} takes packets of at most {self._packet_bytes} bytes, and the message to "
                f"{_shown(message.topic)} makes one of {message.size_bytes}"
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


def _is_final(error: OSError) -> bool:
    """Whether another try would end the same way: a name that nobody knows, a certificate that is not good."""
    if isinstance(error, socket.gaierror):
        # Nobody could be asked for the name: that passes.
        return error.errno != socket.EAI_AGAIN
    # A connection that is cut while the two agree on keys is a lost one.
    cut = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
    return isinstance(error, ssl.SSLError) and not isinstance(error, cut)
