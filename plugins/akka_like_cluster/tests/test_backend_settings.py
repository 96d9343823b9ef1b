"""What the backend makes of its settings."""

from __future__ import annotations

import pytest

from kinmqtt_akka_like_cluster.backend import AkkaBackend
from kinmqtt_akka_like_cluster.settings import AkkaSettings
from kinmqtt_spi.memory.plugin import BareContext


@pytest.mark.parametrize(("heartbeat_s", "gossip_s"), [(0.05, 0.05), (1.0, 1.0), (5.0, 1.0)])
def test_gossip_is_no_slower_than_heartbeats(heartbeat_s: float, gossip_s: float) -> None:
    """Who wants failures to be noticed sooner wants everybody to know sooner; beyond a second gossip stays quick."""
    settings = AkkaSettings(heartbeat_s=heartbeat_s, pause_s=5.0, downing="keep_majority")
    backend = AkkaBackend(BareContext(settings=settings), settings)

    assert backend._coordinator_settings(backend._settings).gossip_s == gossip_s
