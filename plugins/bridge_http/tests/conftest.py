"""What holds for all tests of the plugin."""

from bridge_http_harness.abandoned import abandoned_connections
from spi_harness.certificates import folder, right, wrong

__all__ = ["abandoned_connections", "folder", "right", "wrong"]
