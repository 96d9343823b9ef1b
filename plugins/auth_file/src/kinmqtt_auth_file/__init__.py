"""Users and topic rights from Mosquitto's files, and the command that writes passwords."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kinmqtt_auth_file.settings import AuthFileSettings

if TYPE_CHECKING:
    from kinmqtt_auth_file._plugin import AuthFile

__all__ = ["AuthFile", "AuthFileSettings"]


def __getattr__(name: str) -> Any:
    """Import the plugin lazily, so that `kinmqtt passwd` needs neither it nor Twisted."""
    if name != "AuthFile":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kinmqtt_auth_file._plugin import AuthFile

    return AuthFile
