"""The core's own harness under the short names that the core's tests use."""

from kinmqtt.testing import BrokerHarness as House
from kinmqtt.testing import HarnessClient as Peer
from kinmqtt.testing import MemoryLink

__all__ = ["House", "MemoryLink", "Peer"]
