"""What holds for all tests of the plugin."""

from bridge_http_harness.abandoned import abandoned_connections

__all__ = ["abandoned_connections"]
