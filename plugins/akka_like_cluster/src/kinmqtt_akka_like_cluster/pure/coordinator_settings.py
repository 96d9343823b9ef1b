"""The settings of a coordinator."""

from __future__ import annotations

from attrs import field, frozen, validators

from kinmqtt_akka_like_cluster.pure.detector import DetectorSettings
from kinmqtt_akka_like_cluster.pure.downing import DowningPolicy, Strategy
from kinmqtt_akka_like_cluster.pure.gossip import NodeAddress
from kinmqtt_akka_like_cluster.pure.messages import MOST_SETTINGS_BYTES


@frozen(slots=True, kw_only=True)
class CoordinatorSettings:
    """Settings of a coordinator. Raises ``ValueError`` for a value that no part of it can use."""

    seeds: tuple[NodeAddress, ...]
    """The addresses that are asked to let this process join; only the first one may form a cluster alone."""
    digest: bytes = field(validator=validators.max_len(MOST_SETTINGS_BYTES))
    """The digest of all settings that the members must share; at most 64 bytes."""
    form_after_s: float = field(default=5.0, validator=validators.gt(0))
    """How long the first seed waits for other seeds before it forms a cluster, in seconds."""
    asks_to_form: bool = False
    """Whether the arbiter must allow it to form a cluster."""
    gossip_s: float = field(default=1.0, validator=validators.gt(0))
    """The time between two rounds of gossip, in seconds."""
    detector: DetectorSettings = field(factory=DetectorSettings)
    strategy: Strategy = Strategy.KEEP_MAJORITY
    quorum: int | None = None
    stable_after_s: float | None = None
    """How long a view must be stable before anybody is downed, in seconds; ``None``: by the number of members."""

    def __attrs_post_init__(self) -> None:
        DowningPolicy(self.strategy, self.quorum, self.stable_after_s)
