"""The core's own harness under the short names that the core's tests use.

With ``KINMQTT_TEST_STORE=redis`` every house has its sessions, queues and retained messages in a Redis.
"""

import os

from kinmqtt.testing import BrokerHarness, MemoryLink
from kinmqtt.testing import HarnessClient as Peer

STORES = ("memory", "redis")
STORE = os.environ.get("KINMQTT_TEST_STORE", "memory")
assert STORE in STORES, f"KINMQTT_TEST_STORE is {STORE!r}, and not one of {', '.join(STORES)}"

if STORE == "redis":
    from redis_house import RedisHouse as House
else:
    House = BrokerHarness

__all__ = ["STORE", "House", "MemoryLink", "Peer"]
