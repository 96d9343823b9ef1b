"""The settings, in a separate module, so that `kinmqtt passwd` can read them without the plugin."""

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
        None,
        path="file",
        help="users and their hashes, like Mosquitto's `password_file`; without it the plugin authenticates no one",
    )
    acl_file: Path | None = setting(
        None,
        path="file",
        help="access rules for topics, like Mosquitto's `acl_file`; without it the plugin authorizes nothing",
    )
    client_ids: tuple[str, ...] | None = setting(
        None,
        help="patterns of allowed client ids: %u is the user name, a * at the end anything; by default any",
        validator=check_patterns,
    )
    client_ids_of: dict[str, tuple[str, ...]] = setting(
        factory=dict, help="the same for single users, instead of `client_ids`", validator=check_patterns
    )
    watch_s: float = setting(
        3.0,
        help="how often to check the files for changes; 0 for only at a reload (SIGHUP)",
        unit="s",
        minimum=0,
        maximum=86_400,
    )
    disconnect_removed: bool = setting(
        False, help="disconnect clients whose user is removed or gets another password hash"
    )
    denied_wills: Literal["drop", "refuse"] = setting(
        "drop",
        help="a will that no rule allows: `drop` accepts the client and never publishes the will, like Mosquitto; "
        "`refuse` rejects the client",
    )
    cache_entries: int = setting(
        10_000, help="the most right passwords that are cached, as keyed digests; 0 for none", minimum=0
    )
    cache_s: float = setting(300.0, help="how long a right password is cached", unit="s", minimum=0, maximum=86_400)
    verify_at_once: int = setting(2, help="the number of threads that verify passwords", minimum=1, maximum=64)
    verify_waiting: int = setting(
        200,
        help="the most clients that wait for a verification, a quarter of them from one address; more are rejected",
        minimum=1,
    )
    failure_pause_s: float = setting(
        2.0,
        help="the longest pause between an address's verifications after many wrong passwords; 0 for none",
        unit="s",
        minimum=0,
        maximum=5,
    )
    argon2: Argon2Settings = setting(
        factory=Argon2Settings, help="the cost of new password hashes, for `kinmqtt passwd -c`"
    )
