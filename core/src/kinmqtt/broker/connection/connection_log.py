"""What the log says of clients that come and go, and of those that are too slow: a line each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twisted.logger import Logger

from kinmqtt.hooks.denial_log import shown, user

if TYPE_CHECKING:
    from kinmqtt.broker.connection.connection import Connection
    from kinmqtt.broker.runtime import Runtime
    from kinmqtt.broker.session.session import Session

log = Logger("kinmqtt.connection")

VERSIONS: Final = {3: "3.1", 4: "3.1.1", 5: "5.0"}

SLOW_AGAIN_AFTER_S: Final = 60.0
"""A client that goes on losing messages gets a line a minute."""

MOST_SLOW: Final = 10_000
"""Clients of whom it is remembered that they were named."""


def connected(connection: Connection, session: Session, present: bool) -> None:
    """A client has its CONNACK."""
    if not connection.broker.runtime.log_lines.may("connected"):
        return
    client = session.client
    keep_alive = f"keep alive {connection.keep_alive_s} s" if connection.keep_alive_s else "no keep alive"
    log.info(
        "client {client} at {address} connected to {listener}: {user}, MQTT {version}, {keep_alive}, {session}",
        client=shown(client.client_id),
        address=client.address,
        listener=client.listener,
        user=user(client.username),
        version=VERSIONS.get(client.protocol_version, client.protocol_version),
        keep_alive=keep_alive,
        session="session present" if present else "new session",
    )


def disconnected(connection: Connection, session: Session, how: str) -> None:
    """A client that was connected is gone; ``how`` says who ended it, and why."""
    if not connection.broker.runtime.log_lines.may("disconnected"):
        return
    client = session.client
    log.info(
        "client {client} at {address} disconnected after {seconds} s: {how}",
        client=shown(client.client_id),
        address=client.address,
        seconds=connection.lasted_s,
        how=how,
    )


class SlowConsumers:
    """Names a client when it begins to lose messages, and once a minute while it goes on."""

    __slots__ = ("_named", "_runtime")

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._named: dict[str, float] = {}
        """Client ids, and the moment of the clock until which no further line is written of each."""

    def queue_is_full(self, session: Session) -> None:
        """A message for a client gives way because its queue is full."""
        if self._is_news(session.client_id):
            waiting = session.waiting
            self._warn(
                session,
                f"its queue is full ({waiting.count} messages, {waiting.size_bytes} bytes)",
            )

    def buffer_is_full(self, session: Session, waiting_bytes: int) -> None:
        """A client's socket does not take what is sent."""
        if self._is_news(session.client_id):
            self._warn(session, f"{waiting_bytes} bytes wait for its socket, and QoS 0 is dropped")

    def _is_news(self, client_id: str) -> bool:
        now = self._runtime.now()
        if self._named.get(client_id, 0.0) > now:
            return False
        if len(self._named) >= MOST_SLOW:
            self._named = {name: until for name, until in self._named.items() if until > now}
            if len(self._named) >= MOST_SLOW:
                return False
        self._named[client_id] = now + SLOW_AGAIN_AFTER_S
        return True

    def _warn(self, session: Session, what: str) -> None:
        if self._runtime.log_lines.may("slow"):
            where = "(not connected)" if session.connection is None else f"at {session.client.address}"
            log.warn(
                "client {client} {where} loses messages: {what}",
                client=shown(session.client_id),
                where=where,
                what=what,
            )
