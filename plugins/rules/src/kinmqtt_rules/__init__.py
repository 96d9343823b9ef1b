"""Rules in SQL over messages and client events."""

from kinmqtt_rules._plugin import Rules
from kinmqtt_rules.settings import RulesSettings

__all__ = ["Rules", "RulesSettings"]
