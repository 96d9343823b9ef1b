"""A cluster of brokers: members, failure detection and direct links."""

from kinmqtt_akka_like_cluster._plugin import AkkaLikeCluster
from kinmqtt_akka_like_cluster.settings import AkkaSettings

__all__ = ["AkkaLikeCluster", "AkkaSettings"]
