"""A broker in memory, for tests: the core's, and those of plugins through the fixture ``kinmqtt_broker``."""

from kinmqtt.testing.harness import BrokerHarness, HarnessClient, MemoryLink

__all__ = ["BrokerHarness", "HarnessClient", "MemoryLink"]
