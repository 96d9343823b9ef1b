"""A bridge from the broker to HTTP: webhooks, and whatever takes batches of JSON."""

from kinmqtt_bridge_http._plugin import BridgeHttp
from kinmqtt_bridge_http.settings import BridgeHttpSettings

__all__ = ["BridgeHttp", "BridgeHttpSettings"]
