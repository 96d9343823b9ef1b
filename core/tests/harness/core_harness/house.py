"""The core's own harness under the short names that the core's tests use.

With ``KINMQTT_TEST_STORE=redis`` every house has its sessions, queues and retained messages in a Redis.
"""

import os
from typing import TYPE_CHECKING, Any

from kinmqtt.mqtt.packets import V5, ConnectWill
from kinmqtt.testing import BrokerHarness, MemoryLink
from kinmqtt.testing import HarnessClient as Peer
from kinmqtt_spi import ALLOW, Decision, Properties, hookimpl

STORES = ("memory", "redis")
STORE = os.environ.get("KINMQTT_TEST_STORE", "memory")
assert STORE in STORES, f"KINMQTT_TEST_STORE is {STORE!r}, and not one of {', '.join(STORES)}"

if STORE == "redis" and not TYPE_CHECKING:
    from root_harness.redis_house import RedisHouse as House
else:
    House = BrokerHarness


class Trusting:
    """An authenticator that vouches for whatever user name a client gives: for tests about users, not about doors."""

    @hookimpl
    def authenticate(self) -> Decision:
        return ALLOW


def payloads(*peers: Peer) -> list[bytes]:
    """Returns the payloads that some clients received, in one list."""
    return [payload for peer in peers for _, payload, _ in peer.messages]


def back(house: BrokerHarness, client_id: str, **more: Any) -> Peer:
    """Connect an MQTT 5 client to its persistent session."""
    return house.connect(client_id, V5, clean_start=False, expiry_s=600, **more)


def a_will(topic: str, delay_s: int = 0) -> ConnectWill:
    """Returns a will of QoS 1 with a will delay interval."""
    return ConnectWill(topic, b"gone", 1, False, Properties(will_delay_interval=delay_s))


__all__ = ["STORE", "House", "MemoryLink", "Peer", "Trusting", "a_will", "back", "payloads"]
