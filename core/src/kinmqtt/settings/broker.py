"""The settings of the broker itself: where it listens, where it keeps state, and whom it accepts."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, TypeAlias

from attrs import frozen

from kinmqtt_spi.settings import setting

DEFAULT_ENDPOINT: Final = "tcp:1883:interface=127.0.0.1"
"""The endpoint where the settings name no listener."""

MEMORY: Final = "memory"
"""The value of ``data`` with which nothing survives a restart."""

EventLoop: TypeAlias = Literal["auto", "uvloop", "asyncio"]

Promise: TypeAlias = Literal[
    "single_owner", "acknowledged_delivery", "order_per_publisher", "shared_stores", "no_loss"
]

ClientIdReuse: TypeAlias = Literal["same_user", "anybody"]


@frozen(slots=True)
class BrokerSettings:
    """``[broker]``: where the broker listens, where it keeps state, and whom it accepts."""

    listen: tuple[str, ...] | None = setting(
        None,
        help="Twisted endpoint strings, or a port or host:port for plain TCP; ws: in front for WebSocket; default: "
        f"the tables [listeners.NAME], and without those {DEFAULT_ENDPOINT!r}",
    )
    data: str | None = setting(
        None,
        help="the data directory, or memory for no persistence; default: "
        "$STATE_DIRECTORY, /var/lib/kinmqtt for root, $XDG_STATE_HOME/kinmqtt (~/.local/state/kinmqtt) for others",
    )
    event_loop: EventLoop = setting(
        "auto",
        help="uvloop, which must be installed; asyncio, which is always available; auto: uvloop if installed. twistd "
        "--reactor has priority",
    )
    allow_anonymous: bool | None = setting(
        None,
        help="accept clients that no authenticator decides on; default: true while every listener is "
        "on loopback and no authenticator is installed. Listeners with authenticators of their own are not affected",
    )
    client_id_reuse: ClientIdReuse = setting(
        "same_user",
        help="who may take over the connection and the session of a client id: a client of the same user name (all "
        "without one count as one user), or anybody who gives the client id, as with Mosquitto and EMQX",
    )
    response_information: str = setting(
        "",
        help="sent to MQTT 5 clients on request: by convention the prefix of their response topics; "
        "${clientid} and ${username} are replaced",
    )
    require: tuple[Promise, ...] = setting(
        (),
        help="what the cluster backend and the stores must promise, or the broker does not start: single_owner, "
        "acknowledged_delivery, order_per_publisher, shared_stores; no_loss: all but order_per_publisher, so that no "
        "acknowledged message for a kept session is lost with a node",
    )
    node_name: str = setting("", help="this node's name; default: the host's name")
    leave_s: float = setting(
        30.0,
        help="how long a stopping node may take to disconnect its clients in waves, while other nodes of its cluster "
        "can take them, and then again to hand the sessions that are left off to them, for 10 s at least, where they "
        "share no stores; a broker without other nodes disconnects all at once",
        unit="s",
        minimum=0,
    )
    sys_interval_s: float = setting(
        10.0, help="how often $SYS topics are published; 0 for never", unit="s", minimum=0
    )

    def __attrs_post_init__(self) -> None:
        if self.data == "":
            raise ValueError("data is empty: give a directory, or memory")

    @property
    def data_directory(self) -> Path | None:
        """The absolute path of the directory with the state; ``None`` for memory."""
        return None if self.data in (None, MEMORY) else Path(str(self.data)).expanduser().absolute()
