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

ClientIdReuse: TypeAlias = Literal["same_user", "anybody"]


@frozen(slots=True)
class BrokerSettings:
    """``[broker]``: where the broker listens, where it keeps state, and whom it accepts."""

    listen: tuple[str, ...] | None = setting(
        None,
        help="Twisted endpoint strings, or a port or host:port for plain TCP; ws: in front for WebSocket. Left out: "
        f"the tables [listeners.NAME], and without those {DEFAULT_ENDPOINT!r}",
    )
    data: str | None = setting(
        None,
        help="the directory where state is kept, or memory to keep nothing over a restart; left out: "
        "$STATE_DIRECTORY, /var/lib/kinmqtt for root, $XDG_STATE_HOME/kinmqtt (~/.local/state/kinmqtt) for others",
    )
    event_loop: EventLoop = setting(
        "auto",
        help="uvloop, which must be installed; asyncio, which always is; auto for the first that there is. twistd "
        "--reactor decides before it",
    )
    allow_anonymous: bool | None = setting(
        None,
        help="let everybody in for whom no authenticator speaks; left out, this holds while every listener is "
        "on loopback and no authenticator is installed. Listeners with authenticators of their own are not meant",
    )
    client_id_reuse: ClientIdReuse = setting(
        "same_user",
        help="who may take over the connection and the session of a client id: a client of the same user name (all "
        "without one count as one user), or anybody who gives the client id, as with Mosquitto and EMQX",
    )
    response_information: str = setting(
        "",
        help="told to MQTT 5 clients that ask for it: by convention the beginning of their response topics; "
        "${clientid} and ${username} are filled in",
    )
    node_name: str = setting("", help="this node's name; the host's name where it is empty")
    sys_interval_s: float = setting(
        10.0, help="how often $SYS topics are published; 0 for never", unit="s", minimum=0
    )

    def __attrs_post_init__(self) -> None:
        if self.data == "":
            raise ValueError("data is empty: name a directory, or memory")

    @property
    def data_directory(self) -> Path | None:
        """The absolute path of the directory with the state; ``None`` for memory."""
        return None if self.data in (None, MEMORY) else Path(str(self.data)).expanduser().absolute()
