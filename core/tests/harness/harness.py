"""The core's own harness under the short names that the core's tests use.

With ``KINMQTT_TEST_STORE=redis`` every house has its sessions, queues and retained messages in a Redis.
"""

import os

from kinmqtt.testing import BrokerHarness, MemoryLink
from kinmqtt.testing import HarnessClient as Peer
from kinmqtt_spi import ALLOW, Decision, hookimpl

STORES = ("memory", "redis")
STORE = os.environ.get("KINMQTT_TEST_STORE", "memory")
assert STORE in STORES, f"KINMQTT_TEST_STORE is {STORE!r}, and not one of {', '.join(STORES)}"

if STORE == "redis":
    from redis_house import RedisHouse as House
else:
    House = BrokerHarness


class Trusting:
    """An authenticator that vouches for whatever user name a client gives: for tests about users, not about doors."""

    @hookimpl
    def authenticate(self) -> Decision:
        return ALLOW


__all__ = ["STORE", "House", "MemoryLink", "Peer", "Trusting"]
