"""What holds for all tests of bridges, several of which run in this process."""

from bridge_http_harness.abandoned import abandoned_connections

__all__ = ["abandoned_connections"]
