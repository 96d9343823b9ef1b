"""Log lines for clients that connect and disconnect."""

from __future__ import annotations

from typing import Final

from twisted.logger import Logger

from kinmqtt.broker.log_lines import LogLines
from kinmqtt.hooks.denial_log import shown, user
from kinmqtt_spi.values import Client

log = Logger("kinmqtt.connection")

VERSIONS: Final = {3: "3.1", 4: "3.1.1", 5: "5.0"}


def connected(log_lines: LogLines, client: Client, keep_alive_s: int, present: bool) -> None:
    """Log that a client was accepted; ``present`` says that its session existed before."""
    if not log_lines.may("connected"):
        return
    keep_alive = f"keep alive {keep_alive_s} s" if keep_alive_s else "no keep alive"
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


def disconnected(log_lines: LogLines, client: Client, lasted_s: int, how: str) -> None:
    """Log that an accepted client is disconnected; ``how`` says by whom and why."""
    if not log_lines.may("disconnected"):
        return
    log.info(
        "client {client} at {address} disconnected after {seconds} s: {how}",
        client=shown(client.client_id),
        address=client.address,
        seconds=lasted_s,
        how=how,
    )
