"""Archived messages: what clients publish to the topics that the settings name, and to no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kinmqtt_metrics.record import MESSAGE, Record, as_told
from kinmqtt_spi import hookimpl

if TYPE_CHECKING:
    from kinmqtt_spi.values import Client, Message


def capturing(take: Callable[[Client, Message], None]) -> Callable[[Client, Message], None]:
    """A hook of one plugin object's own: the topics that it is limited to are that object's alone."""

    @hookimpl
    def publish_received(client: Client, message: Message) -> None:
        """A client publishes to a topic that is archived."""
        take(client, message)

    return publish_received


def message_record(client: Client, message: Message, max_payload_bytes: int) -> Record:
    """A message; of a payload over the limit only its size. The payload is left as it is until it is written."""
    record: Record = {
        "kind": MESSAGE,
        "labels": {"qos": str(int(message.qos)), "retain": "true" if message.retain else "false"},
        "client": as_told(client.client_id),
        "topic": as_told(message.topic),
        "bytes": len(message.payload),
    }
    if len(message.payload) <= max_payload_bytes:
        record["payload"] = message.payload
    return record
