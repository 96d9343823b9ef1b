"""Users and topic rights from Mosquitto's files, and the command that writes passwords."""

from kinmqtt_auth_file._plugin import AuthFile, AuthFileSettings

__all__ = ["AuthFile", "AuthFileSettings"]
