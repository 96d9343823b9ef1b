"""The settings, in a module of their own: `kinmqtt passwd` reads them, and needs nothing else of the plugin."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from attrs import frozen

from kinmqtt_auth_file.client_ids import check_patterns
from kinmqtt_auth_file.hashes import Argon2Settings
from kinmqtt_spi.settings import setting


@frozen(slots=True)
class AuthFileSettings:
    """``[plugins.auth_file]``."""

    password_file: Path | None = setting(
        None, help="users and their hashes, as Mosquitto's `password_file`; left out, it authenticates nobody"
    )
    acl_file: Path | None = setting(
        None, help="who may do what with which topics, as Mosquitto's `acl_file`; left out, it authorizes nothing"
    )
    client_ids: tuple[str, ...] | None = setting(
        None,
        help="which client ids a client may have: %u is its user name, a * at the end anything; left out, any",
        validator=check_patterns,
    )
    client_ids_of: dict[str, tuple[str, ...]] = setting(
        factory=dict, help="the same for single users, in place of `client_ids`", validator=check_patterns
    )
    watch_s: float = setting(
        3.0,
        help="how often to look whether a file has changed; 0 for at a reload (SIGHUP) only",
        unit="s",
        minimum=0,
        maximum=86_400,
    )
    disconnect_removed: bool = setting(
        False, help="whether clients are disconnected whose user is removed or gets another password hash"
    )
    denied_wills: Literal["drop", "refuse"] = setting(
        "drop",
        help="a will that no rule allows: `drop` lets the client in and never publishes it, as Mosquitto does; "
        "`refuse` refuses the client",
    )
    cache_entries: int = setting(
        10_000, help="right passwords that are remembered, by a keyed digest; 0 for none", minimum=0
    )
    cache_s: float = setting(
        300.0, help="for how long a right password is remembered", unit="s", minimum=0, maximum=86_400
    )
    verify_at_once: int = setting(2, help="threads that verify passwords at the same time", minimum=1, maximum=64)
    verify_waiting: int = setting(
        200,
        help="clients that may wait for theirs, a quarter of them from one address; more are refused as too busy",
        minimum=1,
    )
    argon2: Argon2Settings = setting(
        factory=Argon2Settings, help="what a new password's hash costs, for `kinmqtt passwd -c`"
    )
